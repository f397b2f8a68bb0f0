package admission

import "time"

// State is what a record is at an instant.
type State uint8

// The states of the contract. [StateNone] is the absence of a record; a tombstone
// is such an absence to everybody but the attempts that it remembers.
const (
	StateNone State = iota
	StatePending
	StateLapsed
	StateInDoubt
	StateCommitted
	StateReleased
)

// States counts the values of [State], for arrays indexed by it.
const States = 6

var stateNames = [States]string{"NONE", "PENDING", "LAPSED", "IN_DOUBT", "COMMITTED", "RELEASED"}

// String returns the contract's name of the state.
func (s State) String() string { return stateNames[s] }

// OnLapse says what a deadline that passes without a word means for others.
type OnLapse uint8

// [Reopen] admits the next attempt; [Hold] admits nobody until somebody who knows
// says what happened.
const (
	Reopen OnLapse = iota
	Hold
)

// AttemptID names one call of Reserve over all its retries: 16 random bytes.
type AttemptID [16]byte

// Limits of a record's parts, in bytes or counts.
const (
	FingerprintBytesMax = 64
	OwnerBytesMax       = 128
	NoteBytesMax        = 1024 // a release reason or a settlement's note
	ResponseBytesMax    = 1 << 20
	HeadersMax          = 128 // header lines of a response
	ResponseCodeMax     = 999

	// EndedAttemptsKept ended attempts are remembered as long as the record.
	EndedAttemptsKept = 8
	// EndedAttemptsMax bounds how many are remembered for [AttemptMemory].
	EndedAttemptsMax = 64
	// EndedAttemptsStored bounds how many a record holds.
	EndedAttemptsStored = EndedAttemptsMax + 1
)

// EndedAttempt is an attempt that ended and must not be granted again.
type EndedAttempt struct {
	ID      AttemptID
	EndedAt Time
}

// Record is what is stored of one identity. A record that is shared is never
// written to: a rule that changes one changes a [Record.Clone] of it.
type Record struct {
	Identity Identity

	// State is the stored one. Of a [StatePending] record whose deadline has passed
	// it is out of date until the alarm comes by; [Record.At] is never out of date.
	// [StateNone] marks a tombstone: of it only Identity, Ended and Sequence matter.
	State State

	Fence    uint64 // of the latest grant
	Attempt  uint32 // 1 for the first grant of the record's life
	Revision uint64 // of the latest change
	// SettledFrom is the revision that a Resolve settled, or 0; the next grant
	// clears it.
	SettledFrom uint64

	// Holder is the attempt that was granted last. Whether it still holds is told
	// by the state.
	Holder AttemptID
	// Ended are the attempts that ended, oldest first, Holder among them unless it
	// is pending; at most [EndedAttemptsStored]. A holder that lapsed and comes back
	// by Extend is taken out again. Of a tombstone there is at least one.
	Ended []EndedAttempt

	Fingerprint []byte // 0 to 64 bytes; empty is absent
	OnLapse     OnLapse
	PendingTTL  time.Duration // of the granted attempt
	Retention   time.Duration // the window after the pending deadline, the commit or the release
	Owner       string        // for people

	// Logical times that windows and ages are reckoned from.
	GrantedAt       Time // of the latest grant
	PendingDeadline Time // of the latest grant or Extend
	EndedAt         Time // when it was committed or released

	// Wall clock of the leader in nanoseconds since 1970, for people. Zero is unset.
	CreatedWallNanos   int64 // the first grant of the record's life
	StartedWallNanos   int64 // the latest grant
	CommittedWallNanos int64

	// Late says that the commit or release came after the pending deadline.
	Late bool

	Previous      Previous // how the attempt before the latest grant ended
	ReleaseReason string   // of the latest release or settlement as not applied

	// Response is present once committed.
	Response Response

	// Sequence is where the store keeps the record. The store owns it; it is
	// assigned in the order of the log, and 0 until then.
	Sequence uint64
}

// Response is a committed response as the rules see it: a hash to compare by and
// an opaque encoding to keep.
type Response struct {
	// Hash is over code, headers, content type and body, uncompressed.
	Hash [32]byte
	// Bytes is the uncompressed size of headers and body together.
	Bytes uint32
	// Stored is the encoding to give back, possibly compressed. A record read
	// without its response has it nil.
	Stored []byte
}

// PreviousEnd says how the attempt before a grant ended.
type PreviousEnd uint8

// [EndedNone] is a first attempt.
const (
	EndedNone PreviousEnd = iota
	EndedReleased
	EndedLapsed
)

// Previous is what a new owner is told of the attempt before it.
type Previous struct {
	End    PreviousEnd
	Reason string // of a release
	Fence  uint64 // of the attempt that lapsed or was released; 0 if there was none
}

// Clone returns a copy that may be changed. The copy shares the byte slices, which
// are never written to; Ended is a slice of its own.
func (r *Record) Clone() *Record {
	c := *r
	c.Ended = append([]EndedAttempt(nil), r.Ended...)
	return &c
}
