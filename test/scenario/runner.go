package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Runner plays scenarios.
type Runner struct {
	Target Target
	// Namespace maps a script's namespaces to fresh ones; nil leaves them as they are.
	Namespace func(string) string
	// Tolerance is how much less a remaining time may be than the script says, where
	// time goes on between the steps.
	Tolerance time.Duration
}

// grant is a Reserve's grant under its label.
type grant struct {
	identity admission.Identity
	token    string
	fence    uint64
}

// play is one run of one script.
type play struct {
	*Runner
	grants  map[string]grant
	seen    map[string]uint64
	waiters map[string]Waiter
}

// Run plays one scenario and returns the first difference, or why there was no
// answer.
func (r *Runner) Run(ctx context.Context, s Scenario) error {
	p := &play{Runner: r, grants: map[string]grant{}, seen: map[string]uint64{}, waiters: map[string]Waiter{}}
	for i := range s.Steps {
		step := &s.Steps[i]
		if err := p.step(ctx, step); err != nil {
			return &StepError{Scenario: s.Name, Step: i + 1, Name: step.Name(), Line: step.line, Err: err}
		}
	}
	return nil
}

// StepError says at which step a scenario went wrong.
type StepError struct {
	Scenario string
	Step     int // from 1
	Name     string
	Line     int // in the script's text
	Err      error
}

// Error implements error.
func (e *StepError) Error() string {
	return fmt.Sprintf("%q step %d (%s, line %d): %v", e.Scenario, e.Step, e.Name, e.Line, e.Err)
}

// Unwrap returns what went wrong at the step.
func (e *StepError) Unwrap() error { return e.Err }

func (p *play) step(ctx context.Context, step *Step) error {
	switch {
	case step.Advance != nil:
		return p.Target.Advance(ctx, time.Duration(*step.Advance))
	case step.Start != nil:
		call, err := p.reserveCall(step.Start.Reserve)
		if err != nil {
			return err
		}
		p.waiters[step.Start.As], err = p.Target.Start(ctx, call)
		return err
	}
	result, err := p.call(ctx, step)
	if err != nil {
		return err
	}
	return p.compare(step.Expect, result)
}

// call makes the step's call and keeps what it is labelled with.
func (p *play) call(ctx context.Context, step *Step) (Result, error) {
	switch {
	case step.Reserve != nil:
		return p.reserve(ctx, step.Reserve)
	case step.Commit != nil:
		id, token, err := p.owner(step.Commit.Subject, step.Commit.Token)
		if err != nil {
			return Result{}, err
		}
		return p.Target.Commit(ctx, CommitCall{id, token, *step.Commit.Response, step.Commit.Retention.pointer()})
	case step.Release != nil:
		id, token, err := p.owner(step.Release.Subject, step.Release.Token)
		if err != nil {
			return Result{}, err
		}
		return p.Target.Release(ctx, ReleaseCall{id, token, step.Release.Reason})
	case step.Extend != nil:
		id, token, err := p.owner(step.Extend.Subject, step.Extend.Token)
		if err != nil {
			return Result{}, err
		}
		return p.Target.Extend(ctx, ExtendCall{id, token, step.Extend.PendingTTL.pointer()})
	case step.Resolve != nil:
		id, revision, err := p.looked(ctx, step.Resolve.Subject, step.Resolve.RevisionOf)
		if err != nil {
			return Result{}, err
		}
		return p.Target.Resolve(ctx, ResolveCall{id, revision, step.Resolve.Response, step.Resolve.Note})
	case step.Purge != nil:
		id, revision, err := p.looked(ctx, step.Purge.Subject, step.Purge.RevisionOf)
		if err != nil {
			return Result{}, err
		}
		return p.Target.Purge(ctx, PurgeCall{id, revision, step.Purge.Force})
	case step.Get != nil:
		return p.get(ctx, step.Get)
	default:
		waiter, known := p.waiters[step.Finish.Of]
		if !known {
			return Result{}, fmt.Errorf("nothing was started as %q", step.Finish.Of)
		}
		return waiter.Finish(ctx, time.Duration(*step.Finish.Within))
	}
}

func (p *play) reserve(ctx context.Context, reserve *Reserve) (Result, error) {
	call, err := p.reserveCall(reserve)
	if err != nil {
		return Result{}, err
	}
	result, err := p.Target.Reserve(ctx, call)
	if err == nil && reserve.As != "" && result.Outcome == "granted" {
		p.grants[reserve.As] = grant{call.Identity, result.Token, result.Fence}
	}
	return result, err
}

func (p *play) reserveCall(reserve *Reserve) (ReserveCall, error) {
	id, err := p.subject(reserve.Subject)
	if err != nil {
		return ReserveCall{}, err
	}
	if reserve.Attempt == "" {
		return ReserveCall{}, errors.New("a reserve without an attempt")
	}
	call := ReserveCall{
		Identity:    id,
		Attempt:     AttemptOf(reserve.Attempt),
		Fingerprint: FingerprintOf(reserve.Fingerprint),
		PendingTTL:  reserve.PendingTTL.pointer(),
		Retention:   reserve.Retention.pointer(),
		Owner:       reserve.Owner,
		Wait:        time.Duration(reserve.Wait),
	}
	switch reserve.OnLapse {
	case "", "reopen":
	case "hold":
		call.OnLapse = admission.Hold
	default:
		return ReserveCall{}, fmt.Errorf("on_lapse %q has no meaning", reserve.OnLapse)
	}
	return call, nil
}

func (p *play) get(ctx context.Context, get *Get) (Result, error) {
	id, err := p.subject(get.Subject)
	if err != nil {
		return Result{}, err
	}
	result, err := p.Target.Get(ctx, id)
	if err == nil && get.As != "" {
		p.seen[get.As] = result.Revision
	}
	return result, err
}

// subject returns the identity that a call is about.
func (p *play) subject(s Subject) (admission.Identity, error) {
	if s.Of == "" {
		namespace := p.Namespace
		if namespace == nil {
			namespace = func(same string) string { return same }
		}
		return s.identity(namespace)
	}
	g, known := p.grants[s.Of]
	if !known {
		return admission.Identity{}, fmt.Errorf("nothing was granted as %q", s.Of)
	}
	return g.identity, nil
}

// owner returns the identity and token of a call that an owner makes.
func (p *play) owner(s Subject, token string) (admission.Identity, string, error) {
	id, err := p.subject(s)
	if err != nil {
		return id, "", err
	}
	switch {
	case s.Of != "" && token == "":
		return id, p.grants[s.Of].token, nil
	case s.Of == "" && token == "never_granted":
		return id, admission.Token{Fence: 1 << 40, Attempt: AttemptOf("never granted")}.String(), nil
	case s.Of == "" && token == "malformed":
		return id, "not-a-token", nil
	}
	return id, "", fmt.Errorf("of %q and token %q name no token", s.Of, token)
}

// looked returns the revision that a settlement or a purge names: the one that a Get
// showed earlier, or the one that a Get shows now.
func (p *play) looked(ctx context.Context, s Subject, of string) (admission.Identity, uint64, error) {
	id, err := p.subject(s)
	if err != nil {
		return id, 0, err
	}
	if of != "" {
		revision, known := p.seen[of]
		if !known {
			return id, 0, fmt.Errorf("nothing was seen as %q", of)
		}
		return id, revision, nil
	}
	result, err := p.Target.Get(ctx, id)
	if result.Reason != "" {
		result.Revision = 1 // there is none, and the call needs one
	}
	return id, result.Revision, err
}
