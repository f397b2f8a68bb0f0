package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
)

// waitMost is how long one Reserve may be held back; a longer wait is several.
const waitMost = time.Minute

// answerMargin is what a caller's deadline leaves for the answer after a wait.
const answerMargin = 500 * time.Millisecond

// ReserveOption is an option of [Client.Reserve], and of [Client.Do] too.
type ReserveOption interface {
	DoOption
	applyToReserve(*reserveConfig)
}

type reserveConfig struct {
	fingerprint []byte
	pendingTTL  *time.Duration
	retention   *time.Duration
	onLapse     OnLapse
	owner       string
	wait        time.Duration
	timeout     *time.Duration // nil: the client's
}

type reserveOption func(*reserveConfig)

func (o reserveOption) applyToReserve(c *reserveConfig) { o(c) }
func (o reserveOption) applyToDo(c *doConfig)           { o(&c.reserve) }

// OnLapse says what becomes of a reservation whose deadline passes without a word.
type OnLapse int

const (
	// Reopen is the default: the next Reserve is granted and told of the lapse. Right
	// where the work can be done twice harmlessly, or where a fence check downstream
	// refuses the old owner.
	Reopen OnLapse = iota
	// Hold means: nobody is admitted until the owner commits or releases after all, or someone
	// who knows resolves it. Right where twice is worse than not at all.
	Hold
)

// WithFingerprint tells one request from another under the same key, such as a hash of
// its body; 0 to 64 bytes. Another one under the same key is [ErrFingerprintMismatch].
func WithFingerprint(fingerprint []byte) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.fingerprint = fingerprint })
}

// WithPendingTTL says how long the owner may hold the reservation without a word, 100 ms
// to 24 h. Default: the coordinator's, 5 min.
func WithPendingTTL(d time.Duration) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.pendingTTL = &d })
}

// WithRetention says how long the record is kept after its deadline, its commit or its
// release, 1 s to 30 days. Default: the coordinator's, 24 h.
func WithRetention(d time.Duration) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.retention = &d })
}

// WithOnLapse says what a deadline that passes without a word means for others.
// Default: [Reopen].
func WithOnLapse(o OnLapse) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.onLapse = o })
}

// WithOwner is what the caller calls itself, 0 to 128 bytes. It is shown to people and to
// those who are refused.
func WithOwner(name string) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.owner = name })
}

// WithWait waits as long for a reservation that another attempt holds to become free or
// committed, before [ErrPending] is returned. Default: 0. What is not more than 0 does
// not wait.
func WithWait(d time.Duration) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.wait = min(max(0, d), forever) })
}

// WithReserveTimeout bounds how long Reserve goes without an answer, with all its tries,
// where [WithCallTimeout] is too long: for a request that is better refused soon. What it
// waits ([WithWait]) comes on top, and is counted from the beginning of the call. Each try
// gets at most half of it, so that a node that hangs leaves time for another. Where it ends
// the outcome is [ErrUnavailable], as with every other end of a call. More than 0; less than
// it takes to find a new leader, about 1.5 s, refuses through every change of leader.
func WithReserveTimeout(d time.Duration) ReserveOption {
	return reserveOption(func(c *reserveConfig) { c.timeout = &d })
}

// Reserve asks to be the one that runs the operation. The caller is admitted if there
// is a reservation, and only then; every other outcome is an error: [ErrPending],
// [ErrCommitted], [ErrInDoubt], or a failure.
//
// Each call is an attempt of its own, and all its tries are the same attempt: a retry of
// what was granted already gets the same grant. Where it ends without an answer and may
// have been granted all the same ([ErrUnknown]), the reservation that nobody heard of is
// given back behind the scenes; until then others are told that it is pending.
//
// The context bounds the call, not the reservation, which keeps the context's values.
func (c *Client) Reserve(ctx context.Context, id Identity, options ...ReserveOption) (*Reservation, error) {
	var cfg reserveConfig
	for _, option := range c.defaults {
		option.applyToReserve(&cfg)
	}
	for _, option := range given("Reserve", options) {
		option.applyToReserve(&cfg)
	}
	return c.reserve(ctx, id, cfg)
}

func (c *Client) reserve(ctx context.Context, id Identity, cfg reserveConfig) (*Reservation, error) {
	if err := cfg.onLapse.check(); err != nil {
		return nil, invalid(callReserve, "on_lapse", err.Error())
	}
	// The bytes are the caller's again when this returns, and the attempt may be asked for once more
	// to be given back: with another fingerprint it would not be found.
	cfg.fingerprint = bytes.Clone(cfg.fingerprint)
	if deadline, ok := ctx.Deadline(); ok {
		// An answer, even a pending one, is worth more than a deadline that has passed.
		left := time.Until(deadline)
		cfg.wait = max(0, min(cfg.wait, left-min(left/4, answerMargin)))
	}
	timeout, try := c.callTimeout, c.tryTimeout
	if cfg.timeout != nil {
		if err := checkTimeout(*cfg.timeout); err != nil {
			return nil, invalid(callReserve, "timeout", err.Error())
		}
		timeout = min(timeout, *cfg.timeout)
		try = min(try, timeout/2)
	}
	start := c.elapsed()
	// left bounds the call, however many attempts it takes.
	left := func() time.Duration { return timeout + cfg.wait - (c.elapsed() - start) }
	var pause pause
	for over := 0; ; {
		a := &attempt{client: c, identity: id, config: cfg, waitUntil: start + cfg.wait, timeout: timeout, try: try}
		_, _ = rand.Read(a.id[:]) // this cannot fail: a system without randomness ends the program
		r, err := a.reserve(ctx, left)
		var failed *Error
		switch {
		case err == nil:
			return r, nil
		case errors.As(err, &failed) && failed.Reason == reasonAttemptEnded:
		case errors.Is(err, errOver):
			over++
		case errors.Is(err, ErrUnknown):
			c.giveBack(ctx, id, a.giveBack)
			return nil, err
		default:
			return nil, err
		}
		// This attempt is over before anybody could act on it. The caller still wants the
		// key, so another one asks.
		bounded, cancel := context.WithTimeout(ctx, left())
		again := over < overMost && pause.rest(bounded, 0)
		cancel()
		switch {
		case again:
		case failed != nil:
			return nil, failed
		default:
			return nil, &Error{
				Call: callReserve, Code: codes.FailedPrecondition, Message: "each grant was over before it arrived", ended: ErrLapsed,
			}
		}
	}
}

// overMost is after how many grants that were over when they arrived a call gives up:
// its window is shorter than the way.
const overMost = 3

// errOver reports a grant that was over when it arrived.
var errOver = errors.New(lease.WasOver)

// attempt is one attempt to reserve, with one id over all its tries.
type attempt struct {
	client    *Client
	id        [16]byte
	identity  Identity
	config    reserveConfig
	waitUntil time.Duration
	timeout   time.Duration // without an answer, for all tries together
	try       time.Duration // for one of them
}

// holdBack is how long the coordinator is to hold a pending answer back: what is left of
// the wait.
func (a *attempt) holdBack() time.Duration {
	return max(0, min(a.waitUntil-a.client.elapsed(), waitMost))
}

func (a *attempt) request(hold time.Duration) *coordinatorv1.ReserveRequest {
	return &coordinatorv1.ReserveRequest{
		Identity: a.identity.wire(), AttemptId: a.id[:], Fingerprint: a.config.fingerprint,
		PendingTtl: window(a.config.pendingTTL), Retention: window(a.config.retention),
		OnLapse: a.config.onLapse.wire(), Owner: a.config.owner, Wait: durationpb.New(hold),
	}
}

// reserve asks until there is an outcome, or none but pending is left. The first answer
// is not held back: most calls need not wait, and so a node that hangs costs them no more
// than a try.
func (a *attempt) reserve(ctx context.Context, left func() time.Duration) (*Reservation, error) {
	for first := true; ; first = false {
		var hold time.Duration
		bound := a.timeout
		if !first {
			bound += a.holdBack()
		}
		got, err := invoke(ctx, a.client, operation{
			name: callReserve, identity: a.identity, bound: min(bound, left()), try: a.try, owns: true,
			hold: func() time.Duration {
				if !first {
					hold = a.holdBack()
				}
				return hold
			},
		}, func(ctx context.Context, node *sharing) delivery[*coordinatorv1.ReserveResponse] {
			return node.reserve(ctx, a.request(hold))
		})
		if err != nil {
			return nil, err
		}
		if granted := got.message.GetGranted(); granted != nil {
			return a.granted(ctx, got.sent, granted)
		}
		err = refusal(got.message)
		var pending *PendingError
		if !errors.As(err, &pending) || a.holdBack() == 0 {
			return nil, err
		}
		if !first && !rest(ctx, min(max(pending.RetryAfter, backoffFirst), a.holdBack())) {
			return nil, err
		}
	}
}

// granted turns a grant into a reservation, if it is not over.
func (a *attempt) granted(ctx context.Context, sent time.Duration, g *coordinatorv1.Granted) (*Reservation, error) {
	c := a.client
	// Without a token, or without an end, nobody could act on it: whoever gave it is no coordinator, or
	// a broken one.
	if g.GetToken() == "" || g.GetRemaining().AsDuration() <= 0 {
		return nil, &Error{
			Call: callReserve, Code: codes.Unimplemented, MaybeApplied: true,
			Message: "the coordinator gave a grant without a token or without a time, which admits nobody",
		}
	}
	window := g.GetWaited().AsDuration() + g.GetRemaining().AsDuration()
	r := &Reservation{
		client: c, identity: a.identity, token: g.GetToken(), fence: g.GetFence(), attempt: g.GetAttempt(),
		previous: previousOf(g.GetPrevious()), onLapse: a.config.onLapse,
		renewAt: sent + g.GetRemaining().AsDuration()/3,
	}
	deadline := sent + lease.Share(window)
	if now := c.clock(); now < deadline {
		r.ownership = begin(ctx, c.clock, r, now, deadline)
		return r, nil
	}
	// Nobody has acted on it, and nobody will.
	if err := r.release(ctx, r.unused(lease.WasOver), c.tryTimeout); err != nil {
		c.giveBack(ctx, r.identity, r.giveBack)
	}
	return nil, errOver
}

// unused is the reason of a release that nobody asked for.
func (r *Reservation) unused(why string) string {
	if r.previous.End != PreviousLapsed {
		return lease.Unused(why, 0)
	}
	return lease.Unused(why, r.previous.Fence)
}

// giveBackTTL is the window of a grant that is only asked for to be given back.
const giveBackTTL = 10 * time.Second

// giveBack finds out whether the attempt was granted, and releases it then. If it was
// not it is now, for a moment, and released as well: nobody acts on it, so it may reopen.
// If it was its windows stay what they are.
func (a *attempt) giveBack(ctx context.Context) error {
	request := a.request(0)
	request.PendingTtl, request.OnLapse = durationpb.New(giveBackTTL), Reopen.wire()
	got, err := invoke(ctx, a.client, operation{name: callReserve, identity: a.identity, bound: a.client.settleTimeout},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.ReserveResponse] {
			return node.reserve(ctx, request)
		})
	if err != nil {
		if errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOverloaded) {
			return err
		}
		return nil // an answer: it has ended, or never was
	}
	if g := got.message.GetGranted(); g != nil {
		r := &Reservation{client: a.client, identity: a.identity, token: g.GetToken(), previous: previousOf(g.GetPrevious())}
		return r.giveBack(ctx)
	}
	return nil
}

func (r *Reservation) giveBack(ctx context.Context) error {
	return r.release(ctx, r.unused(lease.GoneBy), r.client.settleTimeout)
}

func window(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func (o OnLapse) wire() coordinatorv1.OnLapse {
	switch o {
	case Reopen:
		return coordinatorv1.OnLapse_ON_LAPSE_REOPEN
	case Hold:
		return coordinatorv1.OnLapse_ON_LAPSE_HOLD
	}
	return coordinatorv1.OnLapse(-1) // is refused, if check has not done so
}

// String returns the word that the contract uses.
func (o OnLapse) String() string {
	switch o {
	case Reopen:
		return "reopen"
	case Hold:
		return "hold"
	}
	return "unknown"
}
