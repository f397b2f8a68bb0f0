package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
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
	var (
		verdict = verdict{call: op.name}
		asked   = map[*clusterNode]bool{}
		pause   pause
		rested  bool // since the last try
	)
	for ctx.Err() == nil && time.Now().Before(until) {
		node, anew := c.router.pick(op.identity, asked)
		if node == nil {
			return answer[A]{}, verdict.end(ErrClosed)
		}
		if anew && !rested && !pause.restUntil(ctx, until, 0) {
			c.router.done(node, nil, true)
			break
		}
		asked[node] = true
		got, failed := try(ctx, until, c, op, node, send)
		if failed == nil {
			return got, nil
		}
		if final := verdict.note(failed); final != nil {
			return answer[A]{}, final
		}
		if c.isClosed() {
			return answer[A]{}, verdict.end(ErrClosed)
		}
		rested = failed.RetryAfter > 0
		if rested && !pause.restUntil(ctx, until, failed.RetryAfter) {
			break
		}
	}
	why := ctx.Err()
	if why == nil && callers {
		why = context.DeadlineExceeded // it has passed, or the next try would have come after it
	}
	return answer[A]{}, verdict.end(why)
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
