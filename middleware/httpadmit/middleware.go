package httpadmit

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// guard is the middleware with its settings. It does not change once it is made.
type guard struct {
	admit.Settings

	principal   func(*http.Request) string
	operation   func(*http.Request) string
	sources     []KeySource
	methods     map[string]bool // nil: all but the safe ones
	fingerprint Fingerprint
	bodyLimit   int64
	unstored    []string
	never       map[string]bool // unstored and hopByHop
	classifier  func(Outcome) Verdict

	rows      map[Code]row
	statuses  map[Code]int
	challenge string
}

// New returns a middleware that admits each keyed request at most once. See the
// package's comment.
//
// It panics where the options are wrong: there is no principal, a limit is below zero, a
// window is out of range, a method is none, an option is nil. That is found when the program starts, and never later.
func New(c *client.Client, options ...Option) func(http.Handler) http.Handler {
	g := &guard{
		Settings: admit.Defaults(c, docsDefault), operation: operation, sources: []KeySource{IdempotencyKey()},
		fingerprint: RawBody(), bodyLimit: bodyBytesDefault, unstored: NeverStored(),
		rows: rows(), statuses: map[Code]int{}, challenge: "Bearer",
	}
	g.Abort = http.ErrAbortHandler
	for i, option := range options {
		if option == nil {
			panic(fmt.Sprintf("httpadmit: option %d of New is nil", i+1))
		}
		option(g)
	}
	if err := g.check(); err != nil {
		panic(fmt.Sprintf("httpadmit: %v", err))
	}
	g.never = map[string]bool{}
	for _, name := range append(hopByHop(), g.unstored...) {
		g.never[http.CanonicalHeaderKey(name)] = true
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, next) })
	}
}

// serve lets a request pass, answers it, or admits it.
func (g *guard) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !g.guarded(r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	who := ""
	if g.principal != nil {
		who = g.principal(r)
	}
	q := &request{w: w, http: r, limit: g.bodyLimit, admit: func() error {
		if who == "" && !g.Anonymous {
			return refusal.Nobody()
		}
		return nil
	}}
	key, err := g.find(q)
	if err == nil && key.value == "" {
		if !g.Required {
			next.ServeHTTP(w, q.restored())
			return
		}
		err = refusal.Missing(HeaderName)
	}
	if refused := q.admit(); refused != nil {
		err = refused // whoever is not known learns nothing else
	}
	fingerprint := key.fingerprint
	if err == nil {
		_, err = q.body()
	}
	if err == nil && fingerprint == nil {
		fingerprint, err = g.fingerprint.sum(q)
	}
	if err != nil {
		g.refuse(w, r, err)
		return
	}
	g.admit(w, q, next, admit.Question{
		Principal: who, Operation: g.operation(r), Key: key.value, Fingerprint: fingerprint, Window: key.window,
	})
}

// guarded reports whether requests of the method are.
func (g *guard) guarded(method string) bool {
	if g.methods != nil {
		return g.methods[method]
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// find asks the sources, in their order.
func (g *guard) find(q *request) (foundKey, error) {
	for _, source := range g.sources {
		key, err := source.find(q)
		if err != nil || key.value != "" {
			return key, err
		}
	}
	return foundKey{}, nil
}

// admit asks the coordinator, and runs the handler only if it says so.
func (g *guard) admit(w http.ResponseWriter, q *request, next http.Handler, question admit.Question) {
	attempt, err := g.Ask(q.http.Context(), question)
	if err != nil {
		g.refuse(w, q.http, err)
		return
	}
	h := &handling{
		guard: g, attempt: attempt, next: next, request: q.restored(),
		recorder: newRecorder(w, q.http, g.ResponseLimit),
	}
	h.finish(w, attempt.Run(h.request.Context(), h))
}

// refuse answers a request that is not admitted.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var (
		refused   *refusal.Refusal
		committed *client.CommittedError
	)
	switch {
	case errors.As(err, &committed):
		g.replay(w, r, committed.Response)
	case errors.As(err, &refused):
		g.answer(w, refused)
	default:
		g.answer(w, refusal.OfReserve(err, g.RetryAfter))
	}
}

// operation is the method and the real path of a request.
func operation(r *http.Request) string {
	return admit.Operation(r.Method + " " + (&request{http: r}).path())
}
