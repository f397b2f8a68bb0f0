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
	Refused               // the call was refused, for Reason
	InDoubt               // the key is in doubt: nobody is admitted
	Resolved              // the settlement is acknowledged
	Purged                // the purge is acknowledged
)

var kindNames = [...]string{
	"granted", "pending", "replayed", "free", "missing", "ended", "committed", "released", "extended", "refused",
	"in doubt", "resolved", "purged",
}

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

var endNames = [...]string{"nothing", "release", "lapse"}

// State is what a read of the record showed.
type State uint8

// The states. StateUnrecorded is for readers that kept the kind only.
const (
	StateUnrecorded State = iota
	StatePending
	StateLapsed
	StateInDoubt
	StateCommitted
	StateReleased
)

var stateNames = [...]string{"", "PENDING", "LAPSED", "IN_DOUBT", "COMMITTED", "RELEASED"}

// Attempt names one call of Reserve.
type Attempt [16]byte

// Digest stands for a response.
type Digest [32]byte

// Event is one call as its caller saw it.
//
// A field that was not recorded is zero, and is then held against nobody: the checks
// know only what they are told.
type Event struct {
	Kind Kind
	// Namespace, Principal, Operation and Key are the identity. Whoever has one name
	// for all four leaves the first three empty.
	Namespace, Principal, Operation, Key string
	Shard                                int

	// Sent is when the first try was sent, Answered when the answer came.
	Sent, Answered time.Duration
	// LastSent is when the try was sent that was answered; 0: not recorded, it may be
	// as early as Sent.
	LastSent time.Duration
	// Tries is how often the call may have been delivered, but for deliveries that were
	// answered "not applied"; 0: not recorded, any number. Each delivery but the answered
	// one may be carried out at any time after Sent, even after Answered.
	Tries int
	// Unknown: no try was answered with the truth. The call may have been carried
	// out at any time after Sent, and Kind is what it would have been told.
	Unknown bool

	Attempt Attempt // the caller's, or that of the owner's token; zero for Get, Resolve and Purge
	// Fence is what was granted, or shown by Get; for an owner's call that of its token;
	// for a Purge by fence the fence it named.
	Fence    uint64
	Number   uint32 // Granted: of this attempt; Pending, Free, and others where shown: of the holder
	Previous End    // Granted
	// PreviousFence is the fence of the attempt before. Granted.
	PreviousFence uint64
	// Deadline is until when nobody else may be admitted. Granted, Extended.
	Deadline time.Duration
	// Committed, Replayed, Resolved as applied; Refused if it was one of these. None where a
	// read showed that there is one, and not which.
	Response Digest
	Reason   string // Refused
	Call     Kind   // Refused: what was asked for: Granted, Committed, Released, Extended, Resolved or Purged

	// TTL is the pending_ttl that was asked for, Retention the retention; where the
	// default was asked for, that. Granted, Extended; Granted, Committed, there 0 is the record's
	// own. An identity of which no retention was recorded has none that ends.
	TTL, Retention time.Duration
	Hold           bool   // Reserve with on_lapse = HOLD
	Fingerprint    string // Reserve
	Owner          string // Reserve: the owner it named
	// Holder is the owner of the record as it was shown. Pending, InDoubt, Get.
	Holder string
	// Repeated and Late are what the answer said. Granted, Committed, Released. False
	// counts as said only where Tries is recorded.
	Repeated, Late bool
	// Note is the reason of a Release or a settlement as not applied; Granted: the reason
	// of the release before, as told.
	Note     string
	State    State  // Get: what it showed
	Revision uint64 // Get: as shown; Resolved, Purged: the one that was named
	Applied  bool   // Resolved: settled as applied
	Force    bool   // Purged
}

// Identity names the record an event is about: equal for two events exactly if all four
// parts are.
func (e *Event) Identity() string {
	if e.Namespace == "" && e.Principal == "" && e.Operation == "" {
		return e.Key
	}
	return fmt.Sprintf("%q %q %q %q", e.Namespace, e.Principal, e.Operation, e.Key)
}

// Asked returns what the call was for, as the kind of its success; false for a read of the
// record. Reserve is Granted.
func (e *Event) Asked() (Kind, bool) {
	switch e.Kind {
	case Refused:
		return e.Call, true
	case Committed, Released, Extended, Resolved, Purged, Granted, Ended:
		return e.Kind.asked(), true
	default:
		return Granted, e.Attempt != Attempt{}
	}
}

// asked returns what the kind answers.
func (k Kind) asked() Kind {
	if k == Ended {
		return Granted
	}
	return k
}

// refusalsOfNobody are refusals that say nothing of a record: the call was not carried out.
var refusalsOfNobody = map[string]bool{
	"INVALID_ARGUMENT": true, "RESPONSE_TOO_LARGE": true, "NO_LEADER": true, "SHUTTING_DOWN": true,
	"OVERLOADED": true, "STORAGE_FULL": true, "QUOTA_EXCEEDED": true, "UNAUTHENTICATED": true, "PERMISSION_DENIED": true,
}

// notTheTruth are refusals after which the call may have been carried out.
var notTheTruth = map[string]bool{"": true, "OUTCOME_UNKNOWN": true, "DEADLINE_EXCEEDED": true, "CANCELLED": true, "UNAVAILABLE": true}

// Unanswered reports whether nobody knows what came of the call.
func (e *Event) Unanswered() bool { return e.Unknown || e.Kind == Refused && notTheTruth[e.Reason] }

// Silent reports whether the answer, if there is one, says nothing of the record.
func (e *Event) Silent() bool {
	return e.Unanswered() || e.Kind == Refused && refusalsOfNobody[e.Reason]
}

// String shows the event in a violation.
func (e Event) String() string {
	text := fmt.Sprintf("%s %s", e.Kind, e.Identity())
	if e.Attempt != (Attempt{}) {
		text += fmt.Sprintf(" %x", e.Attempt[:4])
	}
	text += fmt.Sprintf(" [%v", e.Sent)
	if e.LastSent > e.Sent {
		text += fmt.Sprintf(" %v", e.LastSent)
	}
	text += fmt.Sprintf(", %v]", e.Answered)
	said := func(is bool, format string, arguments ...any) {
		if is {
			text += fmt.Sprintf(format, arguments...)
		}
	}
	said(e.Unknown, " unknown")
	said(e.Repeated, " repeated")
	said(e.Late, " late")
	said(e.Tries > 1, " of %d tries", e.Tries)
	said(e.Fence != 0, " fence %d", e.Fence)
	said(e.Number != 0, " number %d", e.Number)
	said(e.Revision != 0, " revision %d", e.Revision)
	said(e.Previous != EndNone, " after %s of fence %d", endNames[e.Previous], e.PreviousFence)
	said(e.TTL != 0, " for %v", e.TTL)
	said(e.Hold, " on hold")
	said(e.Deadline != 0, " until %v", e.Deadline)
	said(e.Retention != 0, " kept %v", e.Retention)
	said(e.Fingerprint != "", " of %q", e.Fingerprint)
	said(e.Holder != "", " held by %q", e.Holder)
	said(e.State != StateUnrecorded, " %s", stateNames[e.State])
	said(e.Response != Digest{}, " response %x", e.Response[:4])
	said(e.Kind == Refused, " to be %s: %s", e.Call, e.Reason)
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
