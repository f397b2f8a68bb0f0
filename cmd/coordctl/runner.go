package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/stopsignal"
)

const (
	// forever is a wait without an end of its own.
	forever = time.Duration(math.MaxInt64)
	// turn is how long one call of Reserve waits for a run elsewhere. A call is never cut off,
	// since it may be granted on the way: this is how long a signal may have to wait.
	turn = 2 * time.Second
	// awayWhileWaiting is how long the coordinator may be away while a caller waits for a
	// run elsewhere. That goes on meanwhile, and its coordinator may be restarting.
	awayWhileWaiting = time.Minute
	// toldWithin is how long somebody has to take the lines that come before the end.
	toldWithin = time.Second
	// goneWithin is how long a group that was killed is waited for. A process that does not
	// end by then hangs in the kernel, or is another user's.
	goneWithin = 5 * time.Second
)

// runner runs one command at most once.
//
// Its life is a line: ask until there is an answer (admit), run under the reservation
// (supervise), and say what came of it (settle); or replay. Nothing is started before
// admit has returned a reservation. Only what is known to have done nothing is released:
// what was not started, and what says so itself by --release-on. What was stopped is
// neither committed nor released. A commit that fails never turns into a release.
type runner struct {
	*control
	flags     *runFlags
	arguments []string
	identity  client.Identity
	options   []client.ReserveOption
	onLapse   client.OnLapse
	patience  time.Duration // how long to wait for a run elsewhere

	client   *client.Client
	answers  answers
	doubt    error // of a Reserve that may have been granted with nobody hearing of it; nil: none
	settling bool  // calls have the time of --settle-timeout
}

// ending is how a command ended.
type ending struct {
	status    int    // 0 to 255; 128 and the number for a signal
	unstarted error  // why it was not started
	stopped   error  // why it was stopped: the ownership was lost
	remains   string // what of it goes on although it was stopped; empty: nothing
	signals   int    // that asked for an end since it has ended

	// passOn waits until its output was passed on, or is not any more; nil: there is none.
	passOn   func()
	breakOff func(why error) // ends the passing on
}

func (r *runner) run(ctx context.Context) error {
	if err := supported(); err != nil {
		return localError{err: err}
	}
	// Signals are the command's, once there is one, and never cut a call off. Those that have
	// come by now wait to be heard.
	ctx = context.WithoutCancel(ctx)
	r.signals.take()

	if err := r.open(); err != nil {
		return err
	}
	defer func() { _ = r.client.Close() }() // it was answered by now, or nobody will be

	reservation, err := r.admit(ctx)
	var committed *client.CommittedError
	switch {
	case errors.As(err, &committed):
		return r.replay(committed)
	case err != nil:
		return err
	}
	r.tell("admitted, fence %d, attempt %d; the one before: %v", reservation.Fence(), reservation.Attempt(), reservation.Previous().End)
	stopRenewing := reservation.KeepAlive(ctx)
	kept := newCapture()
	ended := r.supervise(reservation, kept)
	stopRenewing()
	return r.settle(reservation, ended, kept)
}

// open makes the client.
func (r *runner) open() (err error) {
	r.client, err = r.newClient(client.WithDialOptions(grpc.WithChainUnaryInterceptor(r.answers.note)),
		client.WithCallTimeout(r.timeout), client.WithSettleTimeout(r.flags.settle))
	return err
}

// tell says something to who wants to hear more.
func (r *runner) tell(format string, arguments ...any) {
	for _, line := range r.verbosely(format, arguments...) {
		r.note(line)
	}
}

// verbosely is what is said to who wants to hear more.
func (r *runner) verbosely(format string, arguments ...any) []string {
	if !r.flags.verbose {
		return nil
	}
	return []string{fmt.Sprintf(format, arguments...)}
}

// admit asks until there is an answer: a reservation, or an error that says why there is
// none.
func (r *runner) admit(ctx context.Context) (*client.Reservation, error) {
	var (
		began    = time.Now()
		patience = r.patience
		waits    time.Time // when it was last said to run elsewhere
		doubted  bool
	)
	for {
		left := patience
		if left != forever {
			left = max(0, left-time.Since(began))
		}
		if waits.IsZero() {
			left = 0 // the first answer is not held back, and its bound is --timeout alone
		}
		reservation, which, err := r.ask(ctx, min(left, turn))
		if which != nil {
			return nil, r.interrupted(reservation, which)
		}
		var pending *client.PendingError
		switch {
		case err == nil || errors.Is(err, client.ErrCommitted):
			return reservation, err
		case errors.As(err, &pending):
			if patience != forever && time.Since(began) >= patience {
				return nil, r.pending(pending)
			}
			if waits.IsZero() {
				r.tell("it runs elsewhere (owner %q): waiting", pending.Owner)
			}
			waits = time.Now()
		case errors.Is(err, client.ErrUnavailable) && !waits.IsZero() && time.Since(waits) < awayWhileWaiting &&
			(patience == forever || time.Since(began) < patience):
			rest(ctx, backoffMax)
		case errors.Is(err, client.ErrUnknown) && !doubted:
			// It may have been granted with nobody hearing of it, which the client now
			// tries to give back: wait for that, as for any other's run.
			doubted = true
			patience = max(patience, time.Since(began)+r.timeout)
		case errors.Is(err, client.ErrFingerprintMismatch):
			return nil, r.mismatched(ctx, err)
		default:
			return nil, r.refused(err)
		}
	}
}

// ask asks once. which is the signal that came meanwhile: the call is let end all the
// same, since who cuts it off cannot know whether it was granted; a second signal does not
// wait for it any more. Whether it was granted may stay unknown: that is kept until an answer says
// what the record is, for no other takes the doubt away.
func (r *runner) ask(ctx context.Context, wait time.Duration) (reservation *client.Reservation, which os.Signal, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := r.signals.heed(2, cancel)
	reservation, err = r.client.Reserve(ctx, r.identity, append(r.options[:len(r.options):len(r.options)], client.WithWait(wait))...)
	switch {
	case err == nil, errors.Is(err, client.ErrCommitted), errors.Is(err, client.ErrFingerprintMismatch):
		r.doubt = nil
	case r.doubt == nil && errors.Is(err, client.ErrUnknown):
		r.doubt = err
	}
	if signals := heard(); len(signals) > 0 {
		which = signals[0]
	}
	return reservation, which, err
}

// signalledError is a signal that came before the command was started.
type signalledError struct{ which os.Signal }

func (e *signalledError) Error() string { return fmt.Sprintf("received %v", e.which) }

// interrupted is how it ends when a signal came before the command was started.
func (r *runner) interrupted(reservation *client.Reservation, which os.Signal) error {
	if reservation != nil {
		r.giveBack(reservation, lease.Interrupted, 1)
	}
	said := fmt.Sprintf("received %s; the command was not started", stopsignal.Name(which))
	if r.doubt != nil {
		said += "; " + r.mayBeTaken()
	}
	return localError{err: errors.New(said), called: r.doubt != nil, exit: exitSignalled + signalNumber(which)}
}

// giveBack frees a key under which nothing was started. It is one call with the time of one,
// and the nth signal does not wait for it.
func (r *runner) giveBack(reservation *client.Reservation, why string, nth int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer r.signals.heed(nth, cancel)()
	lapse := uint64(0)
	if before := reservation.Previous(); before.End == client.PreviousLapsed {
		lapse = before.Fence
	}
	switch err := reservation.Release(ctx, lease.Unused(why, lapse)); {
	case errors.Is(err, client.ErrUnknown):
		r.note("it is not known whether the key was released; if not, it stays taken " + r.untilItLapses() + ": " + r.inWords(err))
	case err != nil:
		r.note("the key could not be released, and stays taken " + r.untilItLapses() + ": " + r.inWords(err))
	}
}

// pending is the answer that it runs elsewhere, with nobody waiting for it.
func (r *runner) pending(p *client.PendingError) error {
	return r.notAdmitted(reason.Failure{
		Reason: "PENDING", Code: codes.Aborted, RetryAfter: p.RetryAfter,
		Message: fmt.Sprintf("it runs elsewhere (owner %q), since %v", p.Owner, p.Age.Round(time.Millisecond)),
	}, reason.ExitPending, unheardGrant+": "+r.mayBeTaken())
}

// refused is the error for a Reserve that did not admit.
func (r *runner) refused(err error) error {
	var doubt *client.InDoubtError
	if errors.As(err, &doubt) {
		return r.notAdmitted(reason.Failure{
			Reason: "IN_DOUBT", Code: codes.FailedPrecondition, ExitCode: reason.ExitInDoubt,
			Message: fmt.Sprintf("an earlier run (owner %q), begun %v ago, ended in silence: find out what it did, and settle it with coordctl get and coordctl resolve",
				doubt.Owner, doubt.Age.Round(time.Millisecond)),
		}, 0, unheardGrant+": nothing ran under it")
	}
	if r.doubt != nil {
		err = r.doubt
	}
	failure := r.failure(err)
	if failure.ExitCode == reason.ExitNotOwner || errors.Is(err, client.ErrLapsed) {
		failure.ExitCode = reason.ExitUnavailable // the other is for what was started
	}
	return r.notAdmitted(failure, 0, r.mayBeTaken())
}

// unheardGrant is what a key may be taken by that this run has asked for without an answer.
const unheardGrant = "that may be this run's own grant, which was lost on its way"

// notAdmitted is [notStarted] for a run that may have been granted the key all the same: then
// doubtful says what that means.
func (r *runner) notAdmitted(failure reason.Failure, exit int, doubtful string) error {
	said := notStarted(failure, exit)
	if r.doubt != nil {
		said.failure.Applied, said.told = reason.Maybe, true
		said.failure.Message += "; " + doubtful
	}
	return said
}

// mayBeTaken says what a grant that nobody heard of leaves behind.
func (r *runner) mayBeTaken() string { return "the key may be taken " + r.untilItLapses() }

func (r *runner) untilItLapses() string { return untilItLapses(r.onLapse == client.Hold) }

// mismatched is the error for a key that is not this command's. It looks at the record to say
// whose it is: every run has a fingerprint, so what has none was made by hand, or by another
// program.
func (r *runner) mismatched(ctx context.Context, err error) error {
	failure := r.failure(err)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := r.signals.heed(1, cancel) // it leaves nothing behind
	record, err := r.client.Get(ctx, r.identity)
	heard()
	switch {
	case err != nil:
		failure.Message = "the key was used with another command, or not by coordctl run"
	case len(record.Fingerprint) > 0 || record.Response != nil && ofRun(*record.Response):
		failure.Message = "the key was used with another command"
	case record.Response != nil:
		return notStarted(reason.Failure{
			Reason: notARun, Code: codes.FailedPrecondition, ExitCode: reason.ExitCommitted,
			Message: "the key holds a response that no run recorded, and that has no fingerprint; `coordctl get` shows it",
		}, 0)
	default:
		failure.Message = fmt.Sprintf("the key was reserved without a fingerprint, and not by coordctl run (owner %q)", record.Owner)
	}
	return notStarted(failure, 0)
}

// notARun is the reason of what holds a response that cannot be replayed as a run.
const notARun = "NOT_A_RUN"

// failure is an error of the client in the words of the table.
func (r *runner) failure(err error) reason.Failure {
	f := reason.Failure{Code: codes.Unknown, Message: r.inWords(err), Applied: reason.No, ExitCode: reason.ExitFailure}
	var failed *client.Error
	if errors.As(err, &failed) {
		f.Reason, f.Code, f.RetryAfter = reason.Reason(failed.Reason), failed.Code, failed.RetryAfter
		if failed.MaybeApplied {
			f.Applied = reason.Maybe
		}
		for _, v := range failed.Violations {
			f.Violations = append(f.Violations, reason.FieldViolation(v))
		}
	}
	switch {
	case f.Applied == reason.Maybe:
		f.ExitCode = reason.ExitUnavailable // whatever was answered
	case f.Reason.Known():
		f.ExitCode = f.Reason.Row().ExitCode
	case errors.Is(err, client.ErrUnavailable):
		f.ExitCode = reason.ExitUnavailable
	}
	return f
}

// inWords is an error of the client for people.
func (r *runner) inWords(err error) string {
	var failed *client.Error
	switch latest, unconnected := r.contacts.latest(); {
	case errors.Is(err, client.ErrClosed), errors.Is(err, context.Canceled):
		if why := r.answers.inWords(r.control); why != "" {
			return "interrupted (" + why + ")"
		}
		return "interrupted"
	case !errors.As(err, &failed):
		return strings.TrimPrefix(err.Error(), "client: ")
	case failed.Reason == "" && failed.Code != codes.Unavailable && failed.Code != codes.DeadlineExceeded && failed.Code != codes.Canceled:
		// Somebody has said so, or the client of what it was answered.
		return cmp.Or(r.answers.answer(), failed.Message)
	case failed.Reason == "" && errors.Is(err, client.ErrUnknown):
		if answer := r.answers.answer(); answer != "" {
			return answer
		}
		if silent := r.answers.silent(); silent != "" {
			return "no answer from " + silent + " in time"
		}
		return "no answer in time"
	case failed.Reason == "" && errors.Is(err, client.ErrUnavailable) && unconnected:
		return r.unconnected(latest)
	case failed.Reason == "" && failed.Code == codes.DeadlineExceeded:
		return r.boundOfNow() + " was over before a node was connected to"
	case failed.Reason == "" && errors.Is(err, client.ErrUnavailable):
		if why := r.answers.inWords(r.control); why != "" {
			return why
		}
		if latest != "" {
			return r.unconnected(latest)
		}
		return "no node answers"
	}
	return failed.Message
}

// unanswered is the error with which the ownership ended and, where that is because nobody has
// renewed it, why nobody has.
func (r *runner) unanswered(err error) error {
	var answered *client.Error
	if why := r.answers.inWords(r.control); why != "" && !errors.As(err, &answered) {
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// boundOfNow says which time a call has: what is said of a command that has ended has its own.
func (r *runner) boundOfNow() string {
	if r.settling {
		return fmt.Sprintf("the time of --settle-timeout (%v)", r.flags.settle)
	}
	return r.boundOf(r.timeout)
}

// settle says what came of the command, and is its exit code.
func (r *runner) settle(reservation *client.Reservation, e ending, kept *capture) error {
	switch {
	case e.unstarted != nil:
		return r.releaseUnstarted(reservation, e.unstarted)
	case e.stopped != nil:
		r.tellBefore(kept)
		return r.left(e)
	}
	// The second signal since the command's end does not wait any more for who does not answer, nor
	// for who does not take the output.
	defer r.signals.heed(max(1, 2-e.signals), func() {
		_ = r.client.Close()
		r.signals.giveUp()
		if e.breakOff != nil {
			e.breakOff(errCutOff)
		}
	})()
	// It did happen, whoever takes its output, and may be stopped from now on.
	said, err := r.record(reservation, e, kept)
	if e.passOn != nil {
		e.passOn()
	}
	r.tellBefore(kept, said...)
	return err
}

// record commits how the command ended, or releases the key where that says that nothing happened.
// said is what is to be told of it beside the error. The client's own bound holds, and calls under the
// reservation's context have it: closing the client ends them.
func (r *runner) record(reservation *client.Reservation, e ending, kept *capture) (said []string, err error) {
	r.settling = true
	if r.flags.releases(e.status) {
		err := reservation.Release(reservation.Context(), fmt.Sprintf("the command ended with %d", e.status))
		if err != nil {
			return nil, r.notRecorded(e, "the key could not be released", "the key was released", err)
		}
		return r.verbosely("the command ended with %d: released", e.status), outcome(nil, e.status)
	}
	response := kept.response(e.status)
	if r.flags.noOutput {
		response = withoutOutput(e.status)
	}
	err = reservation.Commit(reservation.Context(), response, client.WithSubstitute(func(refusal error) client.Response {
		said = []string{"the coordinator does not take the output (" + r.inWords(refusal) + "): only the exit status is recorded"}
		return withoutOutput(e.status)
	}))
	if err != nil {
		return nil, r.notRecorded(e, "the outcome is not recorded", "the outcome was recorded", err)
	}
	return append(said, r.verbosely("the command ended with %d: recorded", e.status)...), outcome(nil, e.status)
}

// tellBefore says which output was not passed on as a whole, and what else there is to say before
// the end. Who does not take that output may not take this either, and is not waited for.
func (r *runner) tellBefore(kept *capture, said ...string) {
	for stream, why := range kept.brokenOffs() {
		if why != nil {
			r.note(fmt.Sprintf("not all of the command's %s could be passed on: %s", streamNames[stream], rootCause(why)))
		}
	}
	for _, line := range said {
		r.note(line)
	}
	r.settleNotes()
}

// releaseUnstarted frees the key of a command that could not be started.
func (r *runner) releaseUnstarted(reservation *client.Reservation, why error) error {
	var (
		guard  *guardError
		before *signalledError
	)
	if errors.As(why, &before) {
		return r.interrupted(reservation, before.which)
	}
	r.giveBack(reservation, lease.Unstarted, 2)
	switch {
	case errors.Is(why, errTooLate):
		return notStarted(reason.Failure{
			Reason: reason.ReservationLapsed, Code: codes.FailedPrecondition, Message: why.Error(), ExitCode: reason.ExitUnavailable,
		}, 0)
	case errors.As(why, &guard):
		return localError{err: fmt.Errorf("%w; the command was not started", why)}
	}
	cause, code := rootCause(why), exitNotExecutable
	switch {
	case errors.Is(why, exec.ErrNotFound):
		cause, code = "it is in no directory of PATH", exitNotFound
	case errors.Is(why, exec.ErrDot):
		cause, code = "PATH finds it in the current directory only; write ./ before it", exitNotFound
	case errors.Is(why, os.ErrNotExist):
		code = exitNotFound
		if found, err := exec.LookPath(r.arguments[0]); err == nil {
			cause = found + " is there, and what its first line names as its interpreter, or a program's loader, is not"
		}
	case errors.Is(why, syscall.ENOEXEC):
		cause += "; a script names its interpreter in its first line, as in #!/bin/sh, or is given to it: -- sh " + r.arguments[0]
	}
	return localError{err: fmt.Errorf("cannot run %q: %s", r.arguments[0], cause), exit: code}
}

// left is how it ends when the command was stopped because it must not go on.
func (r *runner) left(e ending) error {
	failure := r.failure(e.stopped)
	failure.ExitCode, failure.Applied = reason.ExitNotOwner, reason.Maybe
	if failure.Reason == "" {
		failure.Reason, failure.Code = reason.ReservationLapsed, codes.FailedPrecondition
	}
	came := fmt.Sprintf("the command was stopped (%d): what it did", e.status)
	if e.remains != "" {
		came = fmt.Sprintf("%s goes on %v after SIGKILL: what it does", e.remains, goneWithin)
	}
	failure.Message = fmt.Sprintf("ownership was lost (%s) and %s is unknown, and nothing is recorded; %s", failure.Message, came, r.afterLoss(failure.Reason))
	return callError{failure: failure, told: true}
}

// notRecorded is how it ends when the command ended and the coordinator was not told, or
// when that is not known. what is said in the first case, whether in the second.
func (r *runner) notRecorded(e ending, what, whether string, err error) error {
	failure := r.failure(err)
	failure.ExitCode = exitNotRecorded
	next := r.afterLoss(failure.Reason)
	if failure.Applied == reason.Maybe {
		what, next = "it is not known whether "+whether, "`coordctl get` shows whether it was; if not, "+next
	}
	failure.Message = fmt.Sprintf("the command ended with %d, and %s: %s; %s", e.status, what, failure.Message, next)
	return callError{failure: failure, told: true}
}

// afterLapse says what becomes of a key that is neither committed nor released.
func (r *runner) afterLapse() string {
	if r.onLapse == client.Hold {
		return "once the key lapses nobody runs it until that is settled with coordctl resolve"
	}
	return "once the key lapses the next caller runs it again"
}

// afterLoss says what becomes of a key for which the coordinator gives this reason.
func (r *runner) afterLoss(why reason.Reason) string {
	switch why {
	case reason.ReservationNotFound:
		return "the record is gone, and the next caller runs it again"
	case reason.ReservationLost:
		return "another caller has been admitted since"
	case reason.CommitConflict, reason.AlreadyCommitted:
		return "later callers get what was committed"
	case reason.AlreadyReleased:
		return "the next caller runs it again"
	default:
		return r.afterLapse()
	}
}

// replay gives what was recorded to who came later.
func (r *runner) replay(c *client.CommittedError) error {
	recorded, err := decodeRun(c.Response)
	if err != nil {
		return notStarted(reason.Failure{
			Reason: notARun, Code: codes.FailedPrecondition, ExitCode: reason.ExitCommitted,
			Message: "the key holds a response that coordctl run cannot replay: " + err.Error(),
		}, 0)
	}
	defer r.signals.lastWords()()
	for _, piece := range recorded.pieces {
		if len(piece.bytes) == 0 {
			continue // a full disk refuses to be given nothing, too
		}
		to := r.stdout
		if piece.stream == streamStderr {
			to = r.stderr
		}
		if _, err := replayed(to).Write(piece.bytes); err != nil {
			return localError{err: fmt.Errorf("it ran before and ended with %d, but its output cannot be written: %w", recorded.status, err)}
		}
	}
	age := c.Age.Round(time.Millisecond)
	switch {
	case recorded.omitted:
		r.note(fmt.Sprintf("it ran before, until %v ago, and ended with %d; its output was not recorded", age, recorded.status))
	case recorded.leftOut > 0:
		r.note(fmt.Sprintf("it ran before, until %v ago, and ended with %d; the first %d bytes of its output were not recorded", age, recorded.status, recorded.leftOut))
	default:
		r.tell("it ran before, until %v ago, and ended with %d: replayed", age, recorded.status)
	}
	return outcome(nil, recorded.status)
}
