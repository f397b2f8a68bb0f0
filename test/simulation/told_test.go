package simulation

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/history"
)

// call is what was asked for.
type call string

// The calls.
const (
	reserveCall call = "reserve"
	commitCall  call = "commit"
	releaseCall call = "release"
	extendCall  call = "extend"
	resolveCall call = "resolve"
	getCall     call = "get"
)

// told is one call with all its tries, as its caller saw it. Moments are on the world's
// clock, which is the true one.
type told struct {
	call    call
	key     string // with its principal
	caller  string // whose attempt it is; the coordinator knows it as the owner
	attempt history.Attempt

	first    time.Duration // the first try was sent
	last     time.Duration // the try that was answered was sent
	answered time.Duration
	tries    int  // how many of them may have been delivered
	unknown  bool // nobody knows what came of it
	never    bool // every try was answered with "not applied", and there will be none

	// What was asked for.
	ttl, retention time.Duration
	hold           bool
	print          string // the request's fingerprint; or what get has shown
	applied        bool   // resolve: applied, or not
	revision       uint64 // resolve: what it named; or what get has shown
	of             uint64 // resolve: the fence of the attempt that is settled
	note           string // release, resolve: the reason; or that of the release before

	// What was answered. Durations are as told.
	outcome           string // granted, pending, committed, in doubt; ok; a state; none; or a reason
	fence             uint64
	number            uint32
	previous          history.End
	previousFence     uint64
	repeated, late    bool
	waited, remaining time.Duration
	holder            string // who holds it, or did last
	response          history.Digest
}

// String shows the call in a trace.
func (c told) String() string {
	text := fmt.Sprintf("%s %s of %s [%v, %v, %v]: %s", c.call, c.key, c.caller, c.first, c.last, c.answered, c.outcome)
	switch {
	case c.unknown:
		text += " unknown"
	case c.never:
		text += " never"
	}
	if c.fence != 0 {
		text += fmt.Sprintf(" fence %d", c.fence)
	}
	if c.number != 0 {
		text += fmt.Sprintf(" number %d", c.number)
	}
	if c.repeated {
		text += " repeated"
	}
	if c.holder != "" {
		text += " of " + c.holder
	}
	return text + fmt.Sprintf(" (ttl %v, retention %v, waited %v, remaining %v)", c.ttl, c.retention, c.waited, c.remaining)
}

// digest stands for a whole response.
func digest(response *coordinatorv1.Response) history.Digest {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		panic(err) // it came from a message
	}
	return sha256.Sum256(encoded)
}

// operation is what all keys are of.
const operation = "POST /v1/simulated"

// principals are those that call. They use the same keys, and nothing of the one is to be
// seen by the other.
var principals = []string{"p", "q"}

// parts are the principal and the key of what this package calls a key.
func parts(key string) (principal, own string) {
	principal, own, _ = strings.Cut(key, "/")
	return principal, own
}

func identity(key string) *coordinatorv1.Identity {
	principal, own := parts(key)
	return &coordinatorv1.Identity{Principal: principal, Operation: operation, Key: own}
}

func shardOf(key string, shards int) int {
	principal, own := parts(key)
	return admission.Identity{Namespace: admission.DefaultNamespace, Principal: principal, Operation: operation, Key: own}.Shard(shards)
}

// event is the call in the vocabulary of histories; false for one that is not known to
// have been carried out and never will be.
func (c told) event(shards int) (history.Event, bool) {
	e := history.Event{
		Key: c.key, Shard: shardOf(c.key, shards), Sent: c.first, LastSent: c.last, Answered: c.answered, Tries: c.tries, Unknown: c.unknown,
		Attempt: c.attempt, Fence: c.fence, Number: c.number, Response: c.response, TTL: c.ttl, Retention: c.retention, Hold: c.hold,
		Holder: c.holder, Repeated: c.repeated, Late: c.late, Note: c.note, Revision: c.revision, Applied: c.applied,
		Previous: c.previous, PreviousFence: c.previousFence,
	}
	if c.never || c.call == getCall && c.unknown {
		return e, false
	}
	e.Kind = map[call]history.Kind{
		reserveCall: history.Granted, commitCall: history.Committed, releaseCall: history.Released, extendCall: history.Extended,
		resolveCall: history.Resolved, getCall: history.Missing,
	}[c.call]
	if c.call == reserveCall {
		e.Owner = c.caller
	}
	if c.call == reserveCall || c.call == getCall {
		e.Fingerprint = c.print
	}
	if c.call == getCall { // a read belongs to its last try: every try reads anew
		e.Sent, e.TTL, e.Retention, e.Hold = c.last, 0, 0, false
	}
	if c.unknown {
		return e, true
	}
	switch c.outcome {
	case "granted":
		e.Deadline = c.last + (c.waited+c.remaining)/1000*999
	case "pending":
		e.Kind = history.Pending
	case "committed":
		e.Kind = history.Replayed
	case "in doubt":
		e.Kind = history.InDoubt
	case "ok":
		if c.call == extendCall {
			e.Deadline = c.last + c.remaining/1000*999
		}
	case "none":
	case "STATE_PENDING":
		e.Kind, e.State = history.Pending, history.StatePending
	case "STATE_COMMITTED":
		e.Kind, e.State = history.Replayed, history.StateCommitted
	case "STATE_IN_DOUBT":
		e.Kind, e.State = history.InDoubt, history.StateInDoubt
	case "STATE_LAPSED":
		e.Kind, e.State = history.Free, history.StateLapsed
	case "STATE_RELEASED":
		e.Kind, e.State = history.Free, history.StateReleased
	case "ATTEMPT_ENDED":
		e.Kind = history.Ended
	default:
		e.Kind, e.Call, e.Reason = history.Refused, e.Kind, c.outcome
	}
	return e, true
}
