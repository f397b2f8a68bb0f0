package scenario

import (
	"context"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Target is what a script is played against. An error is a failure to get any
// answer; what the caller is refused is a [Result] with its reason.
type Target interface {
	Reserve(ctx context.Context, call ReserveCall) (Result, error)
	Commit(ctx context.Context, call CommitCall) (Result, error)
	Release(ctx context.Context, call ReleaseCall) (Result, error)
	Extend(ctx context.Context, call ExtendCall) (Result, error)
	Resolve(ctx context.Context, call ResolveCall) (Result, error)
	Get(ctx context.Context, id admission.Identity) (Result, error)
	Purge(ctx context.Context, call PurgeCall) (Result, error)
	// Start begins a Reserve that waits and returns once the server holds it.
	Start(ctx context.Context, call ReserveCall) (Waiter, error)
	// Advance moves time.
	Advance(ctx context.Context, d time.Duration) error
}

// Waiter is a Reserve that was started.
type Waiter interface {
	// Finish returns its answer. One that takes longer is an error.
	Finish(ctx context.Context, within time.Duration) (Result, error)
}

// ReserveCall is a Reserve. A nil duration is left to the server's default.
type ReserveCall struct {
	Identity              admission.Identity
	Attempt               admission.AttemptID
	Fingerprint           []byte
	PendingTTL, Retention *time.Duration
	OnLapse               admission.OnLapse
	Owner                 string
	Wait                  time.Duration
}

// CommitCall is a Commit.
type CommitCall struct {
	Identity  admission.Identity
	Token     string
	Response  Response
	Retention *time.Duration
}

// ReleaseCall is a Release.
type ReleaseCall struct {
	Identity admission.Identity
	Token    string
	Reason   string
}

// ExtendCall is an Extend.
type ExtendCall struct {
	Identity   admission.Identity
	Token      string
	PendingTTL *time.Duration
}

// ResolveCall is a Resolve; Response is nil for "not applied".
type ResolveCall struct {
	Identity admission.Identity
	Revision uint64
	Response *Response
	Note     string
}

// PurgeCall is a Purge.
type PurgeCall struct {
	Identity admission.Identity
	Revision uint64
	Force    bool
}

// Result is an answer. Only what the call answers is set.
type Result struct {
	Reason string // of a refusal; empty where the call was carried out

	Outcome        string // Reserve: granted, pending, committed, in_doubt
	Token          string
	Fence          uint64
	Attempt        uint32
	Previous       string // none, released, lapsed
	PreviousReason string
	Repeated, Late bool
	Remaining      time.Duration
	Response       *Response

	State    string // Get
	Revision uint64 // Get
}
