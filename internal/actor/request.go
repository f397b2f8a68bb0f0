package actor

import (
	"errors"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// What may keep a request from the rules. Together with the context's own errors
// these are all that [Actor.Submit] returns; everything else is an answer.
var (
	// ErrNoLeader: this replica does not lead the shard, or could not confirm in
	// time that it does. The request was not applied.
	ErrNoLeader = errors.New("actor: this replica does not lead the shard")
	// ErrShuttingDown: the replica is closing. The request was not applied.
	ErrShuttingDown = errors.New("actor: shutting down")
	// ErrOverloaded: a queue is full; the errors below say which. The request was not
	// applied.
	ErrOverloaded = errors.New("actor: overloaded")
	// ErrOutcomeUnknown: the request was proposed, and may or may not be applied.
	ErrOutcomeUnknown = errors.New("actor: outcome unknown")
)

// What is full. Each is an ErrOverloaded.
var (
	ErrMailboxFull    = fmt.Errorf("%w: the mailbox is full", ErrOverloaded)
	ErrWaitersFull    = fmt.Errorf("%w: as many calls wait in the shard as may", ErrOverloaded)
	ErrKeyWaitersFull = fmt.Errorf("%w: as many calls wait for the key as may", ErrOverloaded)
	ErrStoreBehind    = fmt.Errorf("%w: the store has too much to write", ErrOverloaded)
	ErrLogBehind      = fmt.Errorf("%w: the log takes no entry in time", ErrOverloaded)
	ErrNoRoom         = fmt.Errorf("%w: the caller has no room for the answer", ErrOverloaded)
)

// FullError is one of these with what is as much as may be.
type FullError struct {
	What  error // one of those above
	Most  int   // calls
	Bytes int64 // of them; 0: they are not counted
}

func (e *FullError) Error() string {
	if e.Bytes > 0 {
		return fmt.Sprintf("%v (%d, or %d bytes)", e.What, e.Most, e.Bytes)
	}
	return fmt.Sprintf("%v (%d)", e.What, e.Most)
}

// Unwrap returns what is full.
func (e *FullError) Unwrap() error { return e.What }

// Request is one call as the shard sees it. It is one of three: a Command, a look
// at the record of an identity (Get), or, with neither, a question whether this
// replica leads the shard at this moment.
type Request struct {
	Command admission.Command
	Get     *admission.Identity
	// Body asks for the stored response along with what Get finds.
	Body bool
	// Room is asked before a stored response of so many bytes is read for the answer;
	// false is ErrNoRoom. It must not block, and may be called after the caller has
	// gone. Nil: there is room. An answer that comes out of the log is not asked about.
	Room func(bytes int) bool

	// Wait holds a pending answer to a Reserve back for as long, from Received.
	Wait time.Duration
	// Received is when the call came in; with a monotonic reading.
	Received time.Time
	// WantedFor is how long from Received the caller wants a Reserve.
	WantedFor time.Duration
}

// Reply is what a request came to. Durations are reckoned at one live time.
type Reply struct {
	Answer admission.Answer
	// Record answers Get: the record as it is at Live, or nil where there is none.
	Record *admission.Record
	// Live is the shard's live time at which the durations were reckoned.
	Live admission.Time
	// Remaining is what is left of the answer's or record's present window, never
	// negative; [NoEnd] where it has none.
	Remaining time.Duration
	// Age is how long ago the answer's Since was.
	Age time.Duration
	// Waited is the time from Received until now.
	Waited time.Duration
}

// NoEnd is the Remaining of a record that stays until somebody settles it.
const NoEnd time.Duration = -1
