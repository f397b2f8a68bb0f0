package client

import (
	"context"
	"sync"
	"time"
)

// lookEvery is the longest time between two looks at the clock while a reservation is
// held. Go's timers stand still while the machine is suspended, and the clock of
// ownership does not: after a wake the context's Done is at most this late, and its Err
// is right at once.
const lookEvery = time.Second

// ownership is the context of a reservation. It ends, once and for all, at the owner's
// deadline, or when something is found out that ends it earlier.
//
// Why it never says "yes" too long: the deadline only moves while the ownership has not
// ended (extend), each move is reckoned from when the try that was answered was sent, and
// every Err and Deadline reads the clock itself.
//
// It is a wrapper around one of context's own cancellable contexts, so that contexts
// made from it end with it without a goroutine, and context.Cause works.
type ownership struct {
	context.Context // carries the values of Reserve's context; cancelled by end
	cancel          context.CancelCauseFunc
	reservation     *Reservation
	clock           clock

	mu       sync.Mutex // held for a moment only; cancel, which calls nothing of ours, included
	deadline time.Duration
	renewed  bool // it is, or was, moved behind the scenes
	timer    *time.Timer
}

// reservationKey is found in every context that was made from the reservation's, however
// many others it was made from.
type reservationKey struct{ of *Reservation }

// begin starts an ownership that ends at the deadline, which is after now.
func begin(ctx context.Context, clock clock, r *Reservation, now, deadline time.Duration) *ownership {
	o := &ownership{reservation: r, clock: clock, deadline: deadline}
	o.Context, o.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = time.AfterFunc(o.next(now), o.look)
	return o
}

// next is when to look at the clock again; o.mu is held.
func (o *ownership) next(now time.Duration) time.Duration {
	return max(0, min(o.deadline-now, lookEvery))
}

// look ends what is over, and otherwise looks again later.
func (o *ownership) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over() {
		o.timer.Reset(o.next(o.clock()))
	}
}

// over ends what is over, and reports whether the ownership has ended; o.mu is held.
func (o *ownership) over() bool {
	if o.Context.Err() == nil && o.clock() >= o.deadline {
		o.cancel(ErrLapsed)
		o.timer.Stop()
	}
	return o.Context.Err() != nil
}

// end ends the ownership; the first cause stays.
func (o *ownership) end(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over() {
		o.cancel(cause)
		o.timer.Stop()
	}
}

// extend moves the deadline, never backwards, and reports whether the ownership goes
// on: one that has ended, or whose deadline has passed meanwhile, does not.
func (o *ownership) extend(deadline time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over() {
		return false
	}
	o.deadline = max(o.deadline, deadline)
	o.timer.Reset(o.next(o.clock()))
	return true
}

// remaining is the time until the deadline; 0 once it is over.
func (o *ownership) remaining() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over() {
		return 0
	}
	return max(0, o.deadline-o.clock())
}

// renew keeps the deadline to itself from now on. Whoever makes a context with a later one from this
// gets none of its own from package context, which takes this one to come first.
func (o *ownership) renew() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.renewed = true
}

// Deadline implements context.Context. It moves with every Extend, and is not told of what is
// renewed behind the scenes.
func (o *ownership) Deadline() (time.Time, bool) {
	o.mu.Lock()
	renewed := o.renewed
	o.mu.Unlock()
	if renewed {
		return time.Time{}, false
	}
	return time.Now().Add(o.remaining()), true
}

// Err implements context.Context: context.DeadlineExceeded at the owner's deadline,
// context.Canceled where it ended earlier. It reads the clock by itself.
func (o *ownership) Err() error {
	o.mu.Lock()
	o.over()
	o.mu.Unlock()
	return errOf(o.Context)
}

// errOf is the error of a context that ends with an ownership: at the owner's deadline it is that of
// a deadline, whoever looks first.
func errOf(ctx context.Context) error {
	err := ctx.Err()
	// The cause is looked at later: it may end right now.
	if err != nil && context.Cause(ctx) == ErrLapsed { //nolint:errorlint // the very cause that over gives
		return context.DeadlineExceeded
	}
	return err
}

// Value implements context.Context.
func (o *ownership) Value(key any) any {
	if key == (reservationKey{o.reservation}) {
		return true
	}
	return o.Context.Value(key)
}

// within is a context of the caller's that ends with an ownership too.
type within struct {
	context.Context
	ownership *ownership
	cancel    context.CancelCauseFunc
}

// bind returns the caller's context, ending with the ownership too, and what gives it up.
func (o *ownership) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(o.Context, func() { cancel(context.Cause(o.Context)) })
	w := &within{Context: bound, ownership: o, cancel: cancel}
	return w, func() {
		stop()
		cancel(context.Canceled)
	}
}

// Deadline implements context.Context.
func (w *within) Deadline() (time.Time, bool) {
	callers, ok := w.Context.Deadline()
	if own, told := w.ownership.Deadline(); told && (!ok || own.Before(callers)) {
		return own, true
	}
	return callers, ok
}

// Err implements context.Context. It reads the clock by itself.
func (w *within) Err() error {
	if w.Context.Err() == nil && w.ownership.Err() != nil {
		w.cancel(context.Cause(w.ownership.Context)) // it would be, in a moment
	}
	return errOf(w.Context)
}

// Value implements context.Context.
func (w *within) Value(key any) any {
	if key == (reservationKey{w.ownership.reservation}) {
		return true
	}
	return w.Context.Value(key)
}
