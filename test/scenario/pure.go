package scenario

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Rules decide commands and remember what they have decided.
type Rules interface {
	// Apply carries out a valid command.
	Apply(at admission.Instant, command admission.Command) admission.Answer
	// Get returns the state and revision that everybody may see; [admission.StateNone]
	// where there is no record.
	Get(id admission.Identity, now admission.Time) (admission.State, uint64)
}

// Pure is the target without a server: rules and a virtual clock. A waiter is
// decided again, first come first served, whenever its record may have changed.
type Pure struct {
	rules   Rules
	now     admission.Time
	waiting []*pureWaiter // oldest first
	// bodies are the responses behind the hashes; the rules keep the hash only.
	bodies map[[32]byte]Response
}

// NewPure returns a target whose clock reads zero.
func NewPure(rules Rules) *Pure {
	return &Pure{rules: rules, bodies: map[[32]byte]Response{}}
}

// pureWaiter is a Reserve that is held back.
type pureWaiter struct {
	target  *Pure
	call    ReserveCall
	until   admission.Time // end of its wait
	changes admission.Time // when the record changes by itself
	result  Result
	done    bool
}

func (p *Pure) instant() admission.Instant {
	const year2026 = 1767225600_000000000
	return admission.Instant{Now: p.now, WallNanos: year2026 + int64(p.now)}
}

// apply validates and decides a command, and decides the record's waiters again.
func (p *Pure) apply(command admission.Command) (admission.Answer, bool) {
	if v := command.Validate(); v != nil {
		return admission.Answer{Refusal: v.Reason}, false
	}
	answer := p.rules.Apply(p.instant(), command)
	return answer, answer.Refusal == admission.None
}

// Reserve implements [Target].
func (p *Pure) Reserve(ctx context.Context, call ReserveCall) (Result, error) {
	waiter, err := p.Start(ctx, call)
	if err != nil {
		return Result{}, err
	}
	return waiter.Finish(ctx, call.Wait)
}

// Start implements [Target].
func (p *Pure) Start(_ context.Context, call ReserveCall) (Waiter, error) {
	w := &pureWaiter{target: p, call: call, until: p.now.Add(call.Wait)}
	w.decide()
	if !w.done {
		p.waiting = append(p.waiting, w)
	}
	return w, nil
}

// decide decides the waiter's Reserve now.
func (w *pureWaiter) decide() {
	p := w.target
	answer, _ := p.apply(admission.Reserve{
		Identity:    w.call.Identity,
		Attempt:     w.call.Attempt,
		Fingerprint: w.call.Fingerprint,
		PendingTTL:  otherwise(w.call.PendingTTL, admission.PendingTTLDefault),
		Retention:   otherwise(w.call.Retention, admission.RetentionDefault),
		OnLapse:     w.call.OnLapse,
		Owner:       w.call.Owner,
		WantedUntil: admission.Never,
	})
	w.changes = answer.Deadline
	w.done = answer.Outcome != admission.OutcomePending || p.now >= w.until
	w.result = p.result(answer)
}

// changed decides the waiters of a record again.
func (p *Pure) changed(id admission.Identity) {
	var still []*pureWaiter
	for _, w := range p.waiting {
		if w.call.Identity == id {
			w.decide()
		}
		if !w.done {
			still = append(still, w)
		}
	}
	p.waiting = still
}

// advance moves the clock to the given time, stopping wherever a waiter has to be
// decided again, and at the moment at which stop is true.
func (p *Pure) advance(to admission.Time, stop func() bool) {
	for !stop() {
		next := to
		for _, w := range p.waiting {
			next = min(next, w.until, w.changes)
		}
		p.now = next
		ids := make([]admission.Identity, 0, len(p.waiting))
		for _, w := range p.waiting {
			ids = append(ids, w.call.Identity)
		}
		for _, id := range ids {
			p.changed(id)
		}
		if p.now == to {
			return
		}
	}
}

// Finish implements [Waiter].
func (w *pureWaiter) Finish(_ context.Context, within time.Duration) (Result, error) {
	w.target.advance(w.target.now.Add(within), func() bool { return w.done })
	if !w.done {
		return Result{}, fmt.Errorf("still waiting after %v", within)
	}
	return w.result, nil
}

// Advance implements [Target].
func (p *Pure) Advance(_ context.Context, d time.Duration) error {
	p.advance(p.now.Add(d), func() bool { return false })
	return nil
}

// Commit implements [Target].
func (p *Pure) Commit(_ context.Context, call CommitCall) (Result, error) {
	token, v := admission.ParseToken("token", call.Token)
	if v != nil {
		return Result{Reason: string(v.Reason)}, nil
	}
	if call.Retention != nil && *call.Retention == 0 {
		return Result{Reason: string(admission.InvalidArgument)}, nil
	}
	return p.command(admission.Commit{
		Identity: call.Identity, Token: token, Response: p.response(call.Response), Retention: otherwise(call.Retention, 0),
	})
}

// Release implements [Target].
func (p *Pure) Release(_ context.Context, call ReleaseCall) (Result, error) {
	token, v := admission.ParseToken("token", call.Token)
	if v != nil {
		return Result{Reason: string(v.Reason)}, nil
	}
	return p.command(admission.Release{Identity: call.Identity, Token: token, Reason: call.Reason})
}

// Extend implements [Target].
func (p *Pure) Extend(_ context.Context, call ExtendCall) (Result, error) {
	token, v := admission.ParseToken("token", call.Token)
	if v != nil {
		return Result{Reason: string(v.Reason)}, nil
	}
	if call.PendingTTL != nil && *call.PendingTTL == 0 {
		return Result{Reason: string(admission.InvalidArgument)}, nil
	}
	return p.command(admission.Extend{
		Identity: call.Identity, Token: token, PendingTTL: otherwise(call.PendingTTL, 0), Span: admission.ExtendSpanDefault,
	})
}

// Resolve implements [Target].
func (p *Pure) Resolve(_ context.Context, call ResolveCall) (Result, error) {
	command := admission.Resolve{Identity: call.Identity, Revision: call.Revision, Note: call.Note}
	if call.Response != nil {
		command.Applied, command.Response = true, p.response(*call.Response)
	}
	return p.command(command)
}

// Purge implements [Target].
func (p *Pure) Purge(_ context.Context, call PurgeCall) (Result, error) {
	return p.command(admission.Purge{Identity: call.Identity, Revision: call.Revision, Force: call.Force})
}

// Get implements [Target].
func (p *Pure) Get(_ context.Context, id admission.Identity) (Result, error) {
	if v := id.Validate(); v != nil {
		return Result{Reason: string(v.Reason)}, nil
	}
	state, revision := p.rules.Get(id, p.now)
	if state == admission.StateNone {
		return Result{Reason: string(admission.ReservationNotFound)}, nil
	}
	return Result{State: state.String(), Revision: revision}, nil
}

// command carries out what is not a Reserve.
func (p *Pure) command(command admission.Command) (Result, error) {
	answer, done := p.apply(command)
	if done {
		p.changed(command.On())
	}
	return p.result(answer), nil
}

// response keeps a response and returns it as the rules see it.
func (p *Pure) response(r Response) admission.Response {
	encoded, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	hash := sha256.Sum256(encoded)
	p.bodies[hash] = r
	return admission.Response{Hash: hash, Bytes: uint32(len(r.Body)), Stored: encoded}
}

func (p *Pure) result(answer admission.Answer) Result {
	if answer.Refusal != admission.None {
		return Result{Reason: string(answer.Refusal)}
	}
	result := Result{
		Fence:          answer.Fence,
		Attempt:        answer.Attempt,
		PreviousReason: answer.Previous.Reason,
		Repeated:       answer.Repeated,
		Late:           answer.Late,
		Remaining:      answer.Deadline.Sub(p.now),
	}
	switch answer.Outcome {
	case admission.OutcomeNone:
	case admission.OutcomeGranted:
		result.Token = answer.Token.String()
		result.Previous = [...]string{"none", "released", "lapsed"}[answer.Previous.End]
	case admission.OutcomeCommitted:
		body := p.bodies[answer.Response.Hash]
		result.Response = &body
	}
	if answer.Outcome != admission.OutcomeNone {
		result.Outcome = answer.Outcome.String()
	}
	return result
}

func otherwise(given *time.Duration, absent time.Duration) time.Duration {
	if given == nil {
		return absent
	}
	return *given
}
