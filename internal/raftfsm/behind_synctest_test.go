package raftfsm

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// cutLog has lost what was cut off at once. The WAL itself finds it for as long as it lies in
// the segment that is written to, which tests do not fill.
type cutLog struct {
	durableLog
	more atomic.Int64 // bytes that it takes besides
}

func (l *cutLog) Bytes() int64 { return l.durableLog.Bytes() + l.more.Load() }

func (l *cutLog) GetLog(index uint64, log *raft.Log) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if index < first {
		return raft.ErrLogNotFound
	}
	return l.durableLog.GetLog(index, log)
}

func openCutLog(dir string, options raftlog.Options) (durableLog, error) {
	log, err := openLog(dir, options)
	return &cutLog{durableLog: log}, err
}

// A follower that is sent the state gets what comes after it by the log, however long that
// takes and however much that is: otherwise it would be sent one state after the other.
func TestAFollowerIsBroughtUpWhileTheLeaderGoesOn(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.limits, c.openLog = smallLog, openCutLog
		var sent atomic.Int64
		c.spaces = map[string]*store.Space{"c": store.NewSpace(func() (int64, error) {
			sent.Add(1)
			time.Sleep(5 * time.Second) // a large state takes as long to be sent
			return 1 << 40, nil
		}, 0)}
		c.start("a", "b")
		defer c.stopAll()
		c.admit(c.leader(), 0, 60)
		g := c.cutLogs("a", "b")
		c.start("c")
		next := 60
		for range 60 {
			c.admit(g, next, next+10)
			next += 10
			if err := g.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		applied, want := c.groups["c"].Store().Applied().Index, g.Store().Applied().Index
		if n := sent.Load(); n != 1 || applied+10 < want {
			t.Errorf("it was sent %d states in a minute, and has applied %d of %d entries", n, applied, want)
		}
	})
}

// What a follower lacks is kept as long as it answers and there is room.
func TestWhatAFollowerLacksIsKept(t *testing.T) {
	for name, change := range map[string]func(c *cluster, g *Group, free *atomic.Int64){
		"the follower is gone":     func(c *cluster, _ *Group, _ *atomic.Int64) { c.stop("c") },
		"the log is too large":     func(_ *cluster, g *Group, _ *atomic.Int64) { g.log.log.(*cutLog).more.Store(1 << 30) },
		"the disk is short":        func(_ *cluster, _ *Group, free *atomic.Int64) { free.Store(0) },
		"the leader leads no more": func(c *cluster, g *Group, _ *atomic.Int64) { c.stop(c.others(g)...) },
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, base, "a", "b", "c")
				c.limits, c.openLog = smallLog, openCutLog
				var free atomic.Int64
				free.Store(1 << 40)
				disk := store.NewSpace(func() (int64, error) { return free.Load(), nil }, 1<<20)
				full := store.NewSpace(func() (int64, error) { return 0, nil }, 0) // it takes no state
				c.spaces = map[string]*store.Space{"a": disk, "b": disk, "c": full}
				c.start("a", "b")
				defer c.stopAll()
				c.admit(c.leader(), 0, 60)
				g := c.cutLogs("a", "b")
				c.start("c")
				c.admit(g, 60, 120)
				time.Sleep(time.Minute)
				begins := func() uint64 {
					t.Helper()
					if err := g.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
						t.Fatal(err)
					}
					first, err := g.log.FirstIndex()
					if err != nil {
						t.Fatal(err)
					}
					return first
				}
				before := begins()
				c.admit(g, 120, 180)
				if again := begins(); again != before {
					t.Fatalf("the log was cut from %d to %d", before, again)
				}
				c.admit(g, 180, 190)
				change(c, g, &free)
				time.Sleep(2 * DefaultTiming().Election)
				if again := begins(); again == before {
					t.Errorf("it still begins at %d", again)
				}
			})
		})
	}
}
