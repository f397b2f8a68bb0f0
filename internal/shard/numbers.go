package shard

import (
	"time"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// Numbers is what a node can tell of one shard in numbers, for metrics.
type Numbers struct {
	Status
	State   store.Stats
	Replica raftfsm.Numbers
	Actor   actor.Counts
	// Overdue is how many records are due by the shard's clock and not written down yet,
	// up to [store.OverdueMax], and OverdueFor how long the first of them has been.
	Overdue    int
	OverdueFor time.Duration
}

// Numbers returns them. The shard's actor is not asked, so it goes on meanwhile; an update
// of the state waits for less than a tenth of a millisecond. What it may wait for itself
// is such an update: as long as a disk takes to read a page. It may be called while the
// replica is closed and after that.
func (r *Replica) Numbers() Numbers {
	n := Numbers{
		Status:  r.Status(),
		State:   r.group.Store().Stats(),
		Replica: r.group.Numbers(),
		Actor:   r.actor.Counts(),
	}
	n.Overdue, n.OverdueFor = r.group.Store().Overdue()
	return n
}
