package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/atmostonce/coordinator/internal/lease"
)

// DoOption is an option of [Client.Do]. Those of Reserve and of Commit are too.
type DoOption interface{ applyToDo(*doConfig) }

type doConfig struct {
	reserve   reserveConfig
	commit    commitConfig
	keepAlive bool
}

type doOption func(*doConfig)

func (o doOption) applyToDo(c *doConfig) { o(c) }

// WithKeepAlive renews the reservation while the function runs; see
// [Reservation.KeepAlive]. Without it the function's context ends with the pending
// window that was asked for.
func WithKeepAlive() DoOption { return doOption(func(c *doConfig) { c.keepAlive = true }) }

// Result is what [Client.Do] came to.
type Result struct {
	// Response is the function's, or the stored one.
	Response Response
	// Replayed says that the function did not run: it is the stored response.
	Replayed bool
}

// CommitError reports that the function of [Client.Do] succeeded and that this could not
// be recorded. What was done is done; the reservation was not released.
type CommitError struct {
	// Err is why: an error of [Reservation.Commit].
	Err error
}

// Error implements error.
func (e *CommitError) Error() string {
	return "coordinator: it was done, and that could not be recorded: " + e.Err.Error()
}

// Unwrap returns why.
func (e *CommitError) Unwrap() error { return e.Err }

// ErrOmitted reports that the operation was done before, with a response that could not
// be stored. The [Result] holds its code.
var ErrOmitted = errors.New("it was done before, and its response could not be stored")

// Do runs a function at most once for an identity and gives every caller its response:
// it reserves, runs the function if it is admitted, and commits what the function
// returns; whoever comes after that gets the stored response, [Result].Replayed.
//
// The function gets a context that ends with ctx and with the ownership, whichever is
// first; when it ends, it stops and starts nothing more. What it returns decides:
//
//   - a response: it is committed. That goes on, with the same token and for as long as
//     [WithSettleTimeout] says, even when ctx ends meanwhile, and never turns into a
//     Release. If it fails all the same, the error is a [*CommitError] and the Result has
//     the response. A response that cannot be stored is replaced by one that says so
//     ([Response.Omitted]), or by that of [WithSubstitute]; its first caller gets it
//     whole, later ones get the stored one, with [ErrOmitted] where it says so, and the
//     function does not run again.
//   - an error after which it cannot have acted: the reservation is released, with the
//     error's text as its reason, and the next caller's function runs. See [IsUncertain] for which errors are not that.
//   - an uncertain error, and after its context has ended every one but what is marked with
//     [NotApplied]: nothing is released. The reservation lapses, and [WithOnLapse] says what
//     that means.
//   - a panic, or runtime.Goexit: under [Reopen], and while its context has not ended, it is
//     released with that as its reason; under [Hold] nothing that is uncertain is ever
//     released. The panic goes on.
//
// Do returns the function's error as it is. All others are those of [Client.Reserve].
func (c *Client) Do(ctx context.Context, id Identity, run func(context.Context, *Reservation) (Response, error), options ...DoOption) (Result, error) {
	var cfg doConfig
	for _, option := range c.defaults {
		option.applyToDo(&cfg)
	}
	for _, option := range given("Do", options) {
		option.applyToDo(&cfg)
	}
	if run == nil {
		return Result{}, invalid("Do", "run", "is nil: there is no function to run")
	}
	r, err := c.reserve(ctx, id, cfg.reserve)
	var committed *CommittedError
	switch {
	case errors.As(err, &committed):
		result := Result{Response: committed.Response, Replayed: true}
		if result.Response.Omitted() {
			return result, ErrOmitted
		}
		return result, nil
	case err != nil:
		return Result{}, err
	}
	if err := ctx.Err(); err != nil {
		// What it would run under is over already: for once it is certain that nothing happened.
		r.giveUp(ctx, r.unused(lease.GoneBy))
		return Result{}, err
	}
	response, ended, err := r.run(ctx, cfg, run)
	if err != nil {
		onLapse := r.onLapse
		if ended {
			onLapse = Hold // what was cut off says so in any words: only a mark is certain
		}
		if !IsUncertain(err, onLapse) {
			r.giveUp(ctx, err.Error())
		} else {
			r.ownership.end(err)
		}
		return Result{}, err
	}
	r.ownership.end(ErrSettled)
	if cfg.commit.substitute == nil {
		cfg.commit.substitute = func(error) Response { return response.omitted() }
	}
	// Whatever the caller does, what was done is recorded.
	if err := r.record(context.WithoutCancel(ctx), response, cfg.commit, c.settleTimeout); err != nil {
		return Result{Response: response}, &CommitError{Err: err}
	}
	return Result{Response: response}, nil
}

// run runs the function, and gives the reservation up if it does not return and the key
// reopens. ended says that the function's context had ended by the time it returned: by its
// caller, with the ownership, or since it has committed or released by itself.
func (r *Reservation) run(
	ctx context.Context, cfg doConfig, run func(context.Context, *Reservation) (Response, error),
) (response Response, ended bool, err error) {
	bound, cancel := r.Within(ctx)
	defer cancel()
	if cfg.keepAlive {
		defer r.KeepAlive(ctx)()
	}
	returned := false
	// Without recover the panic keeps its stack.
	defer func() {
		switch {
		case returned:
		case r.onLapse == Reopen && bound.Err() == nil:
			r.giveUp(ctx, "the function panicked")
		default:
			r.ownership.end(errPanicked)
		}
	}()
	response, err = run(bound, r)
	returned = true
	return response, bound.Err() != nil, err
}

// errPanicked is the cause of the end of a reservation whose function did not return.
var errPanicked = errors.New("client: the function panicked")

// reasonMost is how long the reason of a release may be, in bytes.
const reasonMost = 1024

// giveUp releases, whatever became of the caller. Where that fails the key is free once
// the reservation lapses.
func (r *Reservation) giveUp(ctx context.Context, reason string) {
	r.ownership.end(ErrSettled)
	if err := r.release(context.WithoutCancel(ctx), text(reason), r.client.callTimeout); err != nil {
		r.client.logger.WarnContext(ctx, "a reservation could not be released, and blocks its key until it lapses",
			append(r.identity.named(), "error", fmt.Sprint(err))...)
	}
}

// text cuts a reason to what the coordinator takes, valid UTF-8 of a bounded length.
func text(reason string) string {
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) <= reasonMost {
		return reason
	}
	return strings.ToValidUTF8(reason[:reasonMost], "")
}
