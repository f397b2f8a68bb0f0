package admission

import "fmt"

// Reason names why a command was refused. The zero value, [None], is no refusal.
// The names are the contract's, and are stable.
type Reason string

// The refusals that the rules know. What concerns the way to the rules (no leader,
// overload, an unknown outcome) is not decided here and has its names elsewhere.
const (
	None Reason = ""

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
	DeadlineExceeded    Reason = "DEADLINE_EXCEEDED"
	StorageFull         Reason = "STORAGE_FULL"
	QuotaExceeded       Reason = "QUOTA_EXCEEDED"
)

// Violation says which argument is wrong and how: the limit, and what was given.
type Violation struct {
	Field  string // as the wire names it, such as "identity.key"
	Detail string // such as "is 300 bytes long, the limit is 255"
	// Reason is [InvalidArgument], or [ResponseTooLarge] where that is what it is.
	Reason Reason
}

// String returns field and detail as one sentence without a full stop.
func (v *Violation) String() string { return v.Field + " " + v.Detail }

func violation(field, format string, arguments ...any) *Violation {
	return &Violation{Field: field, Detail: fmt.Sprintf(format, arguments...), Reason: InvalidArgument}
}
