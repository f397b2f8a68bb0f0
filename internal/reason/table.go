package reason

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
)

// Reason names why a call failed. The names are the contract's, and are stable.
type Reason string

// The reasons of the contract. The first group are the refusals of the rules; the
// second concerns the way to the rules and back.
const (
	InvalidArgument     Reason = "INVALID_ARGUMENT"
	ResponseTooLarge    Reason = "RESPONSE_TOO_LARGE"
	FingerprintMismatch Reason = "FINGERPRINT_MISMATCH"
	ReservationLost     Reason = "RESERVATION_LOST"
	ReservationLapsed   Reason = "RESERVATION_LAPSED"
	ReservationNotFound Reason = "RESERVATION_NOT_FOUND"
	CommitConflict      Reason = "COMMIT_CONFLICT"
	AlreadyCommitted    Reason = "ALREADY_COMMITTED"
	AlreadyReleased     Reason = "ALREADY_RELEASED"
	NotInDoubt          Reason = "NOT_IN_DOUBT"
	NotPurgeable        Reason = "NOT_PURGEABLE"
	RevisionMismatch    Reason = "REVISION_MISMATCH"
	AttemptEnded        Reason = "ATTEMPT_ENDED"
	StorageFull         Reason = "STORAGE_FULL"
	QuotaExceeded       Reason = "QUOTA_EXCEEDED"

	NoLeader         Reason = "NO_LEADER"
	ShuttingDown     Reason = "SHUTTING_DOWN"
	OutcomeUnknown   Reason = "OUTCOME_UNKNOWN"
	Overloaded       Reason = "OVERLOADED"
	Unauthenticated  Reason = "UNAUTHENTICATED"
	PermissionDenied Reason = "PERMISSION_DENIED"
	DeadlineExceeded Reason = "DEADLINE_EXCEEDED"
	Cancelled        Reason = "CANCELLED"
)

// Applied says whether the delivery that failed may have changed something. It does
// not speak of earlier deliveries of a retried call.
type Applied uint8

// The zero value is the careful one.
const (
	Maybe Applied = iota
	No
)

// String returns the word that the contract's table uses.
func (a Applied) String() string {
	if a == No {
		return "no"
	}
	return "maybe"
}

// Exit codes of coordctl. 3, 4 and 5 are outcomes of Reserve, 11 is one of its status,
// and none of these is in a row of the table.
const (
	ExitDone                = 0
	ExitFailure             = 1
	ExitUsage               = 2
	ExitPending             = 3
	ExitCommitted           = 4
	ExitInDoubt             = 5
	ExitFingerprintMismatch = 6
	ExitNotOwner            = 7
	ExitUnavailable         = 8
	ExitRefused             = 9
	ExitNotAllowed          = 10
	ExitUnhealthy           = 11
)

// Row is one reason with everything that follows from it.
type Row struct {
	Reason  Reason
	Code    codes.Code
	Applied Applied
	// Meaning is the default message: one clause for people, without a full stop.
	Meaning string
	// Advice is what the caller should do.
	Advice string
	// HTTPStatus is what a middleware answers where the failure reaches its caller.
	HTTPStatus int
	// ExitCode is what coordctl ends with.
	ExitCode int
	// RetryAfter is how long to wait before the same call may fare better, and 0
	// where waiting does not help. It is sent as RetryInfo.
	RetryAfter time.Duration
	// OfRecord says that the call was refused for what its record is. That is the truth
	// about every earlier delivery as well; any other refusal was made without a look at
	// the record, and says nothing of those.
	OfRecord bool
}

// table is in the order of the contract.
var table = [...]Row{
	{InvalidArgument, codes.InvalidArgument, No, "an argument is not valid",
		"fix the call", 400, ExitUsage, 0, false},
	{ResponseTooLarge, codes.InvalidArgument, No, "the response is too large",
		"commit without the body", 413, ExitUsage, 0, false},
	{FingerprintMismatch, codes.FailedPrecondition, No, "the key was used with another request",
		"surface the bug, do not retry", 422, ExitFingerprintMismatch, 0, true},
	{ReservationLost, codes.FailedPrecondition, No, "the token is not the one of the record's latest grant",
		"stop acting as the owner", 409, ExitNotOwner, 0, true},
	{ReservationLapsed, codes.FailedPrecondition, No, "the reservation is over and cannot be extended",
		"stop acting as the owner", 409, ExitNotOwner, 0, true},
	{ReservationNotFound, codes.NotFound, No, "there is no such record",
		"stop acting as the owner", 404, ExitNotOwner, 0, true},
	{CommitConflict, codes.FailedPrecondition, No, "another response was committed, and stands",
		"stop acting as the owner", 409, ExitNotOwner, 0, true},
	{AlreadyCommitted, codes.FailedPrecondition, No, "the reservation was committed",
		"stop acting as the owner", 409, ExitNotOwner, 0, true},
	{AlreadyReleased, codes.FailedPrecondition, No, "the reservation was released",
		"stop acting as the owner", 409, ExitNotOwner, 0, true},
	{NotInDoubt, codes.FailedPrecondition, No, "the record is neither in doubt nor lapsed, or was settled otherwise",
		"look again before settling", 409, ExitNotOwner, 0, true},
	{NotPurgeable, codes.FailedPrecondition, No, "the record is pending or in doubt, which only force purges",
		"look again before purging", 409, ExitNotOwner, 0, true},
	{RevisionMismatch, codes.FailedPrecondition, No, "the record has changed since it was looked at",
		"look again before settling", 409, ExitNotOwner, 0, true},
	{AttemptEnded, codes.FailedPrecondition, No, "this attempt was granted before and has ended",
		"reserve with a new attempt_id, if the key is still wanted", 409, ExitNotOwner, 0, true},
	{NoLeader, codes.Unavailable, No, "the shard has no leader that can be reached",
		"retry with the same attempt_id or token", 503, ExitUnavailable, 250 * time.Millisecond, false},
	{ShuttingDown, codes.Unavailable, No, "the node is shutting down",
		"retry with the same attempt_id or token", 503, ExitUnavailable, 100 * time.Millisecond, false},
	{OutcomeUnknown, codes.Unavailable, Maybe, "it is not known whether the call was carried out",
		"retry with the same attempt_id or token: the answer then is the truth", 503, ExitUnavailable, 100 * time.Millisecond, false},
	{Overloaded, codes.ResourceExhausted, No, "the shard has more to do than it can hold",
		"back off", 503, ExitRefused, 500 * time.Millisecond, false},
	{StorageFull, codes.ResourceExhausted, No, "the leader is short of disk space and takes no new keys",
		"back off", 507, ExitRefused, 10 * time.Second, false},
	{QuotaExceeded, codes.ResourceExhausted, No, "the namespace has as many records as it may have",
		"back off", 429, ExitRefused, 10 * time.Second, false},
	{Unauthenticated, codes.Unauthenticated, No, "the caller is not known",
		"fix the credentials", 401, ExitNotAllowed, 0, false},
	{PermissionDenied, codes.PermissionDenied, No, "the caller is not allowed to do this",
		"fix the credentials", 403, ExitNotAllowed, 0, false},
	{DeadlineExceeded, codes.DeadlineExceeded, Maybe, "the call's deadline passed",
		"as after OUTCOME_UNKNOWN", 504, ExitUnavailable, 0, false},
	{Cancelled, codes.Canceled, Maybe, "the caller went away",
		"as after OUTCOME_UNKNOWN", 499, ExitUnavailable, 0, false},
}

// Table returns all rows, in the order of the contract.
func Table() []Row { return slices.Clone(table[:]) }

// Row returns the reason's row. A name that is not in the table has a row that
// promises nothing: code Unknown, maybe applied, exit code 1.
func (r Reason) Row() Row {
	for _, row := range table {
		if row.Reason == r {
			return row
		}
	}
	return Row{
		Reason: r, Code: codes.Unknown, Applied: Maybe, Meaning: "the call failed",
		Advice: "as after OUTCOME_UNKNOWN", HTTPStatus: 500, ExitCode: ExitFailure,
	}
}

// Known reports whether the reason is in the table.
func (r Reason) Known() bool {
	return slices.ContainsFunc(table[:], func(row Row) bool { return row.Reason == r })
}

// CodeName returns the canonical name of a gRPC code, such as "FAILED_PRECONDITION".
func CodeName(c codes.Code) string {
	return code.Code(c).String()
}

// WriteMarkdown writes the table, all columns, one reason a row.
func WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| reason | gRPC code | applied? | meaning | caller should | HTTP | exit |\n")
	b.WriteString("|---|---|---|---|---|---|---|\n")
	for _, row := range table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %d | %d |\n", row.Reason, CodeName(row.Code),
			row.Applied, row.Meaning, row.Advice, row.HTTPStatus, row.ExitCode)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
