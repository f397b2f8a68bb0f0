package httpadmit

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// Code is the stable name of an answer that the middleware gives by itself: the member
// "code" of its application/problem+json. Callers decide by it, not by the status.
type Code string

// The answers of the middleware, with the status that each has by default. [WithStatus]
// changes the status.
const (
	// CodeKeyMissing, 400: a key is required and there is none.
	CodeKeyMissing Code = "IDEMPOTENCY_KEY_MISSING"
	// CodeKeyInvalid, 400: the key is malformed, empty, given twice, over 255 bytes, or
	// not what the guarded endpoint takes for a key.
	CodeKeyInvalid Code = "IDEMPOTENCY_KEY_INVALID"
	// CodePrincipalRequired, 401: nobody is known to make this request.
	CodePrincipalRequired Code = "PRINCIPAL_REQUIRED"
	// CodeBodyTooLarge, 413: the request's body is over the limit.
	CodeBodyTooLarge Code = "BODY_TOO_LARGE"
	// CodeBodyUnreadable, 400: the request's body did not arrive.
	CodeBodyUnreadable Code = "BODY_UNREADABLE"
	// CodeInFlight, 409 with Retry-After: another request with this key is being carried
	// out. Try again later.
	CodeInFlight Code = "IDEMPOTENCY_IN_FLIGHT"
	// CodeMismatch, 422: the key was used with another request. A bug of the caller, not
	// to be retried.
	CodeMismatch Code = "IDEMPOTENCY_KEY_REUSED"
	// CodeInDoubt, 409: an earlier request with this key ended in silence, and nobody is
	// admitted until someone who knows has settled it.
	CodeInDoubt Code = "IDEMPOTENCY_IN_DOUBT"
	// CodeUnavailable, 503 with Retry-After: the coordinator is away, or it is not known
	// what it decided. With "executed": true the handler has run, and it is not known
	// whether that was recorded. Try again later with the same key.
	CodeUnavailable Code = "IDEMPOTENCY_UNAVAILABLE"
	// CodeLost, 503 with Retry-After: the handler has run, but it took longer than it was
	// admitted for and somebody else was admitted or has settled it. The same key, later,
	// gets the answer that counts.
	CodeLost Code = "IDEMPOTENCY_LOST"
	// CodeHandlerTimeout, 503 with Retry-After: the handler has not returned within
	// [WithHandlerTimeout]. It goes on, and the same key, later, gets its answer.
	CodeHandlerTimeout Code = "HANDLER_TIMEOUT"
	// CodeResponseNotStored, 410: the request was carried out, and its response could not
	// be kept. Its status is in "executed_status".
	CodeResponseNotStored Code = "RESPONSE_NOT_STORED"
	// CodeMisconfigured, 500: the coordinator does not take what the middleware is set up to
	// ask for, such as a principal over 128 bytes. The detail and the log name the field,
	// with its size and its limit.
	CodeMisconfigured Code = "IDEMPOTENCY_MISCONFIGURED"
)

// row is what a code means: its default status and what a person reads.
type row struct {
	status int
	title  string
}

// rows has a row for every code.
func rows() map[Code]row {
	return map[Code]row{
		CodeKeyMissing:        {http.StatusBadRequest, "An idempotency key is required"},
		CodeKeyInvalid:        {http.StatusBadRequest, "The idempotency key is not valid"},
		CodePrincipalRequired: {http.StatusUnauthorized, "Nobody is known to make this request"},
		CodeBodyTooLarge:      {http.StatusRequestEntityTooLarge, "The body is too large"},
		CodeBodyUnreadable:    {http.StatusBadRequest, "The body did not arrive"},
		CodeInFlight:          {http.StatusConflict, "A request with this idempotency key is being carried out"},
		CodeMismatch:          {http.StatusUnprocessableEntity, "The idempotency key was used with another request"},
		CodeInDoubt:           {http.StatusConflict, "An earlier request with this idempotency key ended in silence"},
		CodeUnavailable:       {http.StatusServiceUnavailable, "It cannot be decided whether the request may be carried out"},
		CodeLost:              {http.StatusServiceUnavailable, "The request took longer than it was admitted for"},
		CodeHandlerTimeout:    {http.StatusServiceUnavailable, "The request is still being carried out"},
		CodeResponseNotStored: {http.StatusGone, "The request was carried out and its response was not kept"},
		CodeMisconfigured:     {http.StatusInternalServerError, "The idempotency layer is set up wrongly"},
	}
}

// problemType is the content type of a problem.
const problemType = "application/problem+json"

// document is the body of a problem: RFC 9457, with extension members of ours.
type document struct {
	Type           string `json:"type"`
	Title          string `json:"title"`
	Status         int    `json:"status"`
	Detail         string `json:"detail,omitempty"`
	Code           Code   `json:"code"`
	Executed       bool   `json:"executed,omitempty"`
	ExecutedStatus int    `json:"executed_status,omitempty"`
}

// answer writes what the middleware says by itself, as a problem of RFC 9457.
func (g *guard) answer(w http.ResponseWriter, p *refusal.Refusal) {
	code := Code(p.Code)
	r := g.rows[code]
	if status, ok := g.statuses[code]; ok {
		r.status = status
	}
	link := g.Docs + "#" + string(code)
	// Strings and numbers only: this cannot fail.
	body, _ := json.Marshal(document{
		Type: link, Title: r.title, Status: r.status, Detail: p.Detail, Code: code,
		Executed: p.Executed, ExecutedStatus: p.Status,
	})
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Add("Link", "<"+link+`>; rel="describedby"`)
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(p.RetryAfter)))
	}
	if code == CodePrincipalRequired {
		h.Set("WWW-Authenticate", g.challenge)
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(body) // a caller that is gone hears nothing
}

// seconds is a delay in whole seconds, at least 1: Retry-After knows no less.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }
