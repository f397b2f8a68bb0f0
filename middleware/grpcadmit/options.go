package grpcadmit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atmostonce/coordinator/client"
)

// docsDefault is the page that answers link to.
const docsDefault = "https://github.com/atmostonce/coordinator/blob/main/docs/grpc.md"

// Option is an option of [New].
type Option func(*guard)

// WithPrincipal says who makes a call: the id of its API token or its account, from what an
// authenticating interceptor outside has put into the context; never the secret itself. It
// is required; "" is nobody, and UNAUTHENTICATED unless [WithAnonymous]. At most 128 bytes of
// UTF-8: hash what may be longer, for it is refused as the application's mistake (INTERNAL,
// [ReasonMisconfigured]), and the handler does not run.
//
// Two callers with different principals never meet, whatever keys they choose.
func WithPrincipal(principal func(context.Context) string) Option {
	return func(g *guard) { g.principal = principal }
}

// WithAnonymous admits calls that nobody is known to make. All of them share their keys:
// whoever guesses one gets its response. [WithPrincipal] is not required then.
func WithAnonymous() Option { return func(g *guard) { g.Anonymous = true } }

// WithNamespace names the tenant, 1 to 64 bytes. Default: the coordinator's, "default".
func WithNamespace(namespace string) Option { return func(g *guard) { g.Namespace = namespace } }

// WithOperation names the guarded operation: the same key under another operation is another
// record. Default: the full method, such as "/shop.v1.Orders/Place". One of more than 255
// bytes is cut, with its hash at its end.
func WithOperation(operation func(method string, request proto.Message) string) Option {
	return func(g *guard) { g.operation = operation }
}

// WithKeys says where the key comes from; the first source that finds one decides.
// Default: [IdempotencyKey].
func WithKeys(sources ...KeySource) Option { return func(g *guard) { g.sources = sources } }

// WithKeyRequired refuses calls without a key (INVALID_ARGUMENT). Without it they pass
// unguarded and untouched.
func WithKeyRequired() Option { return func(g *guard) { g.Required = true } }

// WithMethods says which methods are guarded, by their full names, such as
// "/shop.v1.Orders/Place". Default: all but those that are declared to have no side effects
// and those of the health service. What is not guarded passes untouched, key or no key.
func WithMethods(methods ...string) Option {
	return func(g *guard) {
		g.methods = map[string]bool{}
		for _, method := range methods {
			g.methods[method] = true
		}
	}
}

// WithFingerprint tells requests under the same key apart. Default: [WholeRequest].
func WithFingerprint(f Fingerprint) Option { return func(g *guard) { g.fingerprint = f } }

// WithResponseLimit is how large a response or status is stored, in bytes. A larger one
// reaches its first caller only; see "What is stored" in the package's comment. Default:
// 1 MiB, which is also the coordinator's limit.
func WithResponseLimit(bytes int) Option { return func(g *guard) { g.ResponseLimit = bytes } }

// WithClassifier decides what an answer means, before the rule does:
//
//   - stored: OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED,
//     FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED;
//   - released, under [client.Reopen] and from a handler whose context had not ended:
//     ABORTED, UNAUTHENTICATED, RESOURCE_EXHAUSTED, UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS;
//   - uncertain: everything else, DEADLINE_EXCEEDED and CANCELLED always: what was cut off
//     may have happened. Under [client.Hold] nothing is released but by the handler's or the
//     classifier's word.
//
// What a guard downstream said by itself, passed on by the handler, counts as UNAVAILABLE unless
// it is final.
//
// It returns [Default] to leave it to the rule. It is not asked about errors that are marked
// with [client.Uncertain] or [client.NotApplied], nor about those of a context that has ended,
// DEADLINE_EXCEEDED and CANCELLED, which are uncertain; and [MarkUncertain], [MarkNotApplied]
// and [MarkDone] count most.
func WithClassifier(classify func(Outcome) Verdict) Option {
	return func(g *guard) { g.classifier = classify }
}

// WithOnLapse says what a handler that ends in silence means for others. Default:
// [client.Reopen].
func WithOnLapse(o client.OnLapse) Option { return func(g *guard) { g.OnLapse = o } }

// WithPendingTTL is how long a handler may take, 100 ms to 24 h: its context ends then.
// Default: the coordinator's, 5 min.
func WithPendingTTL(d time.Duration) Option { return func(g *guard) { g.PendingTTL = &d } }

// WithRetention is how long an answer is kept, 1 s to 30 days. Default: the coordinator's,
// 24 h.
func WithRetention(d time.Duration) Option { return func(g *guard) { g.Retention = &d } }

// WithOwner is what this process calls itself, for people; at most 128 bytes.
func WithOwner(name string) Option { return func(g *guard) { g.Owner = name } }

// WithWait lets a call whose key is in flight wait that long for its answer, before it is
// ABORTED. Default: 0.
func WithWait(d time.Duration) Option { return func(g *guard) { g.Wait = &d } }

// WithReserveTimeout is how long the coordinator is asked without an answer before the call is
// refused (UNAVAILABLE, IDEMPOTENCY_UNAVAILABLE); what it waits for another one ([WithWait]) comes on
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

// WithCallerCancel ends a handler's context when its caller hangs up or the call's deadline
// passes, as gRPC does. Without it a guarded handler goes on, and the caller's retry gets
// its answer: its context ends with the reservation only. So it does once [WithHandlerTimeout]
// has answered, and with both of them it ends at the call's deadline without naming it.
func WithCallerCancel() Option { return func(g *guard) { g.CallerCancels = true } }

// WithHandlerTimeout answers UNAVAILABLE, HANDLER_TIMEOUT, when the handler has not returned
// within d. The handler goes on, what it answers is recorded, and a retry gets it; it is
// never released while it runs. Default: none.
//
// The handler's own time is [WithPendingTTL]: its context ends then, whatever d is. Where d is not
// less, only a handler that goes on all the same is answered for, or one with [WithKeepAlive].
//
// The handler runs on a goroutine of its own then, which the server's GracefulStop does not
// wait for once the time is up. A panic of a handler beyond its time is logged, since there is
// nobody left whom it could reach.
func WithHandlerTimeout(d time.Duration) Option { return func(g *guard) { g.HandlerTimeout = d } }

// WithSettleWait is how long a caller waits for its answer to be recorded, before it gets
// UNAVAILABLE; recording goes on behind the scenes for the client's own
// [client.WithSettleTimeout]. Default: 15 s.
func WithSettleWait(d time.Duration) Option { return func(g *guard) { g.SettleWait = d } }

// WithRetryAfter is what RetryInfo says where the coordinator says nothing; less than 1 s is 1 s.
// Default: 1 s.
func WithRetryAfter(d time.Duration) Option { return func(g *guard) { g.RetryAfter = d } }

// WithStatusCode changes the status code of an answer of the interceptor; its reason stays.
func WithStatusCode(reason Reason, code codes.Code) Option {
	return func(g *guard) { g.statuses[reason] = code }
}

// WithDocs is the page that answers link to, with "#" and the reason behind it. Default: the
// page of this package.
func WithDocs(url string) Option { return func(g *guard) { g.Docs = url } }

// WithLogger is told what no caller hears of, and what its operator must hear of too. It names
// records whole, their keys and principals included, as docs/http.md has it. Default: slog.Default().
func WithLogger(logger *slog.Logger) Option { return func(g *guard) { g.Logger = logger } }

// check reports what is wrong with the options.
func (g *guard) check() error {
	errs := g.Check(g.principal != nil)
	refuse := func(wrong bool, format string, arguments ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, arguments...))
		}
	}
	refuse(g.operation == nil, "there is no function for the operation")
	refuse(len(g.sources) == 0, "there is no source of keys")
	for _, source := range g.sources {
		refuse(source == nil, "a source of keys is empty")
	}
	// What is misspelt here would pass unguarded.
	refuse(g.methods != nil && len(g.methods) == 0, "WithMethods: there are no methods")
	for method := range g.methods {
		service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		refuse(!strings.HasPrefix(method, "/") || !protoreflect.FullName(service).IsValid() || !protoreflect.Name(name).IsValid(),
			"WithMethods: %q is no full method, such as /shop.v1.Orders/Place", method)
	}
	refuse(g.fingerprint == nil, "the fingerprint is empty")
	for reason, code := range g.statuses {
		_, known := g.rows[reason]
		refuse(!known, "there is no reason %q", string(reason))
		refuse(code == codes.OK || code > codes.Unauthenticated, "the code of %s is %d, it must be 1 to 16", reason, code)
	}
	return errors.Join(errs...)
}
