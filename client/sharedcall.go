package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// callState is how far a call of a session has come:
//
//	queued ──send──▶ sent ──take──▶ answered
//	   │               │
//	   └─────drop──────┴──────────▶ dropped
//
// It is never sent once it was dropped, nor answered before it was sent. So who drops it knows
// whether the node may have received it, and that stays so.
type callState uint8

const (
	callQueued   callState = iota // the node cannot have received it
	callSent                      // the node may have
	callAnswered                  // there is an answer
	callDropped                   // nobody waits for an answer
)

// sharedCall is one call of a session. Its session's mutex guards it, and is held by whoever calls
// a method.
type sharedCall struct {
	id       uint64
	message  *coordinatorv1.SessionCall // nil once it was dropped; being encoded, perhaps, since it was sent
	deadline time.Time                  // zero: none
	state    callState
	answer   *coordinatorv1.SessionAnswer // nil until it was answered
	done     chan struct{}                // closed when it is answered
}

// send makes a queued call one that the node may have received, with what is left of its time, and
// reports whether it is to be sent. One whose time is over is dropped: its caller is about to go.
func (c *sharedCall) send() bool {
	if c.state != callQueued {
		return false
	}
	if !c.deadline.IsZero() {
		left := time.Until(c.deadline)
		if left <= 0 {
			c.drop()
			return false
		}
		c.message.Timeout = durationpb.New(left)
	}
	c.state = callSent
	return true
}

// take takes the answer to a call that was sent, and reports whether it did.
func (c *sharedCall) take(answer *coordinatorv1.SessionAnswer) bool {
	if c.state != callSent {
		return false
	}
	c.state, c.answer = callAnswered, answer
	close(c.done)
	return true
}

// drop ends a call that has no answer, and reports whether the node may have received it.
func (c *sharedCall) drop() (received bool) {
	received = c.state == callSent
	c.state, c.message = callDropped, nil
	return received
}
