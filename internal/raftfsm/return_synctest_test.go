package raftfsm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestAFollowerThatWasAwayCountsAtOnce: however long it was away, a follower gets entries as
// soon as it can be reached again. Until then a rolling restart that has seen it
// come back must not go on: the next node to go would take the majority along.
func TestAFollowerThatWasAwayCountsAtOnce(t *testing.T) {
	for _, away := range []time.Duration{time.Second, 15 * time.Second, 2 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			base := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, base, "a", "b", "c")
				c.start("a", "b", "c")
				defer c.stopAll()
				g := c.leader()
				name := c.others(g)[0]
				follower := c.groups[name]
				c.network.isolate(raft.ServerAddress(name), true)
				key := 0
				for began := time.Now(); time.Since(began) < away; key++ {
					c.admit(g, key, key+1)
					time.Sleep(max(100*time.Millisecond, away/100))
				}
				want := g.Store().Applied()
				c.network.isolate(raft.ServerAddress(name), false)
				back := time.Now()
				for follower.Store().Applied().Index < want.Index {
					if time.Since(back) > time.Minute {
						t.Fatal("it does not catch up")
					}
					time.Sleep(10 * time.Millisecond)
				}
				took := time.Since(back)
				t.Logf("caught up %v after it was back", took)
				if took > time.Second {
					t.Errorf("it took %v from its return to its catching up", took)
				}
				if g.Term() != want.Term {
					t.Errorf("its return changed the term from %d to %d", want.Term, g.Term())
				}
			})
		})
	}
}

// TestNobodyWaitsForAFollowerThatIsGone: what waits for a follower to come back ends with
// the leadership, with the follower's membership and with the replica.
func TestNobodyWaitsForAFollowerThatIsGone(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		lost := c.others(g)[0]
		c.network.isolate(raft.ServerAddress(lost), true)
		c.admit(g, 0, 20)
		time.Sleep(30 * time.Second)

		// Nothing is handed over to it, however often that is asked for.
		for range 3 {
			asked := time.Now()
			if err := g.TransferLeadership(raft.ServerID(lost)); err == nil || time.Since(asked) > 0 {
				t.Errorf("handed over to a server that is away, after %v: %v", time.Since(asked), err)
			}
			result, err := propose(t, g, Entry{Term: g.Term()})
			if err != nil || result.Stale {
				t.Errorf("a proposal after that: %+v, %v", result, err)
			}
		}

		// Removed, and added again: a second routine must not meet a first.
		if err := g.RemoveServer(raft.ServerID(lost), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		c.admit(g, 20, 30)
		time.Sleep(time.Second)
		if n := g.transport.out.held.Load(); n != 0 {
			t.Errorf("%d calls wait for a server that was removed", n)
		}
		if err := g.AddVoter(raft.ServerID(lost), raft.ServerAddress(lost), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		c.admit(g, 30, 40)
		time.Sleep(time.Second)

		// Handed over while it is away.
		var other string
		for _, name := range c.others(g) {
			if name != lost {
				other = name
			}
		}
		if err := g.TransferLeadership(raft.ServerID(other)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := g.transport.out.held.Load(); n != 0 {
			t.Errorf("%d calls wait at a replica that does not lead any more", n)
		}
		next := c.groups[other]
		c.admit(c.leader(), 40, 50)

		// Closed while it is away.
		began := time.Now()
		c.stop(other)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("closing took %v", took)
		}
		if n := next.transport.out.held.Load(); n != 0 {
			t.Errorf("%d calls wait at a replica that is closed", n)
		}
		c.network.isolate(raft.ServerAddress(lost), false)
		c.admit(c.leader(), 50, 60)
		c.start(other)
		c.agree()
	})
}
