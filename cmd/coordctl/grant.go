package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/internal/reason"
)

// stopwatch says how long ago the latest try of a call was sent, on a clock that only runs forward
// and, where there is one, goes on while the machine is suspended.
type stopwatch struct {
	clock func() time.Duration
	sent  time.Duration
}

func newStopwatch() *stopwatch {
	if _, ok := sharedClock(); !ok {
		start := time.Now()
		return &stopwatch{clock: func() time.Duration { return time.Since(start) }}
	}
	return &stopwatch{clock: func() time.Duration {
		now, ok := sharedClock()
		if !ok {
			panic("the clock was there and is not any more")
		}
		return now
	}}
}

// callOwning is [callCoordinator] for a call whose answer is a window that begins when it was sent.
func callOwning[Q, A any](
	ctx context.Context, c *control, timeout time.Duration, watch *stopwatch, m method[coordinatorv1.CoordinatorServiceClient, Q, A], request Q,
) (A, error) {
	return call(ctx, c, timeout, func(ctx context.Context, to *connection, options ...grpc.CallOption) (A, error) {
		watch.sent = watch.clock()
		return m(to.coordinator, ctx, request, options...)
	})
}

// left is what its owner has left of a window that was answered, and how long the answer took.
func (w *stopwatch) left(window time.Duration) (left, took time.Duration) {
	took = w.clock() - w.sent
	return lease.Share(window) - took, took
}

// tooLate says that a window was over when it arrived.
func tooLate(what string, window, took time.Duration) string {
	return fmt.Sprintf("the %s was over when it arrived: it is for %s from when it was asked for, and the answer took %s",
		what, brief(window.String()), brief(took.String()))
}

// lapsedOnTheWay is the error for a window that was over when it arrived.
func lapsedOnTheWay(message string, applied reason.Applied) callError {
	return callError{told: true, failure: reason.Failure{
		Reason: reason.ReservationLapsed, Code: codes.FailedPrecondition, ExitCode: reason.ExitNotOwner, Applied: applied, Message: message,
	}}
}

// notUnderstood is the error for an answer that this program can make nothing of: what the
// coordinator has done is as little known as without an answer.
func notUnderstood(what string) callError {
	return callError{failure: reason.Failure{
		Code: codes.Unimplemented, ExitCode: reason.ExitUnavailable, Applied: reason.Maybe, Message: what,
	}}
}

// checkGrant puts what is left of a grant in the place of what it was given, or says why it is none.
// drawn says that nobody but this process knows the attempt id.
func (c *control) checkGrant(
	ctx context.Context, watch *stopwatch, request *coordinatorv1.ReserveRequest, granted *coordinatorv1.Granted, drawn bool,
) error {
	if granted.GetToken() == "" || granted.GetRemaining().AsDuration() <= 0 {
		return withAttempt(notUnderstood("the coordinator gave a grant without a token or without a time, which admits nobody"), request.GetAttemptId())
	}
	window := granted.GetWaited().AsDuration() + granted.GetRemaining().AsDuration()
	left, took := watch.left(window)
	if left > 0 {
		granted.Remaining = durationpb.New(left)
		return nil
	}
	became, applied := c.giveBackOver(ctx, request, granted, drawn)
	return lapsedOnTheWay(tooLate("grant", window, took)+", so it admits nobody; "+became+
		". Reserve again, with a longer --pending-ttl where answers take that long", applied)
}

// giveBackOver frees a key whose grant was over when it arrived, and says what became of it. Nobody
// has acted on it, unless somebody else has the same attempt id.
func (c *control) giveBackOver(
	ctx context.Context, request *coordinatorv1.ReserveRequest, granted *coordinatorv1.Granted, drawn bool,
) (became string, applied reason.Applied) {
	stays := "the key stays taken " + untilItLapses(request.GetOnLapse() == coordinatorv1.OnLapse_ON_LAPSE_HOLD)
	if !drawn {
		return stays + ", since whoever else has this attempt id may act under it", reason.Maybe
	}
	_, err := callCoordinator(ctx, c, c.timeout, coordinatorv1.CoordinatorServiceClient.Release, &coordinatorv1.ReleaseRequest{
		Identity: request.GetIdentity(), Token: granted.GetToken(), Reason: lease.Unused(lease.WasOver, lease.LapseBefore(granted.GetPrevious())),
	})
	failed, is := err.(callError) //nolint:errorlint // it comes as it is
	switch {
	case err == nil:
		return "the key was given back", reason.No
	case is && failed.failure.Reason == reason.ReservationLost:
		return "another caller has been admitted since", reason.No
	case is && failed.failure.Reason == reason.ReservationNotFound:
		return "the record is gone", reason.No
	case is && failed.failure.Applied == reason.No:
		return "it could not be given back (" + err.Error() + "), and " + stays, reason.Maybe
	}
	return "it is not known whether it was given back (" + err.Error() + "): if not, " + stays, reason.Maybe
}

// untilItLapses says for how long a key is taken under which nothing was done.
func untilItLapses(holds bool) string {
	if holds {
		return "until it lapses, and in doubt from then on, until that is settled with coordctl resolve"
	}
	return "until it lapses"
}
