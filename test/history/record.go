package history

import (
	"fmt"
	"sync"
	"time"
)

// Kind is what a caller was told.
type Kind uint8

// The kinds. The first are answers to Reserve, or to Get where it shows the same.
const (
	Granted   Kind = iota // the attempt is admitted
	Pending               // another attempt holds the key
	Replayed              // the key is committed, with this response
	Free                  // the key is released or lapsed (Get only)
	Missing               // there is no record (Get only)
	Ended                 // the attempt has ended: it was granted once
	Committed             // the owner's commit is acknowledged
	Released              // the owner's release is acknowledged
	Extended              // the owner's extension is acknowledged
	Refused               // the owner's call was refused, for Reason
)

var kindNames = [...]string{"granted", "pending", "replayed", "free", "missing", "ended", "committed", "released", "extended", "refused"}

// String returns the kind's name.
func (k Kind) String() string { return kindNames[k] }

// End is how the attempt before a grant ended.
type End uint8

// The ends.
const (
	EndNone End = iota
	EndReleased
	EndLapsed
)

// Attempt names one call of Reserve.
type Attempt [16]byte

// Digest stands for a response.
type Digest [32]byte

// Event is one call as its caller saw it.
type Event struct {
	Kind  Kind
	Key   string
	Shard int

	// Sent is when the first try was sent, Answered when the answer came.
	Sent, Answered time.Duration
	// Unknown: no try was answered with the truth. The call may have been carried
	// out at any time after Sent, and Kind is what it would have been told.
	Unknown bool

	Attempt  Attempt // the caller's; zero for Get
	Fence    uint64  // Granted
	Number   uint32  // Granted: of this attempt; Pending, Free: of the holder
	Previous End     // Granted
	// PreviousFence is the fence of the attempt before. Granted.
	PreviousFence uint64
	// Deadline is until when nobody else may be admitted. Granted, Extended.
	Deadline time.Duration
	Response Digest // Committed, Replayed; Refused if it was a commit
	Reason   string // Refused
	Call     Kind   // Refused: Committed, Released or Extended, what was asked for
}

// String shows the event in a violation.
func (e Event) String() string {
	text := fmt.Sprintf("%s %s %x [%v, %v]", e.Kind, e.Key, e.Attempt[:4], e.Sent, e.Answered)
	if e.Unknown {
		text += " unknown"
	}
	if e.Fence != 0 || e.Number != 0 {
		text += fmt.Sprintf(" fence %d number %d", e.Fence, e.Number)
	}
	if e.Deadline != 0 {
		text += fmt.Sprintf(" until %v", e.Deadline)
	}
	if e.Kind == Refused {
		text += fmt.Sprintf(" to be %s: %s", e.Call, e.Reason)
	}
	return text
}

// Recorder gathers events. Its methods may be called from any goroutine.
type Recorder struct {
	began time.Time

	mu     sync.Mutex
	events []Event
}

// NewRecorder returns a recorder whose clock begins now.
func NewRecorder() *Recorder { return &Recorder{began: time.Now()} }

// Now returns the time on the recorder's clock.
func (r *Recorder) Now() time.Duration { return time.Since(r.began) }

// Add adds an event.
func (r *Recorder) Add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns the events so far.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...)
}

// Count counts the events of each kind that are not unknown, and those that are.
func Count(events []Event) (byKind map[Kind]int, unknown int) {
	byKind = make(map[Kind]int)
	for i := range events {
		if events[i].Unknown {
			unknown++
		} else {
			byKind[events[i].Kind]++
		}
	}
	return byKind, unknown
}
