package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// What a call may come to, for [errors.Is]. The first three are Reserve's own outcomes
// and come as [*PendingError], [*CommittedError] and [*InDoubtError]; the others come as
// [*Error].
var (
	// ErrPending means: another attempt holds the reservation. Ask again later.
	ErrPending = errors.New("another attempt holds the reservation")
	// ErrCommitted means: it was done before, and this is the stored response.
	ErrCommitted = errors.New("it was done before")
	// ErrInDoubt means: an earlier attempt ended in silence, and nobody is admitted until it is
	// settled.
	ErrInDoubt = errors.New("an earlier attempt ended in silence and is not settled")

	// ErrLost means: the token is not the one of the record's latest grant, or there is no
	// record any more. Stop acting as the owner.
	ErrLost = errors.New("the reservation is lost")
	// ErrLapsed means: the reservation is over: its deadline has passed, or it cannot be extended.
	ErrLapsed = errors.New("the reservation is over")
	// ErrNotFound means: there is no such record. For an owner it is [ErrLost] too.
	ErrNotFound = errors.New("there is no such record")
	// ErrConflict means: another response was committed, and stands.
	ErrConflict = errors.New("another response was committed")
	// ErrAlreadyCommitted means: what was committed can be neither released nor extended.
	ErrAlreadyCommitted = errors.New("the reservation was committed")
	// ErrAlreadyReleased means: what was released can be neither committed nor extended.
	ErrAlreadyReleased = errors.New("the reservation was released")
	// ErrFingerprintMismatch means: the key was used with another request. It is a bug of the
	// caller, not to be retried.
	ErrFingerprintMismatch = errors.New("the key was used with another request")
	// ErrNotInDoubt means: there is nothing to resolve, or it was settled otherwise.
	ErrNotInDoubt = errors.New("the record is neither in doubt nor lapsed")
	// ErrRevisionMismatch means: the record has changed since it was looked at.
	ErrRevisionMismatch = errors.New("the record has changed since")

	// ErrUnavailable means: no node gave an answer within the time, so the answer is no. What
	// is [ErrUnknown] is this too.
	ErrUnavailable = errors.New("the coordinator gives no answer")
	// ErrUnknown means: no answer came, and the coordinator may have carried the call out all
	// the same; see [Error].MaybeApplied.
	ErrUnknown = errors.New("it is not known whether the call was carried out")
	// ErrOverloaded means: the shard has more to do than it can hold. Back off.
	ErrOverloaded = errors.New("the coordinator has more to do than it can hold")
	// ErrStorageFull means: the coordinator is short of disk space and takes no new keys.
	ErrStorageFull = errors.New("the coordinator takes no new keys")
	// ErrQuotaExceeded means: the namespace has as many records as it may have.
	ErrQuotaExceeded = errors.New("the namespace has too many records")
	// ErrInvalidArgument means: the call must be fixed; [Error].Violations says what.
	ErrInvalidArgument = errors.New("an argument is not valid")
	// ErrResponseTooLarge means: the response cannot be stored. Commit without the body.
	ErrResponseTooLarge = errors.New("the response is too large")
	// ErrUnauthenticated means: the caller is not known.
	ErrUnauthenticated = errors.New("the caller is not known")
	// ErrPermissionDenied means: the caller is not allowed to do this.
	ErrPermissionDenied = errors.New("the caller is not allowed to do this")

	// ErrSettled means: the owner has sent Commit or Release; it is the cause with which the
	// reservation's context ends then.
	ErrSettled = errors.New("the reservation was committed or released")
	// ErrClosed means: the client was closed.
	ErrClosed = errors.New("the client is closed")
)

// Reasons of the contract that the client treats in a way of its own.
const (
	reasonInvalidArgument  = "INVALID_ARGUMENT"
	reasonResponseTooLarge = "RESPONSE_TOO_LARGE"
	reasonAttemptEnded     = "ATTEMPT_ENDED"
	reasonOutcomeUnknown   = "OUTCOME_UNKNOWN"
	reasonOverloaded       = "OVERLOADED"
	reasonNotFound         = "RESERVATION_NOT_FOUND"
	reasonLapsed           = "RESERVATION_LAPSED"
	reasonDeadline         = "DEADLINE_EXCEEDED"
	reasonCancelled        = "CANCELLED"
)

// errorDomain is the domain of the coordinator's ErrorInfo.
const errorDomain = "coordinator"

// Error is a call that failed.
type Error struct {
	// Call is the call's name, such as "Reserve".
	Call string
	// Reason is the contract's name for what went wrong, such as "NO_LEADER". Empty: none
	// was given, for example because no node was reached.
	Reason string
	// Code is the gRPC code of the last answer.
	Code codes.Code
	// Message is for people.
	Message string
	// MaybeApplied says that the coordinator may have carried out one of the call's
	// deliveries, which this client does not know. The same call again is answered with the
	// truth; what a Reserve may have been granted is given back behind the scenes.
	MaybeApplied bool
	// RetryAfter is how long to wait before the same call may fare better. 0: nothing
	// was said, or waiting does not help.
	RetryAfter time.Duration
	// Violations names the arguments that were refused.
	Violations []Violation

	// ended is why the call ended with no answer of a node: the error of the caller's
	// context, ErrClosed, or ErrLapsed.
	ended error
	// retriable says that the same delivery again is worth it.
	retriable bool
}

// Violation is one argument that the coordinator refused.
type Violation struct {
	Field  string // as the wire names it, such as "identity.key"
	Detail string // what is wrong with it; never what was given
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "coordinator: %s: %s", e.Call, e.Message)
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.ended != nil {
		fmt.Fprintf(&b, ": %v", e.ended)
	}
	if e.MaybeApplied {
		fmt.Fprintf(&b, "; this client does not know whether the coordinator carried the %s out: %s", e.Call, e.afterDoubt())
	}
	return b.String()
}

// afterDoubt is what to do where it is not known whether the call was carried out.
func (e *Error) afterDoubt() string {
	if e.Call == callReserve {
		return "a grant is given back unused, so reserve again"
	}
	return "make the same call again, its answer then is the truth"
}

// Unwrap returns the error of the caller's context where the call ended with that,
// [ErrClosed] where it ended with the client, and [ErrLapsed] where each grant was over
// before it arrived.
func (e *Error) Unwrap() error { return e.ended }

// Is reports whether the target is one of this package's errors that this is.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrUnknown:
		return e.MaybeApplied
	case ErrUnavailable:
		if e.MaybeApplied {
			return true
		}
		switch e.Code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
			return true
		}
		return false
	case ErrLost:
		return e.Reason == "RESERVATION_LOST" || e.Reason == reasonNotFound && e.Call != callGet && e.Call != callResolve
	}
	return target != nil && target == sentinel(e.Reason)
}

// decided reports whether the call was refused for what its record is. That holds for
// every earlier delivery as well; any other refusal was made without a look at the record,
// and says nothing of those.
func (e *Error) decided() bool {
	switch e.Reason {
	case "FINGERPRINT_MISMATCH", "RESERVATION_LOST", reasonLapsed, reasonNotFound, "COMMIT_CONFLICT", "ALREADY_COMMITTED",
		"ALREADY_RELEASED", "NOT_IN_DOUBT", "NOT_PURGEABLE", "REVISION_MISMATCH", reasonAttemptEnded:
		return true
	}
	return false
}

// refused reports whether a reason of the coordinator says that nothing was applied. What one says that
// this client does not know is judged by its code, as what has no reason is.
func (e *Error) refused() bool {
	if e.decided() || sentinel(e.Reason) != nil || e.Reason == "NO_LEADER" || e.Reason == "SHUTTING_DOWN" {
		return true
	}
	switch e.Code {
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return true
	}
	return false
}

// sentinel is the error that a reason is by itself, or nil.
func sentinel(reason string) error {
	switch reason {
	case reasonLapsed:
		return ErrLapsed
	case reasonNotFound:
		return ErrNotFound
	case "COMMIT_CONFLICT":
		return ErrConflict
	case "ALREADY_COMMITTED":
		return ErrAlreadyCommitted
	case "ALREADY_RELEASED":
		return ErrAlreadyReleased
	case "FINGERPRINT_MISMATCH":
		return ErrFingerprintMismatch
	case "NOT_IN_DOUBT":
		return ErrNotInDoubt
	case "REVISION_MISMATCH":
		return ErrRevisionMismatch
	case reasonOverloaded:
		return ErrOverloaded
	case "STORAGE_FULL":
		return ErrStorageFull
	case "QUOTA_EXCEEDED":
		return ErrQuotaExceeded
	case reasonInvalidArgument:
		return ErrInvalidArgument
	case reasonResponseTooLarge:
		return ErrResponseTooLarge
	case "UNAUTHENTICATED":
		return ErrUnauthenticated
	case "PERMISSION_DENIED":
		return ErrPermissionDenied
	}
	return nil
}

// PendingError says that another attempt holds the reservation. It is [ErrPending].
type PendingError struct {
	// RetryAfter is when asking again is worth it, from now. More than 0.
	RetryAfter time.Duration
	// Attempt is the number of the attempt that holds it.
	Attempt uint32
	// Owner is what its owner calls itself.
	Owner string
	// Age is the time since it was granted.
	Age time.Duration
}

// Error implements error.
func (e *PendingError) Error() string { return outcome(ErrPending, e.Owner, e.Age) }

// Is reports whether the target is [ErrPending].
func (e *PendingError) Is(target error) bool { return target == ErrPending }

// CommittedError says that it was done before. It is [ErrCommitted], and an error
// because its receiver is not admitted: see "Outcomes" in the package's comment.
type CommittedError struct {
	// Response is the response as it was committed.
	Response Response
	// Age is the time since the commit.
	Age time.Duration
	// Remaining is the time until the key is forgotten.
	Remaining time.Duration
}

// Error implements error. It does not show the response.
func (e *CommittedError) Error() string { return outcome(ErrCommitted, "", e.Age) }

// Is reports whether the target is [ErrCommitted].
func (e *CommittedError) Is(target error) bool { return target == ErrCommitted }

// InDoubtError says that an earlier attempt ended in silence and that nobody is
// admitted until it is settled. It is [ErrInDoubt].
type InDoubtError struct {
	// Owner is what the owner of that attempt calls itself.
	Owner string
	// Age is the time since that attempt was granted.
	Age time.Duration
}

// Error implements error.
func (e *InDoubtError) Error() string { return outcome(ErrInDoubt, e.Owner, e.Age) }

// Is reports whether the target is [ErrInDoubt].
func (e *InDoubtError) Is(target error) bool { return target == ErrInDoubt }

func outcome(what error, owner string, age time.Duration) string {
	text := "coordinator: " + what.Error()
	if owner != "" {
		text += fmt.Sprintf(" (owner %q)", owner)
	}
	return text + fmt.Sprintf(", for %v", age.Round(time.Millisecond))
}

// RetryAfter returns how long to wait before the same call may fare better, whatever
// error of this package it is. 0: nothing was said, or waiting does not help.
func RetryAfter(err error) time.Duration {
	var (
		pending *PendingError
		failed  *Error
	)
	switch {
	case errors.As(err, &pending):
		return pending.RetryAfter
	case errors.As(err, &failed):
		return failed.RetryAfter
	}
	return 0
}

// Reason returns the contract's name for what went wrong, such as "NO_LEADER", or "".
func Reason(err error) string {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return ""
}

// failure reads the error of one delivery. sent says that it may have reached a node,
// reads that the call changes nothing.
func failure(call string, err error, sent, reads bool) *Error {
	s := statusOf(err)
	e := &Error{Call: call, Code: s.Code(), Message: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason = d.GetReason()
			}
		case *errdetails.RetryInfo:
			if wait := d.GetRetryDelay(); wait.CheckValid() == nil {
				e.RetryAfter = min(max(0, wait.AsDuration()), forever)
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{Field: v.GetField(), Detail: v.GetDescription()})
			}
		}
	}
	switch e.Reason {
	case "":
		e.bare(sent)
	case reasonOutcomeUnknown, reasonDeadline, reasonCancelled:
		e.retriable, e.MaybeApplied = true, true
	case reasonOverloaded:
		e.retriable = true
	default:
		e.retriable = e.Code == codes.Unavailable
		e.MaybeApplied = !e.refused()
	}
	if reads {
		e.MaybeApplied = false
	}
	return e
}

// bare judges a failure that no node has named: it comes from gRPC, or from something
// in between.
func (e *Error) bare(sent bool) {
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal:
		e.retriable, e.MaybeApplied = true, sent
	case codes.InvalidArgument, codes.OutOfRange:
		e.Reason = reasonInvalidArgument
	case codes.Unauthenticated:
		e.Reason = "UNAUTHENTICATED"
	case codes.PermissionDenied:
		e.Reason = "PERMISSION_DENIED"
	case codes.Unimplemented:
	default:
		e.MaybeApplied = sent
	}
}

func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, err.Error())
	}
	return status.New(codes.Unknown, err.Error())
}

// refusal turns an outcome of Reserve that does not admit into its error.
func refusal(response *coordinatorv1.ReserveResponse) error {
	switch o := response.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Pending:
		return &PendingError{
			RetryAfter: o.Pending.GetRetryAfter().AsDuration(), Attempt: o.Pending.GetAttempt(),
			Owner: o.Pending.GetOwner(), Age: o.Pending.GetAge().AsDuration(),
		}
	case *coordinatorv1.ReserveResponse_Committed:
		return &CommittedError{
			Response: responseOf(o.Committed.GetResponse()),
			Age:      o.Committed.GetAge().AsDuration(), Remaining: o.Committed.GetRemaining().AsDuration(),
		}
	case *coordinatorv1.ReserveResponse_InDoubt:
		return &InDoubtError{Owner: o.InDoubt.GetOwner(), Age: o.InDoubt.GetAge().AsDuration()}
	}
	return &Error{
		Call: callReserve, Code: codes.Unimplemented, MaybeApplied: true,
		Message: "the coordinator gave an outcome that this client does not know, which admits nobody",
	}
}
