package grpcadmit

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
)

// Verdict says what a handler's answer means for its key.
type Verdict int

const (
	// Default leaves it to the rule; see [WithClassifier].
	Default Verdict = Verdict(verdict.Default)
	// Store means that it is done. The answer is stored, and every retry gets it.
	Store Verdict = Verdict(verdict.Store)
	// Release means that nothing happened, and nothing will. The next call runs the handler.
	Release Verdict = Verdict(verdict.Release)
	// Uncertain means that it may have happened, or may happen yet. Nothing is stored or
	// released; the reservation lapses, and [WithOnLapse] says what that means.
	Uncertain Verdict = Verdict(verdict.Uncertain)
)

// String returns the verdict's name.
func (v Verdict) String() string { return verdict.Verdict(v).String() }

// Outcome is what a handler answered, for a classifier. It must not be changed.
type Outcome struct {
	// Method is the full method, such as "/shop.v1.Orders/Place".
	Method string
	// Request is what the handler got.
	Request proto.Message
	// Response is what it returned; nil where Status is not OK.
	Response proto.Message
	// Status is what the caller would get, never nil.
	Status *status.Status
	// Err is what the handler returned.
	Err error
}

// rule is the default verdict. ended says that the handler's context had ended when it
// returned: something was cut off.
func rule(code codes.Code, onLapse client.OnLapse, ended bool) Verdict {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return Store
	case codes.Aborted, codes.Unauthenticated, codes.ResourceExhausted, codes.Unavailable, codes.Internal, codes.Unknown, codes.DataLoss:
		// What failed may have acted before it did, and a handler that passes on what it got
		// downstream says less of itself than its status does: gRPC calls a reply that was too
		// large RESOURCE_EXHAUSTED. Hold was chosen because twice is worse than not at all.
		if onLapse == client.Reopen && !ended {
			return Release
		}
	}
	// DEADLINE_EXCEEDED by its definition may come of what was done; so may CANCELLED.
	return Uncertain
}

// passedOn reports whether a handler has passed on what a guard downstream said by itself and
// will not say for good: a call in flight or in doubt there is neither done nor undone.
func passedOn(told *status.Status) bool {
	for _, detail := range told.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			switch Reason(info.GetReason()) {
			case ReasonInFlight, ReasonInDoubt, ReasonUnavailable, ReasonLost, ReasonHandlerTimeout:
				return true
			}
		}
	}
	return false
}

// attemptKey is where a handler's context has its attempt.
type attemptKey struct{}

func attemptOf(ctx context.Context) *admit.Attempt {
	a, _ := ctx.Value(attemptKey{}).(*admit.Attempt)
	return a
}

// Reservation returns the reservation that a call was admitted with, from its context: the
// fence, for systems downstream that compare it, and [client.Reservation.Derive] for the keys
// of side effects. nil where the call is not guarded. It is the interceptor that commits and
// releases it.
func Reservation(ctx context.Context) *client.Reservation { return attemptOf(ctx).Reservation() }

// MarkUncertain says, from within a guarded handler, that what it does may have happened
// whatever it answers: nothing is stored or released. The last mark counts, and it counts
// more than the classifier. Not guarded: does nothing.
func MarkUncertain(ctx context.Context) { attemptOf(ctx).Mark(verdict.Uncertain) }

// MarkNotApplied says that nothing happened and nothing will, whatever the answer is: the
// key is free again, under [client.Hold] too.
func MarkNotApplied(ctx context.Context) { attemptOf(ctx).Mark(verdict.Release) }

// MarkDone says that it is done, whatever the answer is: the answer is stored.
func MarkDone(ctx context.Context) { attemptOf(ctx).Mark(verdict.Store) }
