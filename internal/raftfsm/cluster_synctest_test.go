package raftfsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// cluster is a group of replicas with real files, in virtual time.
type cluster struct {
	t       *testing.T
	base    string
	network *network
	limits  logLimits
	timing  Timing
	voters  *raft.Configuration
	groups  map[string]*Group
	// flushInterval of the states; 0 is the default.
	flushInterval time.Duration
	// spaces are what the replicas' disks have; one without has as much as it needs.
	spaces map[string]*store.Space
	// openLog opens the logs; nil is the program's own way.
	openLog func(dir string, options raftlog.Options) (durableLog, error)
	// fatal is told what is fatal; nil fails the test.
	fatal func(name string, err error)
}

func newCluster(t *testing.T, base string, names ...string) *cluster {
	c := &cluster{t: t, base: base, network: newNetwork(), groups: make(map[string]*Group)}
	var servers []raft.Server
	for _, name := range names {
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	c.voters = Voters(servers...)
	return c
}

func (c *cluster) config(name string) GroupConfig {
	state := storeConfig("")
	state.FlushInterval, state.Space = c.flushInterval, c.spaces[name]
	fatal := c.fatal
	if fatal == nil {
		fatal = func(name string, err error) { c.t.Errorf("%s: fatal: %v", name, err) }
	}
	return GroupConfig{
		Dir: filepath.Join(c.base, name), Identification: testIdentification, Create: true,
		Self: raft.ServerID(name), Layer: c.network.layer(raft.ServerAddress(name)), Timing: c.timing,
		Logger: discard(), Fatal: func(err error) { fatal(name, err) },
		Store: state, limits: c.limits, openLog: c.openLog,
	}
}

// start opens a replica; the first of the cluster bootstraps it.
func (c *cluster) start(names ...string) {
	c.t.Helper()
	for _, name := range names {
		cfg := c.config(name)
		if name == string(c.voters.Servers[0].ID) {
			cfg.Bootstrap = c.voters
		}
		group, err := Open(cfg)
		if err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
		c.groups[name] = group
	}
}

func (c *cluster) stop(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.groups[name].Close(context.Background()); err != nil {
			c.t.Errorf("closing %s: %v", name, err)
		}
		delete(c.groups, name)
	}
}

func (c *cluster) stopAll() {
	for name := range c.groups {
		c.stop(name)
	}
}

// leader waits for one that has started its term: its LeaderStart is applied.
func (c *cluster) leader() *Group {
	c.t.Helper()
	for range 600 {
		for _, g := range c.groups {
			if !g.IsLeader() {
				continue
			}
			term := g.Term()
			g.AnswerTerm(term)
			if result, err := propose(c.t, g, Entry{Term: term, LeaderStart: true}); err == nil && !result.Stale {
				return g
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Fatal("no leader in a minute")
	return nil
}

// others are the names of the running replicas but this one.
func (c *cluster) others(g *Group) (names []string) {
	for name, other := range c.groups {
		if other != g {
			names = append(names, name)
		}
	}
	return names
}

func propose(t *testing.T, g *Group, e Entry) (*Result, error) {
	t.Helper()
	encoded, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	future := g.Propose(encoded, time.Second)
	if err := future.Error(); err != nil {
		return nil, err
	}
	result, ok := future.Response().(*Result)
	if !ok || result == nil {
		t.Fatalf("response %v", future.Response())
	}
	return result, nil
}

// admit proposes a Reserve of each key in an entry of its own.
func (c *cluster) admit(g *Group, from, to int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		result, err := propose(c.t, g, Entry{Term: g.Term(), Elapsed: time.Duration(i), Commands: commands(reserve(i))})
		if err != nil || result.Stale || result.Answers[0].Outcome != admission.OutcomeGranted {
			c.t.Fatalf("key %d: %+v, %v", i, result, err)
		}
	}
}

// agree waits until all running replicas have applied as much, and compares.
func (c *cluster) agree() {
	c.t.Helper()
	for range 600 {
		var positions []store.Position
		for _, g := range c.groups {
			positions = append(positions, g.Store().Applied())
		}
		same := true
		for _, position := range positions {
			same = same && position == positions[0]
		}
		if same {
			var want [32]byte
			first := true
			for name, g := range c.groups {
				hash, _, err := g.Store().StateHash()
				if err != nil {
					c.t.Fatal(err)
				}
				if !first && hash != want {
					c.t.Fatalf("%s has another state", name)
				}
				want, first = hash, false
			}
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	for name, g := range c.groups {
		c.t.Errorf("%s has applied %v", name, g.Store().Applied())
	}
	c.t.Fatal("the replicas do not catch up")
}

func TestOneReplicaAloneLeadsAndRestarts(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		for round := range 3 {
			c.start("a")
			g := c.leader()
			if leads := <-g.Leadership(); !leads {
				t.Error("not told of its leadership")
			}
			if id, _ := g.Leader(); id != "a" || g.Followers() != nil {
				t.Errorf("leader %q, followers %v", id, g.Followers())
			}
			since := time.Now()
			if !g.Confirmed(g.Term(), since) || g.Confirmed(g.Term()-1, since) {
				t.Error("confirmed: a single voter is while it leads, in its term")
			}
			c.admit(g, round*10, round*10+10)
			if records := g.Store().Stats().Records[admission.StatePending]; records != uint64(round*10+10) {
				t.Errorf("round %d: %d records", round, records)
			}
			applied, commit, last := g.Indexes()
			if applied == 0 || applied > commit || commit > last {
				t.Errorf("applied %d, commit %d, last %d", applied, commit, last)
			}
			c.stop("a")
		}
	})
}

func TestThreeReplicasAgreeThroughChangesOfLeader(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		c.admit(g, 0, 20)
		c.agree()
		for _, follower := range g.Followers() {
			if !follower.Voter || follower.MatchIndex != g.raft.LastIndex() || time.Since(follower.LastContact) > time.Second {
				t.Errorf("follower %+v", follower)
			}
		}

		// A handover.
		target := c.others(g)[0]
		if err := g.TransferLeadership(raft.ServerID(target)); err != nil {
			t.Fatal(err)
		}
		next := c.leader()
		if string(next.cfg.Self) != target {
			t.Errorf("%s leads, not %s", next.cfg.Self, target)
		}
		c.admit(next, 20, 40)

		// A crash, as the others see it.
		stopped := string(next.cfg.Self)
		died := time.Now()
		c.stop(stopped)
		next = c.leader()
		if took := time.Since(died); took > 3*time.Second {
			t.Errorf("%v without a leader", took)
		}
		c.admit(next, 40, 60)
		c.start(stopped)
		c.agree()

		// One more, whose place is in the configuration only from now on.
		c.start("d")
		if err := next.AddVoter("d", "d", time.Second); err != nil {
			t.Fatal(err)
		}
		c.admit(next, 60, 70)
		c.agree()
		if err := next.RemoveServer("d", time.Second); err != nil {
			t.Fatal(err)
		}
		c.stop("d")
		if n := len(next.Followers()); n != 2 {
			t.Errorf("%d followers", n)
		}
		if err := next.TransferLeadership("d"); err == nil {
			t.Error("handed over to a server that is gone")
		}
	})
}

// TestConfirmed is about the leader that does not know it has been deposed.
func TestConfirmed(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		old := c.leader()
		term := old.Term()

		// What was sent before the question does not answer it.
		since := time.Now()
		if old.Confirmed(term, since) {
			t.Error("confirmed before anything was sent")
		}
		select {
		case <-old.Acknowledged():
		default:
		}
		time.Sleep(time.Microsecond)
		old.Kick()
		<-old.Acknowledged()
		synctest.Wait()
		if !old.Confirmed(term, since) {
			t.Error("not confirmed by the answers to a kick")
		}
		if took := time.Since(since); took > time.Millisecond {
			t.Errorf("a kick took %v", took)
		}
		// Nobody is woken by heartbeats while nobody waits for an answer.
		select {
		case <-old.Acknowledged():
		default:
		}
		time.Sleep(10 * old.cfg.Timing.Heartbeat)
		synctest.Wait()
		select {
		case <-old.Acknowledged():
			t.Error("signalled although nothing was to be confirmed")
		default:
		}
		if old.Confirmed(term+1, since) || old.Confirmed(term-1, since) {
			t.Error("confirmed in another term")
		}
		// One follower is enough.
		lost := c.others(old)[0]
		c.network.isolate(raft.ServerAddress(lost), true)
		since = time.Now()
		time.Sleep(300 * time.Millisecond)
		if !old.Confirmed(term, since) {
			t.Error("not confirmed by one follower of two")
		}
		c.network.isolate(raft.ServerAddress(lost), false)
		time.Sleep(5 * time.Second)
		old = c.leader()
		term = old.Term()

		// Cut off, it is never confirmed again, however long it believes itself.
		c.network.isolate(raft.ServerAddress(old.cfg.Self), true)
		cut := time.Now()
		for old.IsLeader() {
			old.Kick()
			if old.Confirmed(term, cut) {
				t.Fatal("confirmed while cut off")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if lasted := time.Since(cut); lasted > 2*time.Second {
			t.Errorf("it took itself for the leader for %v", lasted)
		}
		name := string(old.cfg.Self)
		delete(c.groups, name)
		next := c.leader()
		c.admit(next, 0, 5)
		c.network.isolate(raft.ServerAddress(name), false)
		c.groups[name] = old
		if old.Confirmed(term, cut) {
			t.Error("confirmed in a term that is over")
		}
		c.agree()
	})
}

// TestProposalsOfADeposedLeader checks what their futures say.
func TestProposalsOfADeposedLeader(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		old := c.leader()
		c.network.isolate(raft.ServerAddress(old.cfg.Self), true)
		_, err := propose(t, old, Entry{Term: old.Term(), Commands: commands(reserve(0))})
		if Classify(err) != Unknown {
			t.Errorf("appended without a majority: %v", err)
		}
		_, err = propose(t, old, Entry{Term: old.Term(), Commands: commands(reserve(0))})
		if Classify(err) != NotApplied {
			t.Errorf("proposed to a follower: %v", err)
		}
		c.network.isolate(raft.ServerAddress(old.cfg.Self), false)
		c.admit(c.leader(), 0, 1) // it was not applied, as it happens
		c.agree()
	})
}

// smallLog makes snapshots necessary soon.
var smallLog = logLimits{snapshotBytes: 1 << 10, snapshotEntries: 1 << 30, bytesMax: 24 << 20, trailing: 16, trailingMin: 4}

// cutLogs cuts the replicas' logs and restarts them: until then the WAL still finds
// entries that were cut from the segment that it writes to.
func (c *cluster) cutLogs(names ...string) *Group {
	c.t.Helper()
	c.agree()
	time.Sleep(DefaultTiming().Election) // nothing is kept for who has been gone for as long
	for _, name := range names {
		g := c.groups[name]
		before, err := g.log.FirstIndex()
		if err != nil {
			c.t.Fatal(err)
		}
		if err := g.raft.Snapshot().Error(); err != nil {
			c.t.Fatal(err)
		}
		if first, err := g.log.FirstIndex(); err != nil || first <= before {
			c.t.Fatalf("the log of %s begins at %d: %v", name, first, err)
		}
	}
	c.stop(names...)
	c.start(names...)
	return c.leader()
}

func TestASnapshotBringsUpAnEmptyFollowerAndOneFarBehind(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.limits = smallLog
		c.start("a", "b")
		defer c.stopAll()
		c.admit(c.leader(), 0, 60)
		g := c.cutLogs("a", "b")
		c.start("c")
		c.agree()
		installed := c.groups["c"].Store().InstalledAt()
		if installed < 60 {
			t.Errorf("installed at %d", installed)
		}

		// It goes on by the log, and restarts from there.
		c.admit(g, 60, 70)
		c.agree()
		c.stop("c")
		c.start("c")
		c.agree()
		if again := c.groups["c"].Store().InstalledAt(); again != installed {
			t.Errorf("installed at %d after a restart, not %d", again, installed)
		}

		// Far behind, with a state and a log of its own.
		c.stop("c")
		c.admit(g, 70, 140)
		g = c.cutLogs("a", "b")
		c.start("c")
		c.agree()
		if again := c.groups["c"].Store().InstalledAt(); again <= installed {
			t.Errorf("installed at %d, not beyond %d", again, installed)
		}
		if left := files(t, filepath.Join(base, "c", snapshotName)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		// And it can lead.
		if err := g.TransferLeadership("c"); err != nil {
			t.Fatal(err)
		}
		c.admit(c.leader(), 140, 150)
		c.agree()
	})
}

// Where a state has no room, neither at the leader for the copy nor at the follower for what it
// is sent, all others go on, and the follower gets it once there is.
func TestASnapshotWaitsForRoom(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.limits = smallLog
		free, asked := make(map[string]*atomic.Int64), new(atomic.Int64)
		c.spaces = make(map[string]*store.Space)
		for _, name := range []string{"a", "b", "c"} {
			free[name] = new(atomic.Int64)
			c.spaces[name] = store.NewSpace(func() (int64, error) {
				asked.Add(1)
				return free[name].Load(), nil
			}, 1<<20)
		}
		c.start("a", "b")
		defer c.stopAll()
		c.admit(c.leader(), 0, 60)
		g := c.cutLogs("a", "b")
		c.start("c")
		refused := func(first int) {
			t.Helper()
			before := asked.Load()
			c.admit(g, first, first+10)
			time.Sleep(time.Minute)
			if asked.Load() == before {
				t.Error("it was not tried again")
			}
			if installed := c.groups["c"].Store().InstalledAt(); installed != 0 || !g.IsLeader() {
				t.Errorf("installed at %d, leads %v", installed, g.IsLeader())
			}
			for name := range free {
				if left, _ := filepath.Glob(filepath.Join(base, name, "*", incomingPrefix+"*")); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				if left, _ := filepath.Glob(filepath.Join(base, name, stateName+".*")); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
		}
		refused(60) // by the leader
		for _, name := range []string{"a", "b"} {
			free[name].Store(1 << 30)
		}
		refused(70) // by the follower
		free["c"].Store(1 << 30)
		c.agree()
		if c.groups["c"].Store().InstalledAt() == 0 {
			t.Error("it was not needed")
		}
	})
}

func TestTheLogIsCutByBytes(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		c.limits = logLimits{snapshotBytes: 8 << 20, snapshotEntries: 1 << 30, bytesMax: 32 << 20, trailing: 10_000, trailingMin: 4}
		c.start("a")
		defer c.stopAll()
		g := c.leader()
		large := 0
		for i := range 100 {
			granted, err := propose(t, g, Entry{Term: g.Term(), Commands: commands(reserve(i))})
			if err != nil {
				t.Fatal(err)
			}
			done := commit(i, granted.Answers[0].Token)
			done.Response.Stored = bytes.Repeat(fmt.Appendf(nil, "%8d", i), 1<<17)
			if _, err := propose(t, g, Entry{Term: g.Term(), Commands: commands(done)}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			large = max(large, int(g.LogBytes()>>20))
		}
		if large > 64 {
			t.Errorf("100 MiB made a log of %d MiB", large)
		}
		if trailing := g.raft.ReloadableConfig(); trailing.TrailingLogs >= 10_000 || trailing.HeartbeatTimeout != DefaultTiming().Heartbeat {
			t.Errorf("raft's settings: %+v", trailing)
		}
		first, err := g.log.FirstIndex()
		if err != nil || first < 100 {
			t.Errorf("the log begins at %d: %v", first, err)
		}
	})
}

// TestAnIdleGroupIsQuiet lets three replicas idle.
func TestAnIdleGroupIsQuiet(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		term := g.Term()
		_, _, last := g.Indexes()
		time.Sleep(10 * time.Minute)
		if g.Term() != term || !g.IsLeader() {
			t.Errorf("term %d became %d", term, g.Term())
		}
		if _, _, now := g.Indexes(); now != last {
			t.Errorf("the log grew from %d to %d", last, now)
		}
	})
}

// TestCloseLetsChangesEnd closes a leader while it hands over, many times.
func TestCloseLetsChangesEnd(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		for round := range 6 {
			g := c.leader()
			name := string(g.cfg.Self)
			ended := make(chan error, 2)
			go func() { ended <- g.TransferLeadership("") }()
			go func() { ended <- g.AddVoter("d", "d", time.Second) }()
			time.Sleep(time.Duration(round) * 10 * time.Microsecond)
			c.stop(name)
			for range 2 {
				<-ended // with or without an error, but it ends
			}
			if err := g.TransferLeadership(""); !errors.Is(err, raft.ErrRaftShutdown) {
				t.Errorf("after the end: %v", err)
			}
			c.start(name)
			next := c.leader()
			if err := next.RemoveServer("d", time.Second); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A copy of a large state takes its time, and so does waiting for that of another shard: who
// stops waits for neither.
func TestCloseDoesNotWaitForACopy(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.limits = smallLog
		disk := store.NewSpace(func() (int64, error) { return 1 << 40, nil }, 0)
		c.spaces = map[string]*store.Space{"a": disk, "b": disk}
		c.start("a", "b")
		defer c.stopAll()
		c.admit(c.leader(), 0, 60)
		g := c.cutLogs("a", "b")

		cfg := storeConfig(filepath.Join(base, "another"))
		cfg.Space = disk
		const takes = time.Hour
		cfg.CommitObserver.Before = func() { time.Sleep(takes) }
		another, err := store.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer another.Close()
		if _, err := another.Update(store.Position{Index: 1, Term: 1}, func(*store.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		copied := make(chan error)
		go func() {
			made, err := another.Copy()
			if err == nil {
				err = made.Close()
			}
			copied <- err
		}()
		synctest.Wait()

		c.start("c") // it needs a copy of this state
		time.Sleep(time.Second)
		begun := time.Now()
		c.stop(string(g.cfg.Self))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if err := <-copied; err != nil {
			t.Error(err)
		}
	})
}
