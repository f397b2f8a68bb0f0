package client

import (
	"context"
	"errors"
	"sync"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
)

// Reservation is the right to run one operation, until its deadline. It may be used by
// several goroutines at once.
//
// End it with Commit or Release. Whoever does not know what came of the operation does
// neither, and lets it lapse.
type Reservation struct {
	client    *Client
	identity  Identity
	token     string
	fence     uint64
	attempt   uint32
	previous  Previous
	onLapse   OnLapse
	ownership *ownership

	mu      sync.Mutex
	renewAt time.Duration // a third of the window after the last grant or Extend was sent
}

// Previous is how the attempt before a reservation ended. Attempts that nobody heard of, and that
// this client has given back by itself, do not count where one before them has lapsed, nor do runs of
// coordctl that started nothing.
type Previous struct {
	// End is the way it ended.
	End PreviousEnd
	// Reason is why it was released, or the note of its settlement as not applied.
	Reason string
	// Fence is its fence; 0 where there was none.
	Fence uint64
}

// PreviousEnd is a way in which an attempt ended.
type PreviousEnd int

const (
	// PreviousUnknown means: the coordinator is newer than this client. Take it as lapsed.
	PreviousUnknown PreviousEnd = iota
	// PreviousNone means: this is the first attempt.
	PreviousNone
	// PreviousReleased means: it did nothing.
	PreviousReleased
	// PreviousLapsed means: it went silent, and whether it did anything is unknown.
	PreviousLapsed
)

// String returns the word that the contract uses.
func (e PreviousEnd) String() string {
	switch e {
	case PreviousNone:
		return "none"
	case PreviousReleased:
		return "released"
	case PreviousLapsed:
		return "lapsed"
	}
	return "unknown"
}

func previousOf(wire *coordinatorv1.Previous) Previous {
	wire = lease.Told(wire)
	p := Previous{Reason: wire.GetReason(), Fence: wire.GetFence()}
	switch wire.GetEnd() {
	case coordinatorv1.PreviousEnd_PREVIOUS_END_NONE:
		p.End = PreviousNone
	case coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED:
		p.End = PreviousReleased
	case coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED:
		p.End = PreviousLapsed
	}
	return p
}

// Identity returns what is reserved.
func (r *Reservation) Identity() Identity { return r.identity }

// Token returns the proof of ownership. Keep it secret. It is for those who go on without this
// Reservation: `coordctl commit`, `release` and `extend` by hand (--token), the calls of
// coordinator.v1.CoordinatorService, clients in other languages. No function of this package takes one:
// a Reservation commits, releases and extends itself.
func (r *Reservation) Token() string { return r.token }

// Fence returns a number that only grows within a shard, 1 or more. A downstream system
// that keeps the highest it has seen can refuse an owner whose clock stood still.
func (r *Reservation) Fence() uint64 { return r.fence }

// Attempt returns the number of this attempt: 1 for the first of the record's life.
func (r *Reservation) Attempt() uint32 { return r.attempt }

// Previous returns how the attempt before this one ended.
func (r *Reservation) Previous() Previous { return r.previous }

// Derive is [Identity.Derive] of what is reserved.
func (r *Reservation) Derive(name string) string { return r.identity.Derive(name) }

// DeriveUUID is [Identity.DeriveUUID] of what is reserved.
func (r *Reservation) DeriveUUID(name string) string { return r.identity.DeriveUUID(name) }

// Context returns a context that ends with the ownership: at the owner's own deadline,
// or as soon as the ownership is lost, or when Commit or Release is sent. Work under it
// and stop when it ends. It carries the values of Reserve's context, but does not end
// with it; see [Reservation.Within].
//
// The deadline is the moment at which the try that was answered was sent, plus 99.9 % of
// the time that the coordinator then gave, on a clock that only runs forward and, on
// Linux, counts suspends. Extend moves it, never backwards: a context that is made from this one
// with a later deadline has no other than this. [Reservation.KeepAlive] moves it all the time, and
// it is not told then. After a suspend Err is right
// at once, while Done is closed within a second: look at Err before a step that must not
// be done by who is no owner any more. Contexts made from it follow Done.
//
// Err is context.DeadlineExceeded at the deadline, and context.Canceled otherwise;
// context.Cause says why: [ErrLapsed], [ErrSettled], or what was found out, such as
// [ErrLost].
func (r *Reservation) Context() context.Context { return r.ownership }

// Within returns a context that ends with the given one and with the ownership,
// whichever is first. Call cancel when it is not needed any more.
func (r *Reservation) Within(ctx context.Context) (bound context.Context, cancel context.CancelFunc) {
	return r.ownership.bind(ctx)
}

// Remaining returns the time until the owner's deadline; 0 once the ownership has ended.
func (r *Reservation) Remaining() time.Duration { return r.ownership.remaining() }

// Release says that nothing happened, and that nothing will, and frees the key at once.
// The reason, 0 to 1024 bytes, is told to the next owner. Whoever does not know must not
// release. Again is fine.
//
// From the moment it is sent the reservation's context has ended, whatever the answer. A
// context that is the reservation's own does not end the Release.
//
// Errors: [ErrAlreadyCommitted], [ErrLost], [ErrInvalidArgument], [ErrUnavailable],
// [ErrUnknown].
func (r *Reservation) Release(ctx context.Context, reason string) error {
	r.ownership.end(ErrSettled)
	ctx, bound := r.detached(ctx)
	return r.release(ctx, reason, bound)
}

func (r *Reservation) release(ctx context.Context, reason string, bound time.Duration) error {
	request := &coordinatorv1.ReleaseRequest{Identity: r.identity.wire(), Token: r.token, Reason: reason}
	_, err := invoke(ctx, r.client, operation{name: callRelease, identity: r.identity, bound: bound},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.ReleaseResponse] {
			return node.release(ctx, request)
		})
	return err
}

// detached returns what Commit and Release run under: the given context, unless that
// ends with the ownership itself, which has just ended.
func (r *Reservation) detached(ctx context.Context) (context.Context, time.Duration) {
	if ctx.Value(reservationKey{r}) != nil {
		return context.WithoutCancel(ctx), r.client.settleTimeout
	}
	return ctx, r.client.callTimeout
}

// Extend moves the deadline to ttl from now, never backwards; 0 means the time that was
// asked for on Reserve. 100 ms to 24 h, and not beyond 7 days after the grant (a setting).
//
// Where the answer says that the ownership is lost, the reservation's context ends with
// that as its cause. A reservation that has ended is not extended: [ErrLapsed], or what
// ended it.
//
// Errors: [ErrLapsed], [ErrLost], [ErrAlreadyCommitted], [ErrAlreadyReleased],
// [ErrSettled], [ErrInvalidArgument], [ErrUnavailable], [ErrUnknown].
func (r *Reservation) Extend(ctx context.Context, ttl time.Duration) error {
	request := &coordinatorv1.ExtendRequest{Identity: r.identity.wire(), Token: r.token}
	if ttl != 0 {
		request.PendingTtl = window(&ttl)
	}
	// It ends with the ownership: there is nothing to extend then. The node is told when that is.
	within, cancel := r.Within(ctx)
	defer cancel()
	if err := r.ended(); err != nil {
		return err
	}
	bound, end := context.WithTimeout(within, r.Remaining())
	defer end()
	got, err := invoke(bound, r.client, operation{name: callExtend, identity: r.identity, bound: r.client.callTimeout, owns: true},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.ExtendResponse] {
			return node.extend(ctx, request)
		})
	if err != nil {
		if lost(err) {
			r.ownership.end(err)
			return err
		}
		if ended := r.ended(); ended != nil {
			return ended
		}
		return err
	}
	remaining := got.message.GetRemaining().AsDuration()
	if !r.ownership.extend(got.sent + lease.Share(remaining)) {
		return r.ended()
	}
	r.mu.Lock()
	r.renewAt = got.sent + remaining/3
	r.mu.Unlock()
	return nil
}

// ended returns why the ownership has ended, or nil while it has not.
func (r *Reservation) ended() error {
	if r.ownership.Err() == nil {
		return nil
	}
	return context.Cause(r.ownership)
}

// lost reports whether the error says that the reservation is not its owner's any more.
func lost(err error) bool {
	for _, is := range [...]error{ErrLost, ErrLapsed, ErrAlreadyCommitted, ErrAlreadyReleased} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}
