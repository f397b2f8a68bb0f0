package client

import (
	"context"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// State is what a record is.
type State int

const (
	// StateUnknown means: the coordinator is newer than this client.
	StateUnknown State = iota
	// StatePending means: one owner holds the reservation.
	StatePending
	// StateLapsed means: the deadline passed without a word; the next Reserve is granted.
	StateLapsed
	// StateInDoubt means: the deadline passed without a word; nobody is admitted.
	StateInDoubt
	// StateCommitted means: it is done.
	StateCommitted
	// StateReleased means: nothing happened, and the key is free.
	StateReleased
)

// String returns the word that the contract uses.
func (s State) String() string {
	switch s {
	case StatePending:
		return "PENDING"
	case StateLapsed:
		return "LAPSED"
	case StateInDoubt:
		return "IN_DOUBT"
	case StateCommitted:
		return "COMMITTED"
	case StateReleased:
		return "RELEASED"
	}
	return "UNKNOWN"
}

// Record is what the coordinator knows of an identity. It holds nothing that proves
// ownership.
type Record struct {
	Identity Identity // with the namespace filled in
	State    State    // what the record is
	// Fence and Revision are 0 where the caller may not resolve.
	Fence       uint64
	Revision    uint64        // what Resolve names
	Attempt     uint32        // the number of the latest attempt, from 1
	Fingerprint []byte        // of the request; empty where there is none
	OnLapse     OnLapse       // what a lapse of that attempt means
	PendingTTL  time.Duration // the window of that attempt
	Retention   time.Duration // how long the record is kept once that is over
	Owner       string        // what its owner calls itself
	// CreatedAt, StartedAt and CommittedAt are by the wall clock of the leader of the
	// time, for people. CommittedAt is zero unless committed.
	CreatedAt, StartedAt, CommittedAt time.Time
	// Response is nil unless committed. Its body is empty unless asked for ([WithBody]).
	Response *Response
	// ResponseBytes is how large the whole response is, body and headers, in bytes.
	ResponseBytes uint64
	// ReleaseReason is why the latest release was made.
	ReleaseReason string
	// Remaining is the time until the current window ends. A record in doubt has no end,
	// and 0 here.
	Remaining time.Duration
	// Age is the time since the commit or release, else since the latest grant.
	Age time.Duration
	// Late says that the commit or release came after the deadline.
	Late bool
}

func recordOf(wire *coordinatorv1.Record) *Record {
	r := &Record{
		Identity: identityOf(wire.GetIdentity()), State: stateOf(wire.GetState()),
		Fence: wire.GetFence(), Revision: wire.GetRevision(), Attempt: wire.GetAttempt(),
		Fingerprint: wire.GetFingerprint(),
		PendingTTL:  wire.GetPendingTtl().AsDuration(), Retention: wire.GetRetention().AsDuration(),
		Owner: wire.GetOwner(), ResponseBytes: wire.GetResponseBytes(), ReleaseReason: wire.GetReleaseReason(),
		Remaining: wire.GetRemaining().AsDuration(), Age: wire.GetAge().AsDuration(), Late: wire.GetLate(),
	}
	if wire.GetOnLapse() == coordinatorv1.OnLapse_ON_LAPSE_HOLD {
		r.OnLapse = Hold
	}
	if at := wire.GetCreatedAt(); at != nil {
		r.CreatedAt = at.AsTime()
	}
	if at := wire.GetStartedAt(); at != nil {
		r.StartedAt = at.AsTime()
	}
	if at := wire.GetCommittedAt(); at != nil {
		r.CommittedAt = at.AsTime()
	}
	if response := wire.GetResponse(); response != nil {
		decoded := responseOf(response)
		r.Response = &decoded
	}
	return r
}

func stateOf(wire coordinatorv1.State) State {
	switch wire {
	case coordinatorv1.State_STATE_PENDING:
		return StatePending
	case coordinatorv1.State_STATE_LAPSED:
		return StateLapsed
	case coordinatorv1.State_STATE_IN_DOUBT:
		return StateInDoubt
	case coordinatorv1.State_STATE_COMMITTED:
		return StateCommitted
	case coordinatorv1.State_STATE_RELEASED:
		return StateReleased
	}
	return StateUnknown
}

// GetOption is an option of [Client.Get].
type GetOption interface{ applyToGet(*getConfig) }

type getConfig struct{ body bool }

type getOption func(*getConfig)

func (o getOption) applyToGet(c *getConfig) { o(c) }

// WithBody asks for the body of the committed response too.
func WithBody() GetOption { return getOption(func(c *getConfig) { c.body = true }) }

// Get returns the record. It sees every call that was answered before it was sent.
//
// Errors: [ErrNotFound], [ErrInvalidArgument], [ErrUnavailable].
func (c *Client) Get(ctx context.Context, id Identity, options ...GetOption) (*Record, error) {
	var cfg getConfig
	for _, option := range given("Get", options) {
		option.applyToGet(&cfg)
	}
	request := &coordinatorv1.GetRequest{Identity: id.wire(), IncludeBody: cfg.body}
	got, err := invoke(ctx, c, operation{name: callGet, identity: id, reads: true, bound: c.callTimeout},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.GetResponse] {
			return node.get(ctx, request)
		})
	if err != nil {
		return nil, err
	}
	return recordOf(got.message.GetRecord()), nil
}
