package actor

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// call is a request on its way. All but gone and outcome belongs to the loop once
// the call is in the mailbox.
type call struct {
	request Request
	bytes   int64 // what it adds to an entry
	outcome chan outcome
	gone    atomic.Bool // nobody waits for the outcome any more

	ridden  bool // an entry has moved the log's clock past its receipt
	counted int  // how often it was refused for a quota, and decided once more

	// While it is parked, or decided again after it was.
	ticket uint64    // its place among the waiters of its identity; 0 before it waits
	wakeAt time.Time // when it is looked at even if nothing happens
	index  int       // in the heap of waiters; -1 outside
}

type outcome struct {
	reply Reply
	err   error
}

func newCall(request Request, bytes int64) *call {
	return &call{request: request, bytes: bytes, outcome: make(chan outcome, 1), index: -1}
}

// answer gives the call its outcome. It never blocks.
func (c *call) answer(reply Reply) { c.outcome <- outcome{reply: reply} }

func (c *call) fail(err error) { c.outcome <- outcome{err: err} }

// identity returns what the call is about; ok is false for one that asks about the
// shard as a whole.
func (c *call) identity() (id admission.Identity, ok bool) {
	switch {
	case c.request.Command != nil:
		return c.request.Command.On(), true
	case c.request.Get != nil:
		return *c.request.Get, true
	default:
		return admission.Identity{}, false
	}
}

// reserves reports whether the call asks for new work. Where there is little room left,
// such calls are refused before the others: see [mailbox].
func (c *call) reserves() bool {
	_, is := c.request.Command.(admission.Reserve)
	return is
}

// countedMax is how often a call is decided once more that was refused for a quota: when it
// was found refused, and when others took the places that it waited for.
const countedMax = 3

// miscounted reports whether a refusal counts records that are over, which nobody sees any
// more, and that are yet to be reclaimed. After [countedMax] times it stands: where very many
// are over at once, who waited for all of them would be in the way of the others.
func (c *call) miscounted(answer admission.Answer, due bool) bool {
	return answer.Refusal == admission.QuotaExceeded && due && c.counted < countedMax
}

// wantedAsOf puts down on the shard's clock until when a Reserve is wanted.
func (c *call) wantedAsOf(at moment) {
	if reserve, is := c.request.Command.(admission.Reserve); is {
		reserve.WantedUntil = at.live.Add(c.request.WantedFor - at.now.Sub(c.request.Received))
		c.request.Command = reserve
	}
}

// mayWaitUntil is the end of the call's wait.
func (c *call) mayWaitUntil() time.Time { return c.request.Received.Add(c.request.Wait) }

// waits reports whether a pending answer is held back at the given time.
func (c *call) waits(now time.Time) bool {
	return c.request.Wait > 0 && now.Before(c.mayWaitUntil()) && !c.gone.Load()
}

// await returns the call's outcome, or the context's error. One that was there first
// wins.
func (c *call) await(ctx context.Context) (Reply, error) {
	select {
	case out := <-c.outcome:
		return out.reply, out.err
	case <-ctx.Done():
	}
	select {
	case out := <-c.outcome:
		return out.reply, out.err
	default:
		c.gone.Store(true)
		return Reply{}, ctx.Err()
	}
}
