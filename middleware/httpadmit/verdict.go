package httpadmit

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
)

// Verdict says what a handler's response means for its key.
type Verdict int

const (
	// Default leaves it to the rule; see [WithClassifier].
	Default Verdict = Verdict(verdict.Default)
	// Store means that it is done. The response is stored, and every retry gets it.
	Store Verdict = Verdict(verdict.Store)
	// Release means that nothing happened, and nothing will. The next request runs the handler.
	Release Verdict = Verdict(verdict.Release)
	// Uncertain means that it may have happened, or may happen yet. Nothing is stored or
	// released; the reservation lapses, and [WithOnLapse] says what that means.
	Uncertain Verdict = Verdict(verdict.Uncertain)
)

// String returns the verdict's name.
func (v Verdict) String() string { return verdict.Verdict(v).String() }

// Outcome is what a handler answered, for a classifier. It must not be changed.
type Outcome struct {
	// Request is what the handler got. Its body was read.
	Request *http.Request
	// Status is the final one.
	Status int
	// Header is the header as it was when the status was written.
	Header http.Header
	// Body is the response's body, or its first part where Truncated is set.
	Body []byte
	// Truncated says that the body is over the limit, and not kept as a whole.
	Truncated bool
}

// SoftFailure is a classifier for endpoints that answer a failure with a 200: a response
// in JSON, 2xx, whose member of that name is false is released, {"success": false} for
// example.
func SoftFailure(member string) func(Outcome) Verdict {
	return func(o Outcome) Verdict {
		if o.Status < 200 || o.Status > 299 || o.Truncated || !isJSON(o.Header.Get("Content-Type")) {
			return Default
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(o.Body, &object) == nil && string(object[member]) == "false" {
			return Release
		}
		return Default
	}
}

// rule is the default verdict. ended says that the handler's context had ended when it
// returned: something was cut off.
func rule(status int, onLapse client.OnLapse, silent, ended bool) Verdict {
	switch {
	case silent && ended:
		return Uncertain // a handler that gave up, not one that is done
	case status == http.StatusConflict, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return Release
	case status == http.StatusRequestTimeout, status >= 500 && status <= 599:
		// What failed may have acted before it did. Hold was chosen because twice is
		// worse than not at all.
		if onLapse != client.Reopen || ended {
			return Uncertain
		}
		return Release
	case status >= 200 && status <= 499:
		return Store
	}
	return Uncertain
}

// passedOn reports whether a response is what a guard downstream said by itself and will not say
// for good: a request in flight or in doubt there is neither done nor undone. It is known by its
// code and by the link to it, whatever status it was given.
func passedOn(header http.Header, body []byte) bool {
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || media != problemType {
		return false
	}
	var problem document
	if json.Unmarshal(body, &problem) != nil || !strings.HasSuffix(problem.Type, "#"+string(problem.Code)) {
		return false
	}
	switch problem.Code {
	case CodeInFlight, CodeInDoubt, CodeUnavailable, CodeLost, CodeHandlerTimeout:
		return true
	}
	return false
}

// attemptKey is where a handler's context has its attempt.
type attemptKey struct{}

func attemptOf(ctx context.Context) *admit.Attempt {
	a, _ := ctx.Value(attemptKey{}).(*admit.Attempt)
	return a
}

// Reservation returns the reservation that a request was admitted with, from its
// context: the fence, for systems downstream that compare it, and [client.Reservation.Derive]
// for the keys of side effects. nil where the request is not guarded. It is the
// middleware that commits and releases it.
func Reservation(ctx context.Context) *client.Reservation { return attemptOf(ctx).Reservation() }

// MarkUncertain says, from within a guarded handler, that what it does may have happened
// whatever it answers: nothing is stored or released. The last mark counts, and it counts
// more than the classifier. Not guarded: does nothing.
func MarkUncertain(ctx context.Context) { attemptOf(ctx).Mark(verdict.Uncertain) }

// MarkNotApplied says that nothing happened and nothing will, whatever the answer is: the
// key is free again, under [client.Hold] too.
func MarkNotApplied(ctx context.Context) { attemptOf(ctx).Mark(verdict.Release) }

// MarkDone says that it is done, whatever the answer is: the response is stored.
func MarkDone(ctx context.Context) { attemptOf(ctx).Mark(verdict.Store) }
