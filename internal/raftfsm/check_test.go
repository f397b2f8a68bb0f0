package raftfsm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// A replica whose state came to something else than the leader's applies nothing more.
func TestAStateThatDiffersStops(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
	m.apply(t, entryLog(t, 3, 2, Entry{Term: 2, Elapsed: time.Second, Commands: commands(reserve(0))}))
	at3 := m.checks.latest
	if at3.Index != 3 || at3.Digest == 0 {
		t.Fatalf("check %+v", at3)
	}
	wrong := func(change func(*Check)) Check {
		check := at3
		change(&check)
		return check
	}
	for i, check := range []Check{
		at3,
		wrong(func(c *Check) { c.Version++; c.Digest++ }), // another program's digest
		wrong(func(c *Check) { c.Index = 1 << 40 }),       // not known here
		wrong(func(c *Check) { c.Index += checksKept }),   // nor this, in the same place
		{},
	} {
		m.apply(t, entryLog(t, uint64(4+i), 2, Entry{Term: 2, Elapsed: time.Second, Check: check, Commands: commands(reserve(1 + i))}))
	}
	if m.checks.compared != 1 {
		t.Errorf("%d checks were compared", m.checks.compared)
	}
	before := m.hash(t)
	for index := range uint64(2) {
		entry := Entry{Term: 2, Elapsed: time.Second, Commands: commands(reserve(100))}
		if index == 0 {
			entry.Check = wrong(func(c *Check) { c.Digest++ })
		}
		response := m.ApplyBatch([]*raft.Log{entryLog(t, 20+index, 2, entry)})[0]
		if err, ok := response.(error); !ok || !errors.Is(err, ErrStateDiffers) {
			t.Errorf("response %v", response)
		}
	}
	if len(*m.fatals) != 1 || !errors.Is((*m.fatals)[0], ErrStateDiffers) {
		t.Errorf("fatal: %v", *m.fatals)
	}
	if m.hash(t) != before {
		t.Error("it has applied something")
	}
}

// Replicas compare every entry, and a state that is installed or read again at a start
// is compared from the next one on.
func TestReplicasCompareTheirStates(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.limits = smallLog
		c.start("a", "b", "c")
		defer c.stopAll()
		admit := func(from, to int) *Group {
			g := c.leader()
			for i := from; i < to; i++ {
				if _, err := propose(t, g, Entry{Term: g.Term(), Elapsed: time.Duration(i), Check: g.Check(), Commands: commands(reserve(i))}); err != nil {
					t.Fatal(err)
				}
			}
			return g
		}
		compared := func() (fewest uint64) {
			fewest = 1 << 60
			for _, g := range c.groups {
				g.fsm.checks.mu.Lock()
				fewest = min(fewest, g.fsm.checks.compared)
				g.fsm.checks.mu.Unlock()
			}
			return fewest
		}
		g := admit(0, 50)
		c.agree()
		if n := compared(); n < 49 {
			t.Errorf("%d of 50 entries were compared", n)
		}
		behind := c.others(g)[0]
		c.stop(behind)
		g = admit(50, 100)
		c.cutLogs(string(g.cfg.Self))
		c.start(behind)
		c.agree()
		admit(100, 150)
		c.agree()
		if n := compared(); n < 49 {
			t.Errorf("%d entries were compared by the one that came back", n)
		}
	})
}
