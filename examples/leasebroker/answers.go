package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// operation is one guarded operation. What it returns decides what becomes of the
// request's key:
//
//   - an answer, or a [problem] that is final: it is stored, and every retry gets it;
//   - a problem that says notApplied: nothing happened, and nothing will. The key is
//     released, and the next retry runs at once;
//   - any other error: nobody knows. The key stays taken until the reservation lapses,
//     and then the next retry runs.
type operation func(context.Context, *http.Request, *client.Reservation) (answer, error)

// carryOut runs an operation, and tells the guard around it what came of it.
func (b *broker) carryOut(run operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Unknown until it is known: a panic leaves it so, too.
		httpadmit.MarkUncertain(r.Context())
		res := httpadmit.Reservation(r.Context())
		if res == nil {
			// It would run without a key, and so without a guard.
			panic("leasebroker: an operation is not guarded")
		}
		ctx, cancel := context.WithTimeout(r.Context(), operationMost)
		defer cancel()
		done, err := run(ctx, r, res)
		var told *problem
		switch {
		case err == nil:
			httpadmit.MarkDone(r.Context())
			writeAnswer(w, done)
		case errors.As(err, &told) && !told.notApplied:
			httpadmit.MarkDone(r.Context())
			writeProblem(w, told)
		case errors.As(err, &told) && alone(res):
			httpadmit.MarkNotApplied(r.Context())
			writeProblem(w, told)
		default:
			b.unknown(w, r, err)
		}
	})
}

// alone reports whether every attempt before this one is known to have done nothing. One
// that has lapsed may yet go on where it stopped: then what this attempt did not do is not
// all there is to say, and only what is done is certain.
func alone(res *client.Reservation) bool {
	end := res.Previous().End
	return end == client.PreviousNone || end == client.PreviousReleased
}

// answer is what an operation answers.
type answer struct {
	status   int
	location string // empty: none
	body     any    // nil: none
}

// problem is an answer that says no: application/problem+json with a stable code.
type problem struct {
	status     int
	code       string
	detail     string
	notApplied bool
}

func (p *problem) Error() string { return p.code + ": " + p.detail }

func bad(format string, arguments ...any) *problem {
	return &problem{status: http.StatusBadRequest, code: "BAD_ORDER", detail: fmt.Sprintf(format, arguments...)}
}

func noWorker() *problem {
	return &problem{status: http.StatusNotFound, code: "NO_SUCH_WORKER", detail: "you have no worker of this id"}
}

func gone() *problem {
	return &problem{status: http.StatusGone, code: "WORKER_ENDED", detail: "the worker has ended; a new order needs a new key"}
}

func notDone(status int, code, detail string) *problem {
	return &problem{status: status, code: code, detail: detail, notApplied: true}
}

func stillCreating() *problem {
	return notDone(http.StatusConflict, "WORKER_CREATING", "the worker is still being created; try again later with the same key")
}

// unknown answers where nobody knows what happened.
func (b *broker) unknown(w http.ResponseWriter, r *http.Request, err error) {
	b.log.WarnContext(r.Context(), "what came of a request is not known", "request", r.Method+" "+r.URL.Path, "error", err)
	writeProblem(w, &problem{
		status: http.StatusServiceUnavailable, code: "OUTCOME_UNKNOWN",
		detail: "whether it was done is not known; try again later with the same key",
	})
}

func writeAnswer(w http.ResponseWriter, a answer) {
	if a.location != "" {
		w.Header().Set("Location", a.location)
	}
	if a.body != nil {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(a.status)
	if a.body != nil {
		_ = json.NewEncoder(w).Encode(a.body) // a caller that is gone hears nothing
	}
}

func writeProblem(w http.ResponseWriter, p *problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	if p.status == http.StatusServiceUnavailable || p.notApplied {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "about:blank", "title": http.StatusText(p.status), "status": p.status, "code": p.code, "detail": p.detail,
	})
}

// flavors is what a flavor's name looks like. Which ones there are the hypervisor knows.
var flavors = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// decode reads one JSON value from a request's body, which the guard has bounded.
func decode(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the body must be an order: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body must be one order")
	}
	return nil
}

// shown is a worker as callers see it.
func shown(w worker) map[string]any {
	all := map[string]any{"id": w.ID, "state": w.State, "flavor": w.Flavor}
	if w.State == active {
		all["address"], all["machine"], all["lease_ends"] = w.Address, w.Machine, w.Ends.UTC().Format(time.RFC3339)
	}
	return all
}
