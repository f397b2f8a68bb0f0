package client

import (
	"context"
	"sync"
	"time"
)

// renewAtLeast is the shortest time between two renewals: near the end of the longest
// time that a reservation may be held, what remains and thereby its third runs out.
const renewAtLeast = 10 * time.Millisecond

// KeepAlive renews the reservation behind the scenes, each time a third of its window
// has passed, until ctx ends, or the ownership does, or stop is called, or the client is
// closed. stop waits for the last renewal to end; calling it again does nothing.
//
// A renewal that fails is tried again for as long as the ownership can be proven. The
// reservation's context ends as soon as one says that it is lost, and at the owner's
// deadline if none succeeds until then.
//
// Renew only work that is known to go on: what hangs and is renewed keeps everybody
// else out, for up to 7 days.
//
// Call it before contexts with a timeout are made from the reservation's: from then on that has
// no Deadline, so that a timeout of the work's own ends it, however long. One that is longer than
// the window and was made before never fires, since package context leaves it to the deadline
// that is being moved.
func (r *Reservation) KeepAlive(ctx context.Context) (stop func()) {
	r.ownership.renew()
	bound, cancel := r.Within(ctx)
	ended := make(chan struct{})
	started := r.client.start(func(closing context.Context) {
		defer close(ended)
		defer cancel()
		defer context.AfterFunc(closing, cancel)()
		r.renew(bound)
	})
	if !started {
		cancel()
		close(ended)
	}
	var once sync.Once
	return func() {
		once.Do(cancel)
		<-ended
	}
}

func (r *Reservation) renew(ctx context.Context) {
	var pause pause
	for {
		// Timers stand still while the machine is suspended, so it looks at the clock in between.
		due := r.untilRenewal()
		if !rest(ctx, min(due, lookEvery)) {
			return
		}
		if due > lookEvery {
			continue
		}
		switch err := r.Extend(ctx, 0); {
		case err == nil:
			pause.next = 0
		case r.ended() != nil || !pause.rest(ctx, RetryAfter(err)):
			return
		}
	}
}

// untilRenewal is the time until a third of the window has passed.
func (r *Reservation) untilRenewal() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.renewAt-r.client.clock(), renewAtLeast)
}
