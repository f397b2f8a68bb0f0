package reason

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the domain of every ErrorInfo of ours.
const Domain = "coordinator"

// Error returns the failure as an error that carries its gRPC status. An empty
// message stands for the row's meaning. The message must not hold what a caller
// sent: it may be shown to somebody else, and may not be UTF-8.
func Error(r Reason, message string) error {
	return build(r, message, nil)
}

// Violation returns the failure of one argument: the field as the wire names it
// and what is wrong with it, such as "is 300 bytes long, the limit is 255". The
// reason is [InvalidArgument] or [ResponseTooLarge].
func Violation(r Reason, field, detail string) error {
	return ViolationOf(r, string(r), field, detail)
}

// NodeDoesNotAnswer is why a node that was named cannot take its place, where it may do so as
// soon as it runs: the argument may be right.
const NodeDoesNotAnswer = "NODE_DOES_NOT_ANSWER"

// ViolationOf is [Violation] of an argument that has a reason of its own, see [Blames].
func ViolationOf(r Reason, why, field, detail string) error {
	return build(r, field+" "+detail, &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{
			Field: field, Description: detail, Reason: why,
		}},
	})
}

// Blames reports whether an error is about an argument that was refused for that reason.
func Blames(err error, why string) bool {
	for _, detail := range statusOf(err).Details() {
		if request, ok := detail.(*errdetails.BadRequest); ok {
			if slices.ContainsFunc(request.GetFieldViolations(), func(v *errdetails.BadRequest_FieldViolation) bool { return v.GetReason() == why }) {
				return true
			}
		}
	}
	return false
}

func build(r Reason, message string, request *errdetails.BadRequest) error {
	row := r.Row()
	if message == "" {
		message = row.Meaning
	}
	details := []protoadapt.MessageV1{
		protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: string(r), Domain: Domain}),
	}
	if row.RetryAfter > 0 {
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(row.RetryAfter)}))
	}
	if request != nil {
		details = append(details, protoadapt.MessageV1Of(request))
	}
	bare := status.New(row.Code, message)
	detailed, err := bare.WithDetails(details...)
	if err != nil {
		// Only a status that is OK or a message that cannot be encoded gets here; the
		// code alone is then still the truth.
		return bare.Err()
	}
	return detailed.Err()
}

// FieldViolation is one argument that the server refused.
type FieldViolation struct {
	Field  string
	Detail string
}

// Failure is what an error says, whoever made it.
type Failure struct {
	// Reason is the one that the error names, in the table or not; without one it
	// is the code's where the table has a row for it, and else empty.
	Reason Reason
	// Info reports whether the error carried an ErrorInfo of ours.
	Info       bool
	Code       codes.Code
	Message    string
	Applied    Applied
	ExitCode   int
	HTTPStatus int
	// RetryAfter is the server's advice, and 0 where it gave none.
	RetryAfter time.Duration
	Violations []FieldViolation
}

// Of reads an error back. It understands gRPC statuses, wrapped ones too, and the
// errors of a context; everything else is code Unknown. Of nil it returns the zero
// Failure, whose code is OK.
func Of(err error) Failure {
	if err == nil {
		return Failure{}
	}
	s := statusOf(err)
	f := Failure{Code: s.Code(), Message: s.Message()}
	var named Reason
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				named, f.Info = Reason(d.GetReason()), true
			}
		case *errdetails.RetryInfo:
			if wait := d.GetRetryDelay(); wait.CheckValid() == nil {
				f.RetryAfter = max(0, wait.AsDuration())
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				f.Violations = append(f.Violations, FieldViolation{Field: v.GetField(), Detail: v.GetDescription()})
			}
		}
	}
	row := named.Row()
	if !named.Known() {
		row = bare(s.Code())
	}
	f.Reason, f.Applied = row.Reason, row.Applied
	if f.Info {
		f.Reason = named // a newer server's too: people read it
	}
	f.ExitCode, f.HTTPStatus = row.ExitCode, row.HTTPStatus
	return f
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

// bare is the row of a status without a reason that this table knows. Only where
// gRPC or the server has looked at the call and sent it back is it known not to
// have been applied.
func bare(c codes.Code) Row {
	row := Reason("").Row()
	row.Code = c
	switch c {
	case codes.InvalidArgument, codes.OutOfRange:
		row.Applied, row.HTTPStatus, row.ExitCode = No, 400, ExitUsage
	case codes.NotFound, codes.FailedPrecondition, codes.AlreadyExists, codes.Aborted:
		row.HTTPStatus, row.ExitCode = 409, ExitFailure
	case codes.Unimplemented:
		row.Applied, row.HTTPStatus, row.ExitCode = No, 501, ExitFailure
	case codes.Unauthenticated:
		row = Unauthenticated.Row()
	case codes.PermissionDenied:
		row = PermissionDenied.Row()
	case codes.DeadlineExceeded:
		row = DeadlineExceeded.Row()
	case codes.Canceled:
		row = Cancelled.Row()
	case codes.Unavailable:
		row.HTTPStatus, row.ExitCode = 503, ExitUnavailable
	case codes.ResourceExhausted:
		row.HTTPStatus, row.ExitCode = 503, ExitRefused
	}
	return row
}
