package grpcadmit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/atmostonce/coordinator/client"
)

// guard is the interceptor with its settings. It does not change once it is made.
type guard struct {
	client *client.Client
	logger *slog.Logger

	principal   func(context.Context) string
	anonymous   bool
	namespace   string
	operation   func(string, proto.Message) string
	sources     []KeySource
	required    bool
	methods     map[string]bool // nil: all but those without side effects
	fingerprint Fingerprint

	responseLimit int
	classifier    func(Outcome) Verdict

	onLapse        client.OnLapse
	reserve        []client.ReserveOption
	keepAlive      bool
	callerCancels  bool
	handlerTimeout time.Duration
	settleWait     time.Duration

	retryAfter time.Duration
	rows       map[Reason]row
	statuses   map[Reason]codes.Code
	docs       string
}

// New returns an interceptor that admits each keyed call at most once. See the package's
// comment.
//
// It panics where the options are wrong: there is no principal, a limit is below zero. That
// is found when the program starts, and never later.
func New(c *client.Client, options ...Option) grpc.UnaryServerInterceptor {
	g := &guard{
		client: c, logger: slog.Default(), operation: operation, sources: []KeySource{IdempotencyKey()},
		fingerprint: WholeRequest(), responseLimit: responseBytesDefault,
		settleWait: settleWaitDefault, retryAfter: retryAfterDefault,
		rows: rows(), statuses: map[Reason]codes.Code{}, docs: docsDefault,
	}
	for _, option := range options {
		option(g)
	}
	if c == nil {
		panic("grpcadmit: there is no client")
	}
	if err := g.check(); err != nil {
		panic(fmt.Sprintf("grpcadmit: %v", err))
	}
	return g.serve
}

// serve lets a call pass, answers it, or admits it.
func (g *guard) serve(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !g.guarded(info.FullMethod) {
		return next(ctx, request)
	}
	message, ok := messageOf(request)
	if !ok {
		g.logger.ErrorContext(ctx, "a guarded call is no proto message", "operation", info.FullMethod, "type", fmt.Sprintf("%T", request))
		return nil, g.answer(ctx, &refusal{reason: ReasonMisconfigured})
	}
	key, err := g.find(ctx, message)
	if err == nil && key == "" {
		if !g.required {
			return next(ctx, request)
		}
		err = &refusal{reason: ReasonKeyMissing, detail: "send one as " + MetadataKey + ", the same for every retry of this call"}
	}
	who := ""
	if g.principal != nil {
		who = g.principal(ctx)
	}
	if who == "" && !g.anonymous {
		// Whoever is not known learns nothing else.
		err = &refusal{reason: ReasonPrincipalRequired, detail: "keys belong to whoever uses them"}
	}
	var fingerprint []byte
	if err == nil {
		if fingerprint, err = g.fingerprint(info.FullMethod, message); err != nil {
			g.logger.ErrorContext(ctx, "a guarded call has no fingerprint", "operation", info.FullMethod, "error", err)
			err = &refusal{reason: ReasonMisconfigured}
		}
	}
	if err != nil {
		return g.refuse(ctx, info.FullMethod, err)
	}
	options := append([]client.ReserveOption{}, g.reserve...)
	options = append(options, client.WithFingerprint(fingerprint), client.WithOnLapse(g.onLapse))
	reservation, err := g.client.Reserve(ctx, client.Identity{
		Namespace: g.namespace, Principal: who, Operation: g.operation(info.FullMethod, message), Key: key,
	}, options...)
	if err != nil {
		return g.refuse(ctx, info.FullMethod, err)
	}
	a := &attempt{
		guard: g, next: next, request: request, message: message, method: info.FullMethod,
		admission: &admission{reservation: reservation}, reservation: reservation,
	}
	return a.serve(ctx)
}

// guarded reports whether calls of the method are.
func (g *guard) guarded(method string) bool {
	if g.methods != nil {
		return g.methods[method]
	}
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return false
	}
	if described := describe(method); described != nil {
		options, ok := described.Options().(*descriptorpb.MethodOptions)
		return !ok || options.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	}
	return true
}

// find asks the sources, in their order.
func (g *guard) find(ctx context.Context, request proto.Message) (string, error) {
	for _, source := range g.sources {
		key, err := source(ctx, request)
		if err == nil {
			err = checkKey(key)
		}
		if err != nil {
			return "", &refusal{reason: ReasonKeyInvalid, detail: err.Error()}
		}
		if key != "" {
			return key, nil
		}
	}
	return "", nil
}

// refuse answers a call that is not admitted.
func (g *guard) refuse(ctx context.Context, method string, err error) (any, error) {
	var (
		told      *refusal
		committed *client.CommittedError
	)
	switch {
	case errors.As(err, &told):
	case errors.As(err, &committed):
		return g.replay(ctx, method, committed.Response)
	case errors.Is(err, client.ErrPending):
		told = &refusal{
			reason: ReasonInFlight, retryAfter: max(client.RetryAfter(err), time.Millisecond),
			detail: "try again later with the same key",
		}
	case errors.Is(err, client.ErrInDoubt):
		told = &refusal{
			reason: ReasonInDoubt,
			detail: "whether it was carried out is not known; someone who knows must settle it first",
		}
	case errors.Is(err, client.ErrFingerprintMismatch):
		told = &refusal{reason: ReasonMismatch, detail: "a new request needs a new key; do not send this one again"}
	case errors.Is(err, client.ErrInvalidArgument):
		g.logger.ErrorContext(ctx, "the coordinator refuses what it is asked for", "operation", method, "error", err)
		told = &refusal{reason: ReasonMisconfigured}
	default:
		g.logger.WarnContext(ctx, "a keyed call was refused: the coordinator does not admit it", "operation", method, "error", err)
		told = &refusal{
			reason: ReasonUnavailable, retryAfter: max(client.RetryAfter(err), g.retryAfter),
			detail: "this call was not carried out; try again later with the same key",
		}
	}
	return nil, g.answer(ctx, told)
}
