package raftfsm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Every replica counts what happens on it, and goes on telling once it is closed.
func TestNumbers(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		c.admit(g, 0, 20)
		// Far enough for the windows of all, and more of them than one entry takes.
		result, err := propose(t, g, Entry{Term: g.Term(), Elapsed: 10 * time.Minute, Reclaim: 15})
		if err != nil || result.Reclaimed != 15 {
			t.Fatalf("%+v, %v", result, err)
		}
		c.agree()
		before := make(map[string]uint64)
		for name, g := range c.groups {
			n := g.Numbers()
			before[name] = n.LeaderChanges
			first, err := g.log.FirstIndex()
			if err != nil {
				t.Fatal(err)
			}
			if want := g.raft.LastIndex() - first + 1; n.LogEntries != want || want < 20 {
				t.Errorf("%s: %d entries, want %d", name, n.LogEntries, want)
			}
			if n.Reclaimed != 15 || n.LeaderChanges == 0 || n.LogAppend.Count() == 0 {
				t.Errorf("%s: %+v", name, n)
			}
			if err := g.store.Flush(); err != nil {
				t.Fatal(err)
			}
			if n := g.Numbers(); n.StateFlush.Count() == 0 {
				t.Errorf("%s: a flush was not counted: %+v", name, n)
			}
		}

		if err := g.TransferLeadership(raft.ServerID(c.others(g)[0])); err != nil {
			t.Fatal(err)
		}
		c.admit(c.leader(), 20, 21)
		c.agree()
		for name, g := range c.groups {
			if n := g.Numbers(); n.LeaderChanges <= before[name] || n.LeaderChanges > before[name]+2 {
				t.Errorf("%s: %d changes of leader, and %d before", name, n.LeaderChanges, before[name])
			}
		}

		closed := c.groups["b"]
		c.stop("b")
		if n := closed.Numbers(); n.LogEntries != 0 || n.Reclaimed != 15 || n.StateFlush.Count() == 0 {
			t.Errorf("after it was closed: %+v", n)
		}
	})
}

// A log that is being closed is not waited for.
func TestNumbersOfALogThatIsBeingClosed(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		c.start("a")
		defer c.stopAll()
		g := c.leader()
		g.log.open.Lock()
		if n := g.Numbers(); n.LogEntries != 0 || n.LogAppend.Count() == 0 {
			t.Errorf("%+v", n)
		}
		g.log.open.Unlock()
	})
}

func TestLeadersThatWereHeardOf(t *testing.T) {
	var l leaders
	for _, heard := range []struct {
		id   raft.ServerID
		term uint64
		want uint64
	}{
		{"", 1, 0}, {"a", 2, 1}, {"a", 2, 1}, {"", 2, 1}, {"a", 2, 1}, {"b", 3, 2}, {"", 3, 2}, {"b", 5, 3},
	} {
		if l.note(heard.id, heard.term); l.heard.Load() != heard.want {
			t.Errorf("%+v: %d", heard, l.heard.Load())
		}
	}
}
