package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

// Names of the calls, as errors carry them.
const (
	callReserve = "Reserve"
	callCommit  = "Commit"
	callRelease = "Release"
	callExtend  = "Extend"
	callGet     = "Get"
	callResolve = "Resolve"
)

// Backoff between rounds over the nodes, before jitter.
const (
	backoffFirst = 25 * time.Millisecond
	backoffMax   = time.Second
)

// pause is how long to rest before the next round; it doubles.
type pause struct{ next time.Duration }

// rest waits for the pause, or for as long as the coordinator said, and reports whether
// there is time left after it. Where the time would be over first it does not wait.
func (p *pause) rest(ctx context.Context, told time.Duration) bool {
	return p.restUntil(ctx, time.Time{}, told)
}

// restUntil does so with one more time that may be over; zero for none.
func (p *pause) restUntil(ctx context.Context, until time.Time, told time.Duration) bool {
	if p.next == 0 {
		p.next = backoffFirst
	}
	// Callers that failed together do not come back together.
	d := told + p.next/2 + rand.N(p.next/2+1) //nolint:gosec // jitter need not be unguessable
	p.next = min(2*p.next, backoffMax)
	if !until.IsZero() && time.Until(until) <= d {
		return false
	}
	return rest(ctx, d)
}

func rest(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// operation is one call with all its tries.
type operation struct {
	name     string
	identity Identity
	reads    bool          // it changes nothing
	owns     bool          // its answer is a window that begins when it was sent
	bound    time.Duration // for all tries together
	try      time.Duration // for one of them; 0: as the client says
	// hold is how long the next try asks to be held back, on top of its own time.
	// Nil: not at all.
	hold func() time.Duration
}

// answer is what the try that was answered came to.
type answer[A any] struct {
	message A
	sent    time.Duration // when that very try was sent, or a little earlier; only of what owns
}

// invoke makes one call: the very same request, to one node after the other, until one
// has an answer. What is worth another try is decided in failure; a request carries its
// attempt id or token, so that sending it again is safe. The error is an *Error.
func invoke[A any](ctx context.Context, c *Client, op operation,
	send func(context.Context, *sharing) delivery[A],
) (answer[A], error) {
	// One timer for each try is enough: the time of all of them is looked at in between.
	until, callers := time.Now().Add(op.bound), false
	if deadline, ok := ctx.Deadline(); ok && !until.Before(deadline) {
		until, callers = deadline, true
	}
	ended := func() bool { return ctx.Err() != nil || !time.Now().Before(until) }
	var (
		last  *Error
		doubt bool // an earlier try may have been carried out
		asked = map[*clusterNode]bool{}
		pause pause
		idle  bool // it has rested since the last try
	)
	// over is what to say when no try is left.
	over := func() (answer[A], error) {
		e := &Error{Call: op.name, Code: codes.Unavailable, Message: "no node was asked"}
		switch {
		case last != nil:
			*e = *last
		case ended():
			*e = Error{Call: op.name, Code: codes.DeadlineExceeded, Message: "the time for the call was over before a node was asked"}
			if errors.Is(ctx.Err(), context.Canceled) {
				*e = Error{Call: op.name, Code: codes.Canceled, Message: "the call was cancelled before a node was asked"}
			}
		}
		e.MaybeApplied = doubt
		if e.ended = ctx.Err(); e.ended == nil && callers {
			// It has passed, or the next try would have come after it.
			e.ended = context.DeadlineExceeded
		}
		return answer[A]{}, e
	}
	closed := func() (answer[A], error) {
		return answer[A]{}, &Error{Call: op.name, Code: codes.Canceled, Message: "there is no answer", MaybeApplied: doubt, ended: ErrClosed}
	}
	for {
		if ended() {
			return over()
		}
		node, anew := c.router.pick(op.identity, asked)
		if node == nil {
			return closed()
		}
		if anew && !idle && !pause.restUntil(ctx, until, 0) {
			c.router.done(node, nil, true)
			return over()
		}
		asked[node], idle = true, false
		got, failed := try(ctx, until, c, op, node, send)
		if failed == nil {
			return got, nil
		}
		if failed.decided() {
			return answer[A]{}, failed // the truth, whatever became of earlier tries
		}
		doubt = doubt || failed.MaybeApplied
		if !failed.retriable {
			failed.MaybeApplied = doubt
			return answer[A]{}, failed
		}
		if c.isClosed() {
			return closed()
		}
		// What only says that time was over tells less than what came before it.
		if last == nil || failed.Code == codes.Unavailable || last.Code != codes.Unavailable {
			last = failed
		}
		if failed.RetryAfter > 0 {
			if idle = pause.restUntil(ctx, until, failed.RetryAfter); !idle {
				return over()
			}
		}
	}
}

// try asks one node once.
func try[A any](ctx context.Context, until time.Time, c *Client, op operation, node *clusterNode,
	send func(context.Context, *sharing) delivery[A],
) (answer[A], *Error) {
	within := op.try
	if within == 0 {
		within = c.tryTimeout
	}
	silence := within // after which a node is passed over
	if op.hold != nil {
		within += op.hold()
	}
	began := time.Now()
	if most := began.Add(within); most.Before(until) {
		until = most
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	var sent time.Duration
	if op.owns {
		sent = c.clock()
	}
	came := send(ctx, node.service)
	if other := c.router.foreign(came.header); other != "" {
		c.router.done(node, nil, false)
		failed := c.router.strange(op.name, node, other)
		if !node.strange.Swap(true) { // once is enough: each call that comes to nothing says so
			c.logger.WarnContext(ctx, failed.Message)
		}
		return answer[A]{}, failed
	}
	if came.err == nil {
		c.router.done(node, came.header, true)
		return answer[A]{message: came.answer, sent: sent}, nil
	}
	var local *Error
	if errors.As(came.err, &local) { // the request was not fit to be sent
		c.router.done(node, came.header, true)
		return answer[A]{}, local
	}
	failed := failure(op.name, came.err, came.reached, op.reads)
	silent := failed.Reason == "" && failed.retriable
	if ctx.Err() != nil && time.Since(began) < silence {
		silent = false // its caller gave up: that says nothing about the node
	}
	c.router.done(node, came.header, !silent)
	return answer[A]{}, failed
}
