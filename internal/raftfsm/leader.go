package raftfsm

import (
	"sync"

	"github.com/hashicorp/raft"
)

// leaderChange is a signal to everybody who waits for one: a channel that is closed.
type leaderChange struct {
	mu      sync.Mutex
	changed chan struct{}
}

func (l *leaderChange) wait() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *leaderChange) broadcast() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// LeaderChanged returns a channel that is closed when [Group.Leader] may say something
// else than it did before this call. It is not closed with the group.
func (g *Group) LeaderChanged() <-chan struct{} { return g.leader.wait() }

// watchLeader passes on that raft has learnt of another leader, or lost it. Raft drops
// an observation that finds the channel full: then one is there that is told later.
func (g *Group) watchLeader() {
	observations := make(chan raft.Observation, 1)
	observer := raft.NewObserver(observations, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	g.raft.RegisterObserver(observer)
	defer g.raft.DeregisterObserver(observer)
	g.tellLeader() // what was learnt before
	for {
		select {
		case <-observations:
			g.tellLeader()
		case <-g.closing:
			return
		}
	}
}

// tellLeader counts the present leader, and tells who waits for a change.
func (g *Group) tellLeader() {
	id, _ := g.Leader()
	g.leaders.note(id, g.Term())
	g.leader.broadcast()
}
