package grpcadmit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atmostonce/coordinator/client"
)

// attempt is one admitted call, from its grant to its answer.
type attempt struct {
	*guard
	next        grpc.UnaryHandler
	request     any
	message     proto.Message // the request
	method      string
	admission   *admission
	reservation *client.Reservation
}

// answered is what the caller gets: what the handler returned, or a refusal.
type answered struct {
	response any
	err      error
	refusal  *refusal
}

// serve runs the handler and answers.
func (a *attempt) serve(ctx context.Context) (any, error) {
	if a.handlerTimeout == 0 {
		return a.finish(ctx, a.run(ctx))
	}
	// The handler may outlive its time, so it runs by itself. It is never released while it
	// has not returned: it may still act.
	type end struct {
		answered
		panicked any
		returned bool
	}
	ended := make(chan end, 1)
	go func() {
		var e end
		defer func() {
			if e.panicked = recover(); e.panicked != nil {
				a.logger.ErrorContext(ctx, "a guarded handler panicked",
					"operation", a.method, "panic", fmt.Sprint(e.panicked), "stack", string(debug.Stack()))
			}
			ended <- e
		}()
		e.answered = a.run(ctx)
		e.returned = true
	}()
	timer := time.NewTimer(a.handlerTimeout)
	defer timer.Stop()
	select {
	case e := <-ended:
		switch {
		case e.panicked != nil:
			panic(e.panicked)
		case !e.returned:
			panic("grpcadmit: a guarded handler ended its goroutine")
		}
		return a.finish(ctx, e.answered)
	case <-timer.C:
		return nil, a.answer(ctx, &refusal{
			reason: ReasonHandlerTimeout, retryAfter: a.retryAfter,
			detail: "it goes on; the same key gets its answer, later",
		})
	}
}

// finish answers, now that what came of it is recorded, or not.
func (a *attempt) finish(ctx context.Context, came answered) (any, error) {
	if came.refusal != nil {
		return nil, a.answer(ctx, came.refusal)
	}
	return came.response, came.err
}

// run runs the handler and says what came of it.
func (a *attempt) run(caller context.Context) answered {
	base := context.WithoutCancel(caller)
	if a.callerCancels {
		base = caller
	}
	bound, cancel := a.reservation.Within(base)
	defer cancel()
	stop := func() {}
	if a.keepAlive {
		stop = a.reservation.KeepAlive(context.WithoutCancel(caller))
	}
	returned := false
	// Without recover the panic keeps its stack.
	defer func() {
		stop()
		if mark := a.marked(); !returned && (mark == Release || mark == Default && a.onLapse == client.Reopen) {
			a.release("the handler panicked")
		}
	}()
	response, err := a.next(context.WithValue(bound, admissionKey{}, a.admission), a.request)
	returned = true
	ended := bound.Err() != nil
	stop()
	told := toldBy(err)
	came := answered{response: response, err: err}
	switch a.judge(response, err, told, ended) {
	case Store:
		came.refusal = a.commit(a.storable(response, told))
	case Release:
		a.release("the handler answered " + told.Code().String())
	default:
		a.logger.WarnContext(caller, "what came of a guarded call is unknown; its reservation is left to lapse",
			"operation", a.method, "code", told.Code().String())
	}
	return came
}

// toldBy returns the status that gRPC makes of what a handler returned.
func toldBy(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	told, ok := status.FromError(err)
	if !ok {
		told = status.FromContextError(err)
	}
	return told
}

func (a *attempt) marked() Verdict { return Verdict(a.admission.mark.Load()) }

func (a *attempt) judge(response any, err error, told *status.Status, ended bool) Verdict {
	if mark := a.marked(); mark != Default {
		return mark
	}
	if err != nil {
		switch {
		case !client.IsUncertain(err, client.Hold): // it is marked: else everything is, under Hold
			return Release
		case client.IsUncertain(err, client.Reopen): // it is marked, or a context has ended
			return Uncertain
		}
	}
	if a.classifier != nil {
		outcome := Outcome{Method: a.method, Request: a.message, Status: told, Err: err}
		if err == nil {
			outcome.Response, _ = messageOf(response)
		}
		if verdict := a.classifier(outcome); verdict != Default {
			return verdict
		}
	}
	if err != nil && told.Code() == codes.OK {
		return Uncertain // an error that says it is none
	}
	code := told.Code()
	if passedOn(told) {
		code = codes.Unavailable
	}
	return rule(code, a.onLapse, ended)
}

// settle says what came of it, for as long as the client tries (client.WithSettleTimeout)
// and whatever became of the caller, who waits no longer than settleWait. timely is false
// where it goes on behind the scenes.
func (a *attempt) settle(say func(context.Context) error) (timely bool, err error) {
	// Under the reservation's own context the client detaches and bounds it.
	ctx := a.reservation.Context()
	done := make(chan error, 1)
	go func() {
		err := say(ctx)
		if err != nil {
			a.logger.ErrorContext(ctx, "what came of a guarded call could not be recorded", "operation", a.method, "error", err)
		}
		done <- err
	}()
	timer := time.NewTimer(a.settleWait)
	defer timer.Stop()
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

// commit records the answer. A commit that fails is never a release.
func (a *attempt) commit(response client.Response) *refusal {
	timely, err := a.settle(func(ctx context.Context) error {
		err := a.reservation.Commit(ctx, response)
		if errors.Is(err, client.ErrResponseTooLarge) || errors.Is(err, client.ErrInvalidArgument) {
			// That it was done must be recorded, if not what it answered.
			err = a.reservation.Commit(ctx, omitted(response.Code, len(response.Body)))
		}
		return err
	})
	switch {
	case timely && err == nil:
		return nil
	case errors.Is(err, client.ErrLost), errors.Is(err, client.ErrLapsed), errors.Is(err, client.ErrConflict),
		errors.Is(err, client.ErrAlreadyReleased):
		return &refusal{
			reason: ReasonLost, executed: true, retryAfter: a.retryAfter,
			detail: "it was carried out, and another answer counts",
		}
	}
	return &refusal{
		reason: ReasonUnavailable, executed: true, retryAfter: a.retryAfter,
		detail: "it was carried out, and it is not known whether that was recorded",
	}
}

// release frees the key. Where that fails, it is free once the reservation lapses.
func (a *attempt) release(reason string) {
	_, _ = a.settle(func(ctx context.Context) error { return a.reservation.Release(ctx, reason) })
}
