package grpcadmit

import (
	"context"
	"math"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// Domain is the domain of the google.rpc.ErrorInfo of what the interceptor says by itself.
const Domain = "grpcadmit.coordinator"

// Reason is the stable name of an answer that the interceptor gives by itself: the reason of
// its google.rpc.ErrorInfo. Callers decide by it, not by the code. They are the codes of
// package httpadmit.
type Reason string

// The answers of the interceptor, with the code that each has by default. [WithStatusCode]
// changes the code.
const (
	// ReasonKeyMissing, INVALID_ARGUMENT: a key is required and there is none.
	ReasonKeyMissing Reason = "IDEMPOTENCY_KEY_MISSING"
	// ReasonKeyInvalid, INVALID_ARGUMENT: the key is malformed, empty, given twice, over 255
	// bytes, or not ASCII.
	ReasonKeyInvalid Reason = "IDEMPOTENCY_KEY_INVALID"
	// ReasonPrincipalRequired, UNAUTHENTICATED: nobody is known to make this call.
	ReasonPrincipalRequired Reason = "PRINCIPAL_REQUIRED"
	// ReasonInFlight, ABORTED with RetryInfo: another call with this key is being carried
	// out. Try again later.
	ReasonInFlight Reason = "IDEMPOTENCY_IN_FLIGHT"
	// ReasonMismatch, FAILED_PRECONDITION: the key was used with another request. A bug of
	// the caller, not to be retried.
	ReasonMismatch Reason = "IDEMPOTENCY_KEY_REUSED"
	// ReasonInDoubt, FAILED_PRECONDITION: an earlier call with this key ended in silence, and
	// nobody is admitted until someone who knows has settled it.
	ReasonInDoubt Reason = "IDEMPOTENCY_IN_DOUBT"
	// ReasonUnavailable, UNAVAILABLE with RetryInfo: the coordinator is away, or it is not
	// known what it decided. With executed: true the handler has run, and it is not known
	// whether that was recorded. Try again later with the same key.
	ReasonUnavailable Reason = "IDEMPOTENCY_UNAVAILABLE"
	// ReasonLost, UNAVAILABLE with RetryInfo: the handler has run, but it took longer than it
	// was admitted for and somebody else was admitted or has settled it. The same key, later,
	// gets the answer that counts.
	ReasonLost Reason = "IDEMPOTENCY_LOST"
	// ReasonHandlerTimeout, UNAVAILABLE with RetryInfo: the handler has not returned within
	// [WithHandlerTimeout]. It goes on, and the same key, later, gets its answer.
	ReasonHandlerTimeout Reason = "HANDLER_TIMEOUT"
	// ReasonResponseNotStored, FAILED_PRECONDITION: the call was carried out, and its answer
	// could not be kept. Its code is in executed_code.
	ReasonResponseNotStored Reason = "RESPONSE_NOT_STORED"
	// ReasonMisconfigured, INTERNAL: the coordinator does not take what the interceptor is set
	// up to ask for, such as a principal over 128 bytes: the message and the log name the
	// field, with its size and its limit. Or the request is no proto message: the log says so.
	ReasonMisconfigured Reason = "IDEMPOTENCY_MISCONFIGURED"
)

// row is what a reason means: its default code and what a person reads.
type row struct {
	code  codes.Code
	title string
}

// rows has a row for every reason.
func rows() map[Reason]row {
	return map[Reason]row{
		ReasonKeyMissing:        {codes.InvalidArgument, "an idempotency key is required"},
		ReasonKeyInvalid:        {codes.InvalidArgument, "the idempotency key is not valid"},
		ReasonPrincipalRequired: {codes.Unauthenticated, "nobody is known to make this call"},
		ReasonInFlight:          {codes.Aborted, "a call with this idempotency key is being carried out"},
		ReasonMismatch:          {codes.FailedPrecondition, "the idempotency key was used with another request"},
		ReasonInDoubt:           {codes.FailedPrecondition, "an earlier call with this idempotency key ended in silence"},
		ReasonUnavailable:       {codes.Unavailable, "it cannot be decided whether the call may be carried out"},
		ReasonLost:              {codes.Unavailable, "the call took longer than it was admitted for"},
		ReasonHandlerTimeout:    {codes.Unavailable, "the call is still being carried out"},
		ReasonResponseNotStored: {codes.FailedPrecondition, "the call was carried out and its answer was not kept"},
		ReasonMisconfigured:     {codes.Internal, "the idempotency layer is set up wrongly"},
	}
}

// pauseLeast is the shortest pause that a caller is told, that of HTTP's Retry-After: gRPC tries five times
// at most, and with the coordinator's own, which begin at 100 ms, that would be over before most handlers are.
const pauseLeast = time.Second

// pushback is the trailer that gRPC's own retries take their pause from, in ms.
const pushback = "grpc-retry-pushback-ms"

// answer makes a refusal the status that its caller gets.
func (g *guard) answer(ctx context.Context, r *refusal.Refusal) error {
	reason := Reason(r.Code)
	row := g.rows[reason]
	if code, ok := g.statuses[reason]; ok {
		row.code = code
	}
	message := row.title
	if r.Detail != "" {
		message += ": " + r.Detail
	}
	info := &errdetails.ErrorInfo{Reason: string(reason), Domain: Domain, Metadata: map[string]string{}}
	if r.Executed {
		info.Metadata["executed"] = "true"
	}
	if reason == ReasonResponseNotStored {
		info.Metadata["executed_code"] = strconv.Itoa(r.Status)
	}
	details := []protoadapt.MessageV1{info}
	if r.RetryAfter > 0 {
		after := max(r.RetryAfter, pauseLeast)
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
		pause := int64(math.Ceil(float64(after) / float64(time.Millisecond)))
		// It fails where there is no stream, as in tests of a handler; then nobody retries.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, strconv.FormatInt(min(pause, math.MaxInt32), 10)))
	}
	details = append(details, &errdetails.Help{Links: []*errdetails.Help_Link{
		{Description: "what this means and what to do", Url: g.Docs + "#" + string(reason)},
	}})
	told := status.New(row.code, message)
	if whole, err := told.WithDetails(details...); err == nil {
		told = whole
	}
	return told.Err()
}
