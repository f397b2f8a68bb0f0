package httpadmit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// Defaults of the options.
const (
	bodyBytesDefault = 1 << 20
	docsDefault      = "https://github.com/atmostonce/coordinator/blob/main/docs/http.md"
)

// Option is an option of [New].
type Option func(*guard)

// WithPrincipal says who makes a request: the id of its API token or its account, from
// what an authenticating middleware outside has found out; never the secret itself. It is
// required; "" is nobody, and a 401 unless [WithAnonymous]. At most 128 bytes of UTF-8: hash
// what may be longer, for it is refused as the application's mistake (500,
// [CodeMisconfigured]), and the handler does not run.
//
// Two callers with different principals never meet, whatever keys they choose.
func WithPrincipal(principal func(*http.Request) string) Option {
	return func(g *guard) { g.principal = principal }
}

// WithAnonymous admits requests that nobody is known to make. All of them share their
// keys: whoever guesses one gets its response. [WithPrincipal] is not required then.
func WithAnonymous() Option { return func(g *guard) { g.Anonymous = true } }

// WithNamespace names the tenant, 1 to 64 bytes. Default: the coordinator's, "default".
func WithNamespace(namespace string) Option { return func(g *guard) { g.Namespace = namespace } }

// WithOperation names the guarded endpoint: the same key under another operation is another
// record. Default: the method and the path as the caller sent it, such as
// "POST /v1/workers/w7/reboot", with escapes where it needs them: "/w/x%2Fy" is not "/w/x/y".
// Two spellings of one path are one (RFC 3986, section 6.2.2): "%61" is "a", "%2f" is "%2F".
// One of more than 255 bytes is cut, with its hash at its end.
func WithOperation(operation func(*http.Request) string) Option {
	return func(g *guard) { g.operation = operation }
}

// WithKeys says where the key comes from; the first source that finds one decides.
// Default: [IdempotencyKey].
func WithKeys(sources ...KeySource) Option { return func(g *guard) { g.sources = sources } }

// WithKeyRequired refuses requests without a key (400). Without it they pass unguarded and
// untouched.
func WithKeyRequired() Option { return func(g *guard) { g.Required = true } }

// WithMethods says which methods are guarded, in capitals as they are sent. Default: all but
// GET, HEAD, OPTIONS and TRACE, which change nothing. What is not guarded passes untouched, key
// or no key.
func WithMethods(methods ...string) Option {
	return func(g *guard) {
		g.methods = map[string]bool{}
		for _, method := range methods {
			g.methods[method] = true
		}
	}
}

// WithFingerprint tells requests under the same key apart. Default: [RawBody].
func WithFingerprint(f Fingerprint) Option { return func(g *guard) { g.fingerprint = f } }

// WithBodyLimit is how large the body of a guarded request may be, in bytes, since all of
// it is in memory; more is a 413. Default: 1 MiB.
func WithBodyLimit(bytes int64) Option { return func(g *guard) { g.bodyLimit = bytes } }

// WithResponseLimit is how large a body is kept back and stored, in bytes. More goes out
// whole, to its first caller only, and over HTTP/1.0 without a Content-Length to nobody; see
// "A response over the limit" in the package's comment. Default: 1 MiB, headers included, which is also the coordinator's limit.
func WithResponseLimit(bytes int) Option { return func(g *guard) { g.ResponseLimit = bytes } }

// WithNeverStored replaces the list of headers, trailers included, that are not stored.
// Default: [NeverStored].
func WithNeverStored(headers ...string) Option { return func(g *guard) { g.unstored = headers } }

// WithClassifier decides what a response means, before the rule does:
//
//   - stored: 2xx, 3xx, and 4xx, which are the request's own fault;
//   - released: 409, 425 and 429, and under [client.Reopen] 408 and 5xx too;
//   - uncertain: under [client.Hold] 408 and 5xx; a handler whose context had ended and
//     that answered 408, 5xx or nothing; a status that no answer has; and what
//     http.TimeoutHandler answers for a handler that has not returned.
//
// What a guard downstream said by itself, passed on by the handler, counts as a 503 unless it is
// final.
//
// It returns [Default] to leave it to the rule. [MarkUncertain], [MarkNotApplied] and
// [MarkDone] count more.
func WithClassifier(classify func(Outcome) Verdict) Option {
	return func(g *guard) { g.classifier = classify }
}

// WithOnLapse says what a handler that ends in silence means for others. Default:
// [client.Reopen].
func WithOnLapse(o client.OnLapse) Option { return func(g *guard) { g.OnLapse = o } }

// WithPendingTTL is how long a handler may take, 100 ms to 24 h: its context ends then.
// Default: the coordinator's, 5 min.
func WithPendingTTL(d time.Duration) Option { return func(g *guard) { g.PendingTTL = &d } }

// WithRetention is how long a response is kept, 1 s to 30 days. Default: the
// coordinator's, 24 h. Automatic keys have their window instead.
func WithRetention(d time.Duration) Option { return func(g *guard) { g.Retention = &d } }

// WithOwner is what this process calls itself, for people; at most 128 bytes.
func WithOwner(name string) Option { return func(g *guard) { g.Owner = name } }

// WithWait lets a request whose key is in flight wait that long for its response, before
// it is a 409. Default: 0.
func WithWait(d time.Duration) Option { return func(g *guard) { g.Wait = &d } }

// WithReserveTimeout is how long the coordinator is asked without an answer before the request is
// refused (503, IDEMPOTENCY_UNAVAILABLE); what it waits for another one ([WithWait]) comes on
// top. Default: 3 s, which outlasts a change of leader (about 1.5 s). [client.WithCallTimeout]
// holds where it is less. More than 0.
//
// Nothing was carried out then. If the coordinator had admitted it all the same, and only its
// answer was lost, that is undone behind the scenes as soon as it answers again; until then,
// and for as long as [WithPendingTTL] says at the most, retries are told that the key is in
// flight. See "When the coordinator does not answer" in the package's comment.
func WithReserveTimeout(d time.Duration) Option { return func(g *guard) { g.ReserveTimeout = d } }

// WithKeepAlive renews the reservation while the handler runs. A handler that hangs then
// keeps its key from everybody else for up to 7 days; its context has no Deadline, so that a
// timeout of its own holds.
func WithKeepAlive() Option { return func(g *guard) { g.KeepAlive = true } }

// WithCallerCancel ends a handler's context when its caller hangs up, as net/http does.
// Without it a guarded handler goes on, and the caller's retry gets its response: its
// context ends with the reservation only. So it does once [WithHandlerTimeout] has answered.
func WithCallerCancel() Option { return func(g *guard) { g.CallerCancels = true } }

// WithHandlerTimeout answers 503 when the handler has not returned within d. The handler
// goes on, what it answers is recorded, and a retry gets it; it is never released while it
// runs. Use it in place of http.TimeoutHandler inside the guard. Default: none.
//
// The handler's own time is [WithPendingTTL]: its context ends then, whatever d is. Where d is not
// less, only a handler that goes on all the same is answered for, or one with [WithKeepAlive].
//
// The handler runs on a goroutine of its own then, which http.Server's Shutdown does not
// wait for.
func WithHandlerTimeout(d time.Duration) Option { return func(g *guard) { g.HandlerTimeout = d } }

// WithSettleWait is how long a caller waits for its answer to be recorded, before it gets
// a 503; recording goes on behind the scenes for the client's own [client.WithSettleTimeout].
// Default: 15 s.
func WithSettleWait(d time.Duration) Option { return func(g *guard) { g.SettleWait = d } }

// WithRetryAfter is what Retry-After says where the coordinator says nothing, rounded up
// to seconds. Default: 1 s.
func WithRetryAfter(d time.Duration) Option { return func(g *guard) { g.RetryAfter = d } }

// WithStatus changes the status of an answer, 400 to 599; its code stays.
func WithStatus(code Code, status int) Option {
	return func(g *guard) { g.statuses[code] = status }
}

// WithDocs is the page that answers link to, with "#" and the code behind it. Default: the
// page of this package.
func WithDocs(url string) Option { return func(g *guard) { g.Docs = url } }

// WithChallenge is the WWW-Authenticate of a 401. Default: "Bearer".
func WithChallenge(challenge string) Option { return func(g *guard) { g.challenge = challenge } }

// WithLogger is told what no caller hears of, and what its operator must hear of too. It names
// records whole, their keys and principals included, as docs/http.md has it. Default: slog.Default().
func WithLogger(logger *slog.Logger) Option { return func(g *guard) { g.Logger = logger } }

// check reports what is wrong with the options.
func (g *guard) check() error {
	errs := append(g.Check(g.principal != nil), g.fingerprint.err)
	refuse := func(wrong bool, format string, arguments ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, arguments...))
		}
	}
	refuse(g.operation == nil, "there is no function for the operation")
	refuse(len(g.sources) == 0, "there is no source of keys")
	for _, source := range g.sources {
		refuse(source.find == nil && source.err == nil, "a source of keys is empty")
		errs = append(errs, source.err)
		if kept := g.Retention; kept != nil {
			refuse(source.bucket > *kept, "BucketKey: the bucket is %v, and the record is kept for %v (WithRetention)", source.bucket, *kept)
		}
	}
	refuse(g.fingerprint.sum == nil && g.fingerprint.err == nil, "the fingerprint is empty")
	// What is misspelt here would pass unguarded.
	refuse(g.methods != nil && len(g.methods) == 0, "WithMethods: there are no methods")
	for method := range g.methods {
		// Of what the syntax allows, no method has more than these: a star would guard nothing.
		refuse(method == "" || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "",
			"WithMethods: %q is no method as one is sent, such as POST", method)
	}
	refuse(g.bodyLimit < 0, "the limit of bodies is %d, it must be 0 or more", g.bodyLimit)
	for code, status := range g.statuses {
		_, known := g.rows[code]
		refuse(!known, "there is no code %q", string(code))
		refuse(status < 400 || status > 599, "the status of %s is %d, it must be 400 to 599", code, status)
	}
	return errors.Join(errs...)
}
