package httpadmit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/atmostonce/coordinator/client"
)

// guard is the middleware with its settings. It does not change once it is made.
type guard struct {
	client *client.Client
	logger *slog.Logger

	principal   func(*http.Request) string
	anonymous   bool
	namespace   string
	operation   func(*http.Request) string
	sources     []KeySource
	required    bool
	methods     map[string]bool // nil: all but the safe ones
	fingerprint Fingerprint
	bodyLimit   int64

	responseLimit int
	unstored      []string
	never         map[string]bool // unstored and hopByHop
	classifier    func(Outcome) Verdict

	onLapse        client.OnLapse
	reserve        []client.ReserveOption
	keepAlive      bool
	callerCancels  bool
	handlerTimeout time.Duration
	settleWait     time.Duration

	retryAfter time.Duration
	rows       map[Code]row
	statuses   map[Code]int
	docs       string
	challenge  string
}

// New returns a middleware that admits each keyed request at most once. See the
// package's comment.
//
// It panics where the options are wrong: there is no principal, a limit is below zero, a
// window is out of range. That is found when the program starts, and never later.
func New(c *client.Client, options ...Option) func(http.Handler) http.Handler {
	g := &guard{
		client: c, logger: slog.Default(), operation: operation, sources: []KeySource{IdempotencyKey()},
		fingerprint: RawBody(), bodyLimit: bodyBytesDefault,
		responseLimit: responseBytesDefault, unstored: NeverStored(),
		settleWait: settleWaitDefault, retryAfter: retryAfterDefault,
		rows: rows(), statuses: map[Code]int{}, docs: docsDefault, challenge: "Bearer",
	}
	for _, option := range options {
		option(g)
	}
	if c == nil {
		panic("httpadmit: there is no client")
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
		if who == "" && !g.anonymous {
			return &problem{code: CodePrincipalRequired, detail: "keys belong to whoever uses them"}
		}
		return nil
	}}
	key, err := g.find(q)
	if err == nil && key.value == "" {
		if !g.required {
			next.ServeHTTP(w, q.restored())
			return
		}
		err = &problem{code: CodeKeyMissing, detail: "send one with " + HeaderName + ", the same for every retry of this request"}
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
	g.admit(w, q, next, client.Identity{Namespace: g.namespace, Principal: who, Operation: g.operation(r), Key: key.value}, key, fingerprint)
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
func (g *guard) admit(w http.ResponseWriter, q *request, next http.Handler, id client.Identity, key foundKey, fingerprint []byte) {
	options := append([]client.ReserveOption{}, g.reserve...)
	options = append(options, client.WithFingerprint(fingerprint), client.WithOnLapse(g.onLapse))
	if key.window > 0 {
		options = append(options, client.WithRetention(key.window))
	}
	reservation, err := g.client.Reserve(q.http.Context(), id, options...)
	if err != nil {
		g.refuse(w, q.http, err)
		return
	}
	a := &attempt{
		guard: g, next: next, request: q.restored(), reservation: reservation,
		admission: &admission{reservation: reservation, mark: atomic.Int32{}},
		recorder:  newRecorder(w, q.http, g.responseLimit), window: key.window, granted: time.Now(),
	}
	a.serve(w)
}

// refuse answers a request that is not admitted.
func (g *guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var (
		told      *problem
		committed *client.CommittedError
	)
	switch {
	case errors.As(err, &told):
		g.answer(w, told)
	case errors.As(err, &committed):
		g.replay(w, r.Method, committed.Response)
	case errors.Is(err, client.ErrPending):
		g.answer(w, &problem{
			code: CodeInFlight, retryAfter: max(client.RetryAfter(err), time.Millisecond),
			detail: "try again later with the same key",
		})
	case errors.Is(err, client.ErrInDoubt):
		g.answer(w, &problem{
			code:   CodeInDoubt,
			detail: "whether it was carried out is not known; someone who knows must settle it first",
		})
	case errors.Is(err, client.ErrFingerprintMismatch):
		g.answer(w, &problem{code: CodeMismatch, detail: "a new request needs a new key; do not send this one again"})
	case errors.Is(err, client.ErrInvalidArgument):
		g.logger.ErrorContext(r.Context(), "the coordinator refuses what it is asked for", "error", err)
		g.answer(w, &problem{code: CodeMisconfigured})
	default:
		g.logger.WarnContext(r.Context(), "a keyed request was refused: the coordinator does not admit it", "error", err)
		g.answer(w, &problem{
			code: CodeUnavailable, retryAfter: max(client.RetryAfter(err), g.retryAfter),
			detail: "this delivery was not carried out; try again later with the same key",
		})
	}
}

// operationBytesMost is how long an operation may be.
const operationBytesMost = 255

// operation is the method and the real path of a request.
func operation(r *http.Request) string {
	name := r.Method + " " + (&request{http: r}).target().Path
	if len(name) <= operationBytesMost && utf8.ValidString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "…sha256:" + hex.EncodeToString(sum[:])
	cut := strings.ToValidUTF8(name[:min(len(name), operationBytesMost-len(hash))], "")
	return cut + hash
}
