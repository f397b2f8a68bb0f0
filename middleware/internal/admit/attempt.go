package admit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
)

// Question is what a keyed request asks the coordinator.
type Question struct {
	Principal, Operation, Key string
	Fingerprint               []byte
	// Window is how long the key is kept, from the grant on; 0: the record's retention.
	Window time.Duration
}

// Attempt is one admitted request, from its grant to its answer.
type Attempt struct {
	*Settings
	reservation *client.Reservation
	mark        atomic.Int32  // a verdict: the handler's own word
	window      time.Duration // 0: the record's retention
	granted     time.Time     // not before the coordinator granted it
}

// Ask asks the coordinator. There is an Attempt if it admits the request, and only then. The
// error is a *refusal.Refusal, or a *client.CommittedError with the response to replay. What
// the operator must hear of is logged.
//
// A principal comes from the application, so one that is none is its mistake and not the
// caller's. It is refused before the coordinator is asked, and names where it is from.
func (s *Settings) Ask(ctx context.Context, q Question) (*Attempt, error) {
	identity := s.identity(q)
	if err := checkPart("principal", identity.Principal, principalBytesMost); err != nil {
		s.Logger.ErrorContext(ctx, "a keyed "+s.Kind+" was refused: what WithPrincipal returned is no principal", "operation", identity.Operation, "error", err)
		return nil, &refusal.Refusal{Code: refusal.Misconfigured, Detail: err.Error()}
	}
	options := append(s.options(), client.WithFingerprint(q.Fingerprint))
	if q.Window > 0 {
		options = append(options, client.WithRetention(q.Window))
	}
	reservation, err := s.Client.Reserve(ctx, identity, options...)
	if err == nil {
		return &Attempt{Settings: s, reservation: reservation, window: q.Window, granted: time.Now()}, nil
	}
	if errors.Is(err, client.ErrCommitted) {
		return nil, err
	}
	refused := refusal.OfReserve(err, s.RetryAfter)
	switch refused.Code {
	case refusal.Misconfigured:
		s.Logger.ErrorContext(ctx, "the coordinator refuses what it is asked for", append(named(identity), "error", err)...)
	case refusal.Unavailable:
		level, text := slog.LevelWarn, "a keyed "+s.Kind+" was refused: the coordinator does not admit it"
		switch over := ended(ctx); {
		case over == nil || !timeOnly(err):
		case errors.Is(over, context.Canceled):
			level, text = slog.LevelDebug, "the caller of a keyed "+s.Kind+" was gone before the coordinator had answered"
		default:
			text = "a keyed " + s.Kind + " was refused: its own deadline came before the coordinator's answer"
		}
		s.Logger.Log(ctx, level, text, append(named(identity), "error", err)...)
	}
	return nil, refused
}

// ended is why a context has ended, or is about to: a call under it may have ended by the same
// deadline a moment before the context says so.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// timeOnly reports that an error of Reserve says no more than that its time was over: no node was
// found to be away, and none has refused.
func timeOnly(err error) bool {
	var failed *client.Error
	return errors.As(err, &failed) && (failed.Code == codes.Canceled || failed.Code == codes.DeadlineExceeded)
}

// Named are the attributes of a question's record in the log.
func (s *Settings) Named(q Question) []any { return named(s.identity(q)) }

func named(id client.Identity) []any {
	return lease.Named(id.Namespace, id.Principal, id.Operation, id.Key)
}

// log tells the operator something of the attempt, with what names its record and says what its lapse
// means: this may be all that somebody has who must settle it.
func (a *Attempt) log(ctx context.Context, level slog.Level, text string, attributes ...any) {
	attributes = append(named(a.reservation.Identity()), attributes...)
	a.Logger.Log(ctx, level, text, append(attributes, "on_lapse", a.OnLapse.String())...)
}

// Warn logs what of the answer is not as its caller may expect.
func (a *Attempt) Warn(ctx context.Context, text string, attributes ...any) {
	a.log(ctx, slog.LevelWarn, text, attributes...)
}

// unknown says that somebody may have to find out what came of it.
func (a *Attempt) unknown(ctx context.Context, status string) {
	a.log(ctx, slog.LevelWarn, "what came of a guarded "+a.Kind+" is unknown; its reservation is left to lapse", "status", status)
}

// Reservation returns what the request was admitted with; nil of a nil Attempt.
func (a *Attempt) Reservation() *client.Reservation {
	if a == nil {
		return nil
	}
	return a.reservation
}

// Mark takes the handler's own word for what its answer means; the last one counts. Of a nil
// Attempt it does nothing.
func (a *Attempt) Mark(v verdict.Verdict) {
	if a != nil {
		a.mark.Store(int32(v))
	}
}

func (a *Attempt) marked() verdict.Verdict { return verdict.Verdict(a.mark.Load()) }

// Handler is a guarded handler, and what it answers. Its methods are called one after the
// other, Abandon excepted.
type Handler interface {
	// Handle runs the handler under a context that ends with the reservation. It may panic.
	Handle(ctx context.Context)
	// Returned reports whether the handler itself has returned: something between may have
	// answered for one that goes on.
	Returned() bool
	// Judge says what the answer means, where the handler has not said so itself. ended says
	// that its context had ended when it returned.
	Judge(ended bool) verdict.Verdict
	// Status is that of the answer, for people.
	Status() string
	// Response is the answer as it is stored. It is asked for if it is to be, and only then.
	// unstored says why it stands for one that cannot be ([Omitted]); nil where it does not.
	Response() (response client.Response, unstored error)
	// Abandon cuts the handler off from its caller, and reports whether it did: not if the
	// caller has a part of the answer, nor if the handler has returned. It may be called while
	// Handle runs.
	Abandon() bool
}

// Run runs the handler and records what came of it. A refusal is what the caller gets; nil: the
// handler's own answer. Panics go on.
func (a *Attempt) Run(caller context.Context, h Handler) *refusal.Refusal {
	ctx := caller
	switch {
	case !a.CallerCancels:
		ctx = context.WithoutCancel(caller)
	case a.HandlerTimeout > 0:
		// Once this returns the server ends the caller's context, and the handler may go on. It
		// has not the caller's deadline either, which may come while it does.
		attached, end := context.WithCancelCause(context.WithoutCancel(caller))
		defer context.AfterFunc(caller, func() { end(context.Cause(caller)) })()
		ctx = attached
	}
	if a.HandlerTimeout == 0 {
		return a.run(ctx, h)
	}
	// The handler may outlive its time, so it runs by itself. It is never released while it
	// has not returned: it may still act.
	type end struct {
		refused  *refusal.Refusal
		panicked any
		returned bool
	}
	ended := make(chan end, 1)
	go func() {
		var e end
		defer func() {
			if e.panicked = recover(); e.panicked != nil && e.panicked != a.Abort {
				a.log(caller, slog.LevelError, "a guarded handler panicked",
					"panic", fmt.Sprint(e.panicked), "stack", string(debug.Stack()))
			}
			ended <- e
		}()
		e.refused = a.run(ctx, h)
		e.returned = true
	}()
	timer := time.NewTimer(a.HandlerTimeout)
	defer timer.Stop()
	var e end
	select {
	case e = <-ended:
	case <-timer.C:
		if h.Abandon() {
			return refusal.Late(a.RetryAfter)
		}
		e = <-ended
	}
	switch {
	case e.panicked != nil:
		panic(e.panicked)
	case e.returned:
		return e.refused
	case a.Abort != nil:
		panic(a.Abort)
	}
	panic("a guarded handler ended its goroutine")
}

// run does so under a context that ends with the given one and with the reservation.
func (a *Attempt) run(ctx context.Context, h Handler) *refusal.Refusal {
	bound, cancel := a.reservation.Within(ctx)
	defer cancel()
	stop := func() {}
	if a.KeepAlive {
		stop = a.reservation.KeepAlive(context.WithoutCancel(ctx))
	}
	returned := false
	// Without recover the panic keeps its stack.
	defer func() {
		ended := bound.Err() != nil
		stop()
		switch {
		case returned:
		case a.panicked(ended) == verdict.Release:
			a.release("the handler panicked")
		default:
			a.unknown(ctx, "it panicked")
		}
	}()
	h.Handle(bound)
	returned = true
	ended := bound.Err() != nil
	stop()
	switch a.judge(h, ended) {
	case verdict.Store:
		return a.commit(ctx, h)
	case verdict.Release:
		a.release("the handler answered " + h.Status())
	default:
		a.unknown(ctx, h.Status())
	}
	return nil
}

// panicked says what a panic means. A handler whose context had ended may have panicked because
// something was cut off, which may have happened all the same.
func (a *Attempt) panicked(ended bool) verdict.Verdict {
	if mark := a.marked(); mark != verdict.Default {
		return mark
	}
	if a.OnLapse != client.Reopen || ended {
		return verdict.Uncertain
	}
	return verdict.Release
}

func (a *Attempt) judge(h Handler, ended bool) verdict.Verdict {
	if !h.Returned() {
		return verdict.Uncertain
	}
	if mark := a.marked(); mark != verdict.Default {
		return mark
	}
	return h.Judge(ended)
}

// settle says what came of it, for as long as the client tries (client.WithSettleTimeout) and
// whatever became of the caller, who waits no longer than SettleWait. timely is false where it
// goes on behind the scenes.
func (a *Attempt) settle(say func(context.Context) error) (timely bool, err error) {
	// Under the reservation's own context the client detaches and bounds it.
	ctx := a.reservation.Context()
	done := make(chan error, 1)
	go func() {
		err := say(ctx)
		if err != nil {
			a.log(ctx, slog.LevelError, "what came of a guarded "+a.Kind+" could not be recorded", "error", err)
		}
		done <- err
	}()
	timer := time.NewTimer(a.SettleWait)
	defer timer.Stop()
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

// commit records the response. A commit that fails is never a release.
func (a *Attempt) commit(ctx context.Context, h Handler) *refusal.Refusal {
	response, unstored := h.Response()
	status := h.Status()
	omit := func(why error) {
		// Its first caller has it all, and hears nothing of this.
		a.Warn(ctx, "what a guarded "+a.Kind+" answered is not stored: its retries get RESPONSE_NOT_STORED", "status", status, "error", why)
	}
	if unstored != nil {
		omit(unstored)
	}
	timely, err := a.settle(func(ctx context.Context) error {
		options := []client.CommitOption{client.WithSubstitute(func(refused error) client.Response {
			omit(refused)
			return Omitted(response.Code, int64(len(response.Body)))
		})}
		if a.window > 0 {
			// The window began with the grant. What is left of it is reckoned from a moment
			// that is not before that, and runs from one that is not before now.
			options = append(options, client.WithCommitRetention(max(a.window-time.Since(a.granted), lease.RetentionMin)))
		}
		return a.reservation.Commit(ctx, response, options...)
	})
	if timely && err == nil {
		return nil
	}
	return refusal.Unrecorded(err, a.RetryAfter)
}

// release frees the key. Where that fails, it is free once the reservation lapses.
func (a *Attempt) release(reason string) {
	_, _ = a.settle(func(ctx context.Context) error { return a.reservation.Release(ctx, reason) })
}

// Omitted stands for a response that cannot be stored, with the size of its body.
func Omitted(code int, bytes int64) client.Response {
	return client.Response{Code: code, Headers: []client.Header{
		{Name: client.OmittedHeader, Value: strconv.FormatInt(bytes, 10)},
	}}
}
