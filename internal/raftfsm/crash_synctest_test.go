package raftfsm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// crash copies a replica's directory as it is while it runs, which is what a crash
// leaves behind, and puts the copy under another base.
func (c *cluster) crash(name, base string) {
	c.t.Helper()
	synctest.Wait()
	copyTree(c.t, filepath.Join(c.base, name), filepath.Join(base, name))
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// holds checks that each key is held by the attempt that it was granted to.
func (c *cluster) holds(g *Group, keys int) {
	c.t.Helper()
	for i := range keys {
		result, err := propose(c.t, g, Entry{Term: g.Term(), Commands: commands(reserve(i))})
		if err != nil || result.Answers[0].Outcome != admission.OutcomeGranted || !result.Answers[0].Repeated {
			c.t.Fatalf("key %d was lost: %+v, %v", i, result, err)
		}
	}
}

// TestCrashes crashes a replica between the steps of making the state durable and
// cutting the log, and wants every acknowledged record in what comes up again.
func TestCrashes(t *testing.T) {
	const keys = 60
	for _, step := range []struct {
		name string
		do   func(t *testing.T, g *Group)
	}{
		{"nothing is flushed", func(*testing.T, *Group) {}},
		{"the state is flushed", func(t *testing.T, g *Group) {
			if err := g.store.Flush(); err != nil {
				t.Fatal(err)
			}
		}},
		{"the snapshot is taken, the log not cut", func(t *testing.T, g *Group) {
			snap, err := g.fsm.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			applied := g.store.Applied()
			sink, err := g.fsm.snapshots.Create(1, applied.Index, applied.Term, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := snap.Persist(sink); err != nil {
				t.Fatal(err)
			}
		}},
		{"the log is cut", func(t *testing.T, g *Group) {
			if err := g.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			base, crashed := t.TempDir(), t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, base, "a")
				c.limits = smallLog
				c.limits.snapshotBytes = 1 << 30
				c.flushInterval = 10 * time.Second // the test flushes
				c.start("a")
				g := c.leader()
				c.admit(g, 0, keys)
				step.do(t, g)
				c.crash("a", crashed)
				want := g.store.Applied().Index
				c.stop("a")

				c.base = crashed
				c.start("a")
				defer c.stopAll()
				g = c.leader()
				if got := g.store.Applied().Index; got < want {
					t.Errorf("applied %d, before the crash %d", got, want)
				}
				c.holds(g, keys)
				c.admit(g, keys, keys+5)
			})
		})
	}
}

// TestCrashesWhileInstalling crashes a follower between receiving a state and
// emptying its log.
func TestCrashesWhileInstalling(t *testing.T) {
	for _, behind := range []int{0, 10} { // entries that the follower has of its own
		for _, step := range []string{"received in part", "received", "installed"} {
			t.Run(step, func(t *testing.T) {
				base := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, base, "a", "b", "c")
					c.limits = smallLog
					c.start("a", "b", "c")
					defer c.stopAll()
					c.admit(c.leader(), 0, behind)
					c.agree()
					c.stop("c")
					c.admit(c.leader(), behind, 60)
					g := c.cutLogs("a", "b")

					dir := filepath.Join(base, "c")
					meta, source, err := g.fsm.snapshots.Open(stateID)
					if err != nil {
						t.Fatal(err)
					}
					defer source.Close()
					noteTerm(t, filepath.Join(dir, logName), meta.Term)
					follower := newMachine(t, dir)
					sink, err := follower.snapshots.Create(1, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
					if err != nil {
						t.Fatal(err)
					}
					content := make([]byte, meta.Size)
					for read := 0; read < len(content); {
						n, err := source.Read(content[read:])
						if read += n; err != nil && n == 0 {
							t.Fatal(err)
						}
					}
					if step == "received in part" {
						content = content[:len(content)/2]
					}
					if _, err := sink.Write(content); err != nil {
						t.Fatal(err)
					}
					if step != "received in part" {
						if err := sink.Close(); err != nil {
							t.Fatal(err)
						}
					}
					if step == "installed" {
						if err := restore(t, follower, sink.ID()); err != nil {
							t.Fatal(err)
						}
					}
					follower.close(t)

					c.start("c")
					c.agree()
					if at := c.groups["c"].store.InstalledAt(); at < meta.Index {
						t.Errorf("installed at %d", at)
					}
					if left := files(t, filepath.Join(dir, snapshotName)); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
					if err := g.TransferLeadership("c"); err != nil {
						t.Fatal(err)
					}
					c.holds(c.leader(), 60)
				})
			})
		}
	}
}

// noteTerm does what raft does before it receives a state: it notes the leader's term.
func noteTerm(t *testing.T, dir string, term uint64) {
	t.Helper()
	log, err := raftlog.Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(log.SetUint64(keyCurrentTerm, term), log.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestLogAndStateThatDoNotBelongTogether loses and puts back files.
func TestLogAndStateThatDoNotBelongTogether(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		c.limits = smallLog
		c.start("a")
		dir := filepath.Join(base, "a")
		c.admit(c.leader(), 0, 10)
		c.stop("a")
		early := filepath.Join(base, "early")
		copyTree(t, dir, early)
		c.start("a")
		c.admit(c.leader(), 10, 60)
		c.cutLogs("a")
		c.stop("a")
		late := filepath.Join(base, "late")
		copyTree(t, dir, late)

		for name, put := range map[string]func() error{
			"the log is gone":       func() error { return os.RemoveAll(filepath.Join(dir, logName)) },
			"the log is an old one": func() error { return replaceTree(filepath.Join(early, logName), filepath.Join(dir, logName)) },
			"the state is gone":     func() error { return os.Remove(filepath.Join(dir, stateName)) },
			"the state is an old one": func() error {
				content, err := os.ReadFile(filepath.Join(early, stateName))
				if err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, stateName), content, 0o600)
			},
		} {
			if err := replaceTree(late, dir); err != nil {
				t.Fatal(err)
			}
			if err := put(); err != nil {
				t.Fatal(err)
			}
			_, err := Open(c.config("a"))
			if !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %v", name, err)
			}
			cfg := c.config("a")
			cfg.Create = false
			if group, err := Open(cfg); err == nil {
				t.Errorf("%s: opened", name)
				_ = group.Close(t.Context())
			}
		}
		if err := replaceTree(late, dir); err != nil {
			t.Fatal(err)
		}
		c.start("a")
		c.holds(c.leader(), 60)
		c.stop("a")

		// An empty state under a whole log is replayed.
		if err := replaceTree(early, dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, stateName)); err != nil {
			t.Fatal(err)
		}
		c.start("a")
		c.holds(c.leader(), 10)
		c.stop("a")
	})
}

func replaceTree(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}

// TestReconcile is about the decisions alone.
func TestReconcile(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last uint64 // of the log, all of term 2
		applied     store.Position
		installed   bool
		wantLog     uint64 // the log's last index afterwards
		refused     bool
	}{
		{name: "new"},
		{name: "nothing applied", first: 1, last: 5, wantLog: 5},
		{name: "a log from later on", first: 2, last: 5, refused: true},
		{name: "applied within the log", first: 1, last: 5, applied: store.Position{Index: 3, Term: 2}, wantLog: 5},
		{name: "applied to its end", first: 1, last: 5, applied: store.Position{Index: 5, Term: 2}, wantLog: 5},
		{name: "cut up to what is applied", first: 4, last: 5, applied: store.Position{Index: 3, Term: 2}, wantLog: 5},
		{name: "a gap", first: 5, last: 6, applied: store.Position{Index: 3, Term: 2}, refused: true},
		{name: "a gap after an install", first: 5, last: 6, applied: store.Position{Index: 3, Term: 2}, installed: true, refused: true},
		{name: "too short", first: 1, last: 5, applied: store.Position{Index: 6, Term: 2}, refused: true},
		{name: "gone", applied: store.Position{Index: 6, Term: 2}, refused: true},
		{name: "another history", first: 1, last: 5, applied: store.Position{Index: 3, Term: 1}, refused: true},
		{name: "installed over a shorter log", first: 1, last: 5, applied: store.Position{Index: 6, Term: 2}, installed: true},
		{name: "installed, log emptied", applied: store.Position{Index: 6, Term: 2}, installed: true},
		{name: "installed over a log that parted", first: 1, last: 9, applied: store.Position{Index: 6, Term: 3}, installed: true},
		{name: "installed, and entries came after", first: 7, last: 9, applied: store.Position{Index: 6, Term: 1}, installed: true, wantLog: 9},
		{name: "installed over what the log has", first: 1, last: 9, applied: store.Position{Index: 6, Term: 2}, installed: true, wantLog: 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, t.TempDir())
			defer func() { m.close(t) }()
			if c.applied.Index > 0 {
				at := configurationLog(c.applied.Index, c.applied.Term, "a")
				if c.installed {
					from := newMachine(t, t.TempDir())
					from.ApplyBatch([]*raft.Log{at})
					_, sink, err := send(t, from, m)
					if err != nil {
						t.Fatal(err)
					}
					if err := errors.Join(sink.Close(), restore(t, m, sink.ID())); err != nil {
						t.Fatal(err)
					}
					from.close(t)
				} else {
					m.ApplyBatch([]*raft.Log{at})
				}
			}
			dir := t.TempDir()
			log, err := raftlog.Open(dir, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			for index := c.first; index > 0 && index <= c.last; index++ {
				if err := log.StoreLog(&raft.Log{Index: index, Term: 2}); err != nil {
					t.Fatal(err)
				}
			}
			// Raft notes a term before it stores anything of it.
			if err := log.SetUint64(keyCurrentTerm, max(2, c.applied.Term)); err != nil {
				t.Fatal(err)
			}
			watched := &logStore{log: log, watchdog: newWatchdog(dir, func(error) {}), fatal: func(err error) { t.Error(err) }, applied: func() (uint64, uint64) { return 0, 0 }}
			defer watched.watchdog.close()
			err = reconcile(dir, watched, m.store, discard())
			if c.refused {
				if !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), dir) {
					t.Errorf("error %v", err)
				}
				return
			}
			last, lastErr := watched.LastIndex()
			if err != nil || lastErr != nil || last != c.wantLog {
				t.Errorf("log ends at %d, want %d: %v", last, c.wantLog, errors.Join(err, lastErr))
			}
			// Raft appends behind what is applied, or behind the log.
			if err := watched.StoreLog(&raft.Log{Index: max(last, c.applied.Index) + 1, Term: 4}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A log that was put in the place of another shard's is not replayed.
func TestALogOfAnotherShard(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		c.start("a")
		c.admit(c.leader(), 0, 10)
		c.stop("a")
		for name, change := range map[string]func(*store.Identification){
			"shard":   func(i *store.Identification) { i.Shard, i.Shards = i.Shard+1, i.Shards+1 },
			"cluster": func(i *store.Identification) { i.ClusterID += "x" },
		} {
			other := c.config("a")
			other.Dir, other.Create = filepath.Join(base, name), true
			change(&other.Identification)
			group, err := Open(other)
			if err != nil {
				t.Fatal(err)
			}
			if err := group.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			whole := filepath.Join(base, "whole "+name)
			copyTree(t, filepath.Join(base, "a"), whole)
			if err := replaceTree(filepath.Join(other.Dir, logName), filepath.Join(whole, logName)); err != nil {
				t.Fatal(err)
			}
			mixed := c.config("a")
			mixed.Dir, mixed.Create = whole, false
			if _, err := Open(mixed); !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), "the log is of shard") {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.start("a") // its own
		c.leader()
		c.stop("a")
	})
}

// TestTheLogsIndexIsNeverMadeAnew: it holds the term and the vote, and a replica that
// has lost those could vote a second time.
func TestTheLogsIndexIsNeverMadeAnew(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		c.start("a")
		c.admit(c.leader(), 0, 10)
		c.stop("a")
		dir := filepath.Join(base, "a")
		index := filepath.Join(dir, logName, metadb.FileName)
		late := filepath.Join(base, "late")
		copyTree(t, dir, late)

		for name, damage := range map[string]func() error{
			"gone":  func() error { return os.Remove(index) },
			"empty": func() error { return os.Truncate(index, 0) },
			"made anew": func() error {
				// As the WAL does it, and dies in between: all entries are there, and no
				// term.
				if err := os.Remove(index); err != nil {
					return err
				}
				if _, err := raftlog.Open(filepath.Join(dir, logName), testOptions()); err == nil {
					t.Error("the WAL took a segment for its own")
				}
				return nil
			},
		} {
			for _, create := range []bool{false, true} {
				if err := replaceTree(late, dir); err != nil {
					t.Fatal(err)
				}
				if err := damage(); err != nil {
					t.Fatal(err)
				}
				// The second time finds what the first has left.
				for range 2 {
					cfg := c.config("a")
					cfg.Create = create
					group, err := Open(cfg)
					if err == nil {
						t.Errorf("%s, create %v: opened", name, create)
						_ = group.Close(t.Context())
					} else if !strings.Contains(err.Error(), dir) {
						t.Errorf("%s, create %v: %v", name, create, err)
					}
				}
			}
		}
		if err := replaceTree(late, dir); err != nil {
			t.Fatal(err)
		}
		c.start("a")
		c.holds(c.leader(), 10)
		c.stop("a")
	})
}

func TestBootstrapIsTakenUpAgain(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		dir := filepath.Join(base, "a", logName)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		log, err := raftlog.Open(dir, testOptions())
		if err != nil {
			t.Fatal(err)
		}
		// The process ended between raft's two writes.
		if err := errors.Join(log.SetUint64(keyCurrentTerm, 1), log.Close()); err != nil {
			t.Fatal(err)
		}
		c.start("a")
		g := c.leader()
		c.admit(g, 0, 3)
		c.stop("a")
		// And is not done twice.
		c.voters = Voters(raft.Server{ID: "a", Address: "a"}, raft.Server{ID: "b", Address: "b"})
		c.start("a")
		if servers := c.leader().Configuration().Servers; len(servers) != 1 {
			t.Errorf("servers %v", servers)
		}
		c.stop("a")
	})
}
