// Package refusal is what the middleware answers by itself, in whatever protocol: the stable
// names, and which of them each outcome of Reserve is. The protocols add their statuses.
//
// # Invariants
//
//  1. Every error of Reserve is one of these answers or a stored response; none lets a request
//     through.
//  2. An answer says "executed" only if the handler has run.
package refusal

import (
	"errors"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// Code is the stable name of an answer. Callers decide by it.
type Code string

// The answers.
const (
	KeyMissing        Code = "IDEMPOTENCY_KEY_MISSING"
	KeyInvalid        Code = "IDEMPOTENCY_KEY_INVALID"
	PrincipalRequired Code = "PRINCIPAL_REQUIRED"
	InFlight          Code = "IDEMPOTENCY_IN_FLIGHT"
	Mismatch          Code = "IDEMPOTENCY_KEY_REUSED"
	InDoubt           Code = "IDEMPOTENCY_IN_DOUBT"
	Unavailable       Code = "IDEMPOTENCY_UNAVAILABLE"
	Lost              Code = "IDEMPOTENCY_LOST"
	HandlerTimeout    Code = "HANDLER_TIMEOUT"
	ResponseNotStored Code = "RESPONSE_NOT_STORED"
	Misconfigured     Code = "IDEMPOTENCY_MISCONFIGURED"
	// Those that only a protocol with bodies has.
	BodyTooLarge   Code = "BODY_TOO_LARGE"
	BodyUnreadable Code = "BODY_UNREADABLE"
)

// Refusal is one answer. It is an error, so that what refuses a request can return it.
type Refusal struct {
	Code       Code
	Detail     string        // for people; "" where the code says it all
	RetryAfter time.Duration // when the same again may fare better; 0: waiting does not help
	Executed   bool          // the handler has run
	Status     int           // of the response that was not kept, in the numbers of the protocol
}

// Error implements error.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Detail }

// Invalid returns the refusal of a malformed key. The text is told to the caller.
func Invalid(text string) *Refusal { return &Refusal{Code: KeyInvalid, Detail: text} }

// Missing returns the refusal of a request without a key; where says how one is sent.
func Missing(where string) *Refusal {
	return &Refusal{Code: KeyMissing, Detail: "send one with " + where + ", the same for every retry"}
}

// Nobody returns the refusal of a request that nobody is known to make.
func Nobody() *Refusal {
	return &Refusal{Code: PrincipalRequired, Detail: "keys belong to whoever uses them"}
}

// Late returns the refusal that a caller gets whose handler has not returned in time.
func Late(retryAfter time.Duration) *Refusal {
	return &Refusal{Code: HandlerTimeout, RetryAfter: retryAfter, Detail: "it goes on; the same key gets its answer, later"}
}

// Omitted returns the refusal that stands for a stored response which is none: its own could
// not be kept.
func Omitted(status int) *Refusal {
	return &Refusal{Code: ResponseNotStored, Executed: true, Status: status, Detail: "do not send it again: nothing would be carried out"}
}

// Unrecorded returns the refusal that a caller gets whose handler has run, and of which it is
// not known whether that was recorded; or that was not, since another one's answer counts.
func Unrecorded(err error, retryAfter time.Duration) *Refusal {
	for _, other := range [...]error{client.ErrLost, client.ErrLapsed, client.ErrConflict, client.ErrAlreadyReleased} {
		if errors.Is(err, other) {
			return &Refusal{Code: Lost, Executed: true, RetryAfter: retryAfter, Detail: "it was carried out, and another answer counts"}
		}
	}
	return &Refusal{
		Code: Unavailable, Executed: true, RetryAfter: retryAfter,
		Detail: "it was carried out, and it is not known whether that was recorded",
	}
}

// OfReserve returns the refusal that an error of Reserve is. A stored response is not one.
// retryAfter is what the caller is told where the coordinator says nothing.
func OfReserve(err error, retryAfter time.Duration) *Refusal {
	switch {
	case errors.Is(err, client.ErrPending):
		return &Refusal{
			Code: InFlight, RetryAfter: max(client.RetryAfter(err), time.Millisecond),
			Detail: "try again later with the same key",
		}
	case errors.Is(err, client.ErrInDoubt):
		return &Refusal{Code: InDoubt, Detail: "whether it was carried out is not known; someone who knows must settle it first"}
	case errors.Is(err, client.ErrFingerprintMismatch):
		return &Refusal{Code: Mismatch, Detail: "a new request needs a new key; do not send this one again"}
	case errors.Is(err, client.ErrInvalidArgument):
		return &Refusal{Code: Misconfigured, Detail: violations(err)}
	}
	return &Refusal{
		Code: Unavailable, RetryAfter: max(client.RetryAfter(err), retryAfter),
		Detail: "this delivery was not carried out; try again later with the same key",
	}
}

// violations names what was refused: fields, with their limits and sizes, and never what was in
// them.
func violations(err error) string {
	var failed *client.Error
	if !errors.As(err, &failed) {
		return ""
	}
	texts := make([]string, len(failed.Violations))
	for i, v := range failed.Violations {
		texts[i] = v.Field + " " + v.Detail
	}
	return strings.Join(texts, "; ")
}
