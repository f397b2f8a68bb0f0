package httpadmit

import (
	"context"
	"net/http"
	"strconv"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
)

// handling is one admitted request in the hands of its handler: an [admit.Handler].
type handling struct {
	*guard
	attempt  *admit.Attempt
	next     http.Handler
	request  *http.Request
	recorder *recorder
	handled  *http.Request // what the handler got, once it has returned
	stored   bool          // it is done
}

// Handle implements admit.Handler.
func (h *handling) Handle(ctx context.Context) {
	request := h.request.WithContext(context.WithValue(ctx, attemptKey{}, h.attempt))
	h.next.ServeHTTP(h.recorder, request)
	if request.MultipartForm != nil && h.request.MultipartForm == nil {
		_ = request.MultipartForm.RemoveAll() // net/http does so for its own request only
	}
	h.recorder.finish()
	h.handled = request
}

// Returned implements admit.Handler: http.TimeoutHandler does not wait for its handler.
func (h *handling) Returned() bool { return !h.recorder.cut }

// Judge implements admit.Handler.
func (h *handling) Judge(ended bool) verdict.Verdict {
	r := h.recorder
	if h.classifier != nil {
		said := h.classifier(Outcome{Request: h.handled, Status: r.head.status, Header: r.head.header, Body: r.body, Truncated: r.stage != kept})
		if said != Default {
			return verdict.Verdict(said)
		}
	}
	status := r.head.status
	if r.stage == kept && passedOn(r.head.header, r.body) {
		status = http.StatusServiceUnavailable
	}
	return verdict.Verdict(rule(status, h.OnLapse, r.silent, ended))
}

// Status implements admit.Handler.
func (h *handling) Status() string { return strconv.Itoa(h.recorder.head.status) }

// Response implements admit.Handler.
func (h *handling) Response() (client.Response, error) {
	h.stored = true
	if why := h.recorder.incomplete(); why != nil {
		return admit.Omitted(h.recorder.head.status, h.recorder.written), why
	}
	response, unstored := h.recorder.storable(h.never)
	if len(unstored) > 0 {
		h.attempt.Warn(h.request.Context(), "replays of a response go without headers whose values are no text", "headers", unstored)
	}
	return response, nil
}

// Abandon implements admit.Handler.
func (h *handling) Abandon() bool { return h.recorder.abandon() }

// finish answers, now that what came of it is recorded, or not.
func (h *handling) finish(w http.ResponseWriter, refused *refusal.Refusal) {
	withheld := refused == nil && h.recorder.withheld()
	if withheld && h.stored {
		refused = refusal.Omitted(h.recorder.head.status) // as to everybody else
	}
	switch {
	case refused == nil && !withheld:
		h.recorder.send()
	case refused == nil, h.recorder.begun():
		// The caller must not take what it has for a complete answer.
		panic(http.ErrAbortHandler)
	default:
		h.answer(w, refused)
	}
}
