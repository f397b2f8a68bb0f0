package actor

import (
	"container/heap"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/store"
)

// parked are the calls that wait for another attempt to end. A parked call costs its
// memory and nothing else.
type parked struct {
	queues  map[admission.Identity][]*call // first come, first served
	touched map[admission.Identity]bool    // those that are to be looked at
	sleep   sleepers
	tickets uint64
}

// park lets a call wait: until its record changes, its record's deadline, or the end
// of its wait. One that has waited before takes its old place.
func (a *Actor) park(c *call, pending admission.Answer, now time.Time) {
	id, _ := c.identity()
	queue := a.parked.queues[id]
	if c.ticket == 0 {
		switch {
		case len(queue) >= a.cfg.WaitersPerKeyMax:
			c.fail(&FullError{What: ErrKeyWaitersFull, Most: a.cfg.WaitersPerKeyMax})
			return
		case len(a.parked.sleep) >= a.cfg.WaitersMax:
			c.fail(&FullError{What: ErrWaitersFull, Most: a.cfg.WaitersMax})
			return
		}
		a.parked.tickets++
		c.ticket = a.parked.tickets
	}
	at := len(queue)
	for at > 0 && queue[at-1].ticket > c.ticket {
		at--
	}
	queue = append(queue, nil)
	copy(queue[at+1:], queue[at:])
	queue[at] = c
	a.parked.queues[id] = queue
	c.wakeAt = a.wakeAt(c, pending, now)
	heap.Push(&a.parked.sleep, c)
	a.waiting.Store(int64(len(a.parked.sleep)))
}

// wakeAt is when a waiter is looked at even if nothing happens.
func (a *Actor) wakeAt(c *call, pending admission.Answer, now time.Time) time.Time {
	at := c.mayWaitUntil()
	if lapse := now.Add(pending.Deadline.Sub(a.lead.live(now))); lapse.Before(at) {
		at = lapse
	}
	return at
}

// unpark takes a call out of its queue.
func (a *Actor) unpark(c *call) {
	id, _ := c.identity()
	queue := a.parked.queues[id]
	for i, other := range queue {
		if other == c {
			queue = append(queue[:i], queue[i+1:]...)
			break
		}
	}
	if a.parked.queues[id] = queue; len(queue) == 0 {
		delete(a.parked.queues, id)
	}
	heap.Remove(&a.parked.sleep, c.index)
	a.waiting.Store(int64(len(a.parked.sleep)))
}

// touch notes that the waiters for the record of a call are to be looked at. They are
//
//   - when a command for it leaves an entry, whatever becomes of either: the record may have
//     changed, and a waiter that had its turn leaves that to the next in the queue;
//   - when a waiter leaves the queue, or its record's deadline comes: the first in the queue is
//     the one that sleeps until the deadline that there is now.
//
// A look that finds nothing changed costs no more than that. A call that is about no record has
// no waiters.
func (a *Actor) touch(c *call) {
	id, _ := c.identity()
	if _, some := a.parked.queues[id]; some && !a.parked.touched[id] {
		a.parked.touched[id] = true
		a.dirty = append(a.dirty, id)
	}
}

// forgetDeserters drops the waiters whose callers have gone.
func (a *Actor) forgetDeserters() {
	var gone []*call
	for _, c := range a.parked.sleep {
		if c.gone.Load() {
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		a.unpark(c)
		a.touch(c)
	}
}

// wakeSleepers takes out the waiters whose wait is over, to be decided a last time,
// and has the others looked at whose record's deadline has come.
func (a *Actor) wakeSleepers(now time.Time) {
	for len(a.parked.sleep) > 0 && !now.Before(a.parked.sleep[0].wakeAt) {
		c := a.parked.sleep[0]
		if c.waits(now) {
			// Asleep until its own end; what the look finds may wake it before.
			c.wakeAt = c.mayWaitUntil()
			heap.Fix(&a.parked.sleep, c.index)
		} else {
			a.unpark(c)
			a.again = append(a.again, c)
		}
		a.touch(c)
	}
}

// wakeWaiters decides the waiters of the records that may have changed, in their
// order, as far as can be done without the log, and at most one through the log: what
// becomes of that one decides about the others. It stops where the open entry is full,
// and reports whether it has looked at any.
func (a *Actor) wakeWaiters(tx *store.Tx, at moment) (some bool) {
	for len(a.dirty) > 0 && !a.open.full {
		id := a.dirty[0]
		a.dirty = a.dirty[1:]
		delete(a.parked.touched, id)
		for len(a.parked.queues[id]) > 0 {
			c := a.parked.queues[id][0]
			a.unpark(c)
			some = true
			if a.decide(tx, c, at) {
				break // still pending, or on its way through the log
			}
		}
	}
	return some
}

// next is when the first sleeper is due.
func (p *parked) next() time.Time {
	if len(p.sleep) == 0 {
		return time.Time{}
	}
	return p.sleep[0].wakeAt
}

// clear empties the queues and returns who was in them.
func (p *parked) clear() []*call {
	calls := []*call(p.sleep)
	for _, c := range calls {
		c.index = -1
	}
	p.sleep = nil
	clear(p.queues)
	clear(p.touched)
	return calls
}

// sleepers is a heap of calls by wakeAt.
type sleepers []*call

func (s sleepers) Len() int           { return len(s) }
func (s sleepers) Less(i, j int) bool { return s[i].wakeAt.Before(s[j].wakeAt) }
func (s sleepers) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s *sleepers) Push(x any) {
	c := x.(*call) //nolint:errcheck // what heap.Push was given
	c.index = len(*s)
	*s = append(*s, c)
}
func (s *sleepers) Pop() any {
	last := len(*s) - 1
	c := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	c.index = -1
	return c
}
