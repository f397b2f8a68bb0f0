package httpadmit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// attempt is one admitted request, from its grant to its answer.
type attempt struct {
	*guard
	next        http.Handler
	request     *http.Request
	admission   *admission
	reservation *client.Reservation
	recorder    *recorder
	window      time.Duration // 0: the record's retention
	granted     time.Time     // not before the coordinator granted it
}

// serve runs the handler and answers.
func (a *attempt) serve(w http.ResponseWriter) {
	if a.handlerTimeout == 0 {
		a.finish(w, a.run())
		return
	}
	// The handler may outlive its time, so it runs by itself. It is never released while
	// it has not returned: it may still act.
	type end struct {
		err      *problem
		panicked any
		returned bool
	}
	ended := make(chan end, 1)
	go func() {
		var e end
		defer func() {
			if e.panicked = recover(); e.panicked != nil && e.panicked != http.ErrAbortHandler { //nolint:errorlint // the very value
				a.logger.ErrorContext(a.request.Context(), "a guarded handler panicked",
					"panic", fmt.Sprint(e.panicked), "stack", string(debug.Stack()))
			}
			ended <- e
		}()
		e.err = a.run()
		e.returned = true
	}()
	timer := time.NewTimer(a.handlerTimeout)
	defer timer.Stop()
	var e end
	select {
	case e = <-ended:
	case <-timer.C:
		if a.recorder.abandon() {
			a.answer(w, &problem{
				code: CodeHandlerTimeout, retryAfter: a.retryAfter,
				detail: "it goes on; the same key gets its answer, later",
			})
			return
		}
		e = <-ended // the caller has a part of the answer already
	}
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case !e.returned: // it ended its goroutine
		panic(http.ErrAbortHandler)
	}
	a.finish(w, e.err)
}

// finish answers, now that what came of it is recorded, or not.
func (a *attempt) finish(w http.ResponseWriter, err *problem) {
	switch {
	case err == nil:
		a.recorder.send()
	case a.recorder.streaming:
		// The caller must not take what it has for a complete answer.
		panic(http.ErrAbortHandler)
	default:
		a.answer(w, err)
	}
}

// run runs the handler and says what came of it. nil: the caller gets the handler's
// answer.
func (a *attempt) run() *problem {
	caller := a.request.Context()
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
	request := a.request.WithContext(context.WithValue(bound, admissionKey{}, a.admission))
	returned := false
	// Without recover the panic keeps its stack.
	defer func() {
		stop()
		if mark := a.marked(); !returned && (mark == Release || mark == Default && a.onLapse == client.Reopen) {
			a.release("the handler panicked")
		}
	}()
	a.next.ServeHTTP(a.recorder, request)
	returned = true
	if request.MultipartForm != nil && a.request.MultipartForm == nil {
		_ = request.MultipartForm.RemoveAll() // net/http does so for its own request only
	}
	a.recorder.finish()
	ended := bound.Err() != nil
	stop()
	switch verdict := a.judge(request, ended); verdict {
	case Store:
		return a.commit()
	case Release:
		a.release(fmt.Sprintf("the handler answered %d", a.recorder.status))
	default:
		a.logger.WarnContext(caller, "what came of a guarded request is unknown; its reservation is left to lapse",
			"operation", a.reservation.Identity().Operation, "status", a.recorder.status)
	}
	return nil
}

func (a *attempt) marked() Verdict { return Verdict(a.admission.mark.Load()) }

func (a *attempt) judge(request *http.Request, ended bool) Verdict {
	r := a.recorder
	if r.cut {
		return Uncertain // http.TimeoutHandler does not wait for its handler
	}
	if mark := a.marked(); mark != Default {
		return mark
	}
	if a.classifier != nil {
		verdict := a.classifier(Outcome{Request: request, Status: r.status, Header: r.sent, Body: r.body, Truncated: r.streaming})
		if verdict != Default {
			return verdict
		}
	}
	return rule(r.status, a.onLapse, r.silent, ended)
}

// settle says what came of it, for as long as the client tries (client.WithSettleTimeout)
// and whatever became of the caller, who waits no longer than settleWait. timely is
// false where it goes on behind the scenes.
func (a *attempt) settle(say func(context.Context) error) (timely bool, err error) {
	// Under the reservation's own context the client detaches and bounds it.
	ctx := a.reservation.Context()
	done := make(chan error, 1)
	go func() {
		err := say(ctx)
		if err != nil {
			a.logger.ErrorContext(ctx, "what came of a guarded request could not be recorded",
				"operation", a.reservation.Identity().Operation, "error", err)
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

// commit records the response. A commit that fails is never a release.
func (a *attempt) commit() *problem {
	response := a.recorder.storable(a.never)
	timely, err := a.settle(func(ctx context.Context) error {
		var options []client.CommitOption
		if a.window > 0 {
			// The window began with the grant. What is left of it is reckoned from a
			// moment that is not before that, and runs from one that is not before now.
			left := max(a.window-time.Since(a.granted), windowLeast)
			options = append(options, client.WithCommitRetention(left))
		}
		err := a.reservation.Commit(ctx, response, options...)
		if errors.Is(err, client.ErrResponseTooLarge) || errors.Is(err, client.ErrInvalidArgument) {
			// That it was done must be recorded, if not what it answered.
			err = a.reservation.Commit(ctx, omitted(response.Code, int64(len(response.Body))), options...)
		}
		return err
	})
	switch {
	case timely && err == nil:
		return nil
	case errors.Is(err, client.ErrLost), errors.Is(err, client.ErrLapsed), errors.Is(err, client.ErrConflict),
		errors.Is(err, client.ErrAlreadyReleased):
		return &problem{
			code: CodeLost, executed: true, retryAfter: a.retryAfter,
			detail: "it was carried out, and another answer counts",
		}
	}
	return &problem{
		code: CodeUnavailable, executed: true, retryAfter: a.retryAfter,
		detail: "it was carried out, and it is not known whether that was recorded",
	}
}

// release frees the key. Where that fails, it is free once the reservation lapses.
func (a *attempt) release(reason string) {
	_, _ = a.settle(func(ctx context.Context) error { return a.reservation.Release(ctx, reason) })
}
