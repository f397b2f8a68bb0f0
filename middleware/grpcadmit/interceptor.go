package grpcadmit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/key"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// guard is the interceptor with its settings. It does not change once it is made.
type guard struct {
	admit.Settings

	principal   func(context.Context) string
	operation   func(string, proto.Message) string
	sources     []KeySource
	methods     map[string]bool // nil: all but those without side effects
	fingerprint Fingerprint
	classifier  func(Outcome) Verdict

	rows     map[Reason]row
	statuses map[Reason]codes.Code
}

// New returns an interceptor that admits each keyed call at most once. See the package's
// comment.
//
// It panics where the options are wrong: there is no principal, a limit is below zero, a
// window is out of range, a method is none, an option is nil. That is found when the program
// starts, and never later.
func New(c *client.Client, options ...Option) grpc.UnaryServerInterceptor {
	g := &guard{
		Settings: admit.Defaults(c, docsDefault), operation: operation, sources: []KeySource{IdempotencyKey()},
		fingerprint: WholeRequest(), rows: rows(), statuses: map[Reason]codes.Code{},
	}
	g.Kind = "call"
	for i, option := range options {
		if option == nil {
			panic(fmt.Sprintf("grpcadmit: option %d of New is nil", i+1))
		}
		option(g)
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
		g.Logger.ErrorContext(ctx, "a guarded call is no proto message", "operation", info.FullMethod, "type", fmt.Sprintf("%T", request))
		return nil, g.answer(ctx, &refusal.Refusal{Code: refusal.Misconfigured})
	}
	found, err := g.find(ctx, message)
	if err == nil && found == "" {
		if !g.Required {
			return next(ctx, request)
		}
		err = refusal.Missing(MetadataKey)
	}
	who := ""
	if g.principal != nil {
		who = g.principal(ctx)
	}
	if who == "" && !g.Anonymous {
		err = refusal.Nobody() // whoever is not known learns nothing else
	}
	question := admit.Question{Principal: who, Key: found}
	if err == nil {
		question.Operation = g.operation(info.FullMethod, message)
		if question.Fingerprint, err = g.fingerprint(info.FullMethod, message); err != nil {
			g.Logger.ErrorContext(ctx, "a guarded call has no fingerprint", "operation", question.Operation, "error", err)
			err = &refusal.Refusal{Code: refusal.Misconfigured}
		}
	}
	if err != nil {
		return g.refuse(ctx, info.FullMethod, question, err)
	}
	attempt, err := g.Ask(ctx, question)
	if err != nil {
		return g.refuse(ctx, info.FullMethod, question, err)
	}
	h := &handling{guard: g, attempt: attempt, next: next, request: request, message: message, method: info.FullMethod}
	if refused := attempt.Run(ctx, h); refused != nil {
		return nil, g.answer(ctx, refused)
	}
	return h.response, h.err
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
		found, err := source(ctx, request)
		switch {
		case err != nil:
			return "", refusal.Invalid(err.Error())
		case found == "":
			continue
		}
		if err := key.Check(found); err != nil {
			return "", refusal.Invalid(err.Error())
		}
		return found, nil
	}
	return "", nil
}

// refuse answers a call that is not admitted.
func (g *guard) refuse(ctx context.Context, method string, question admit.Question, err error) (any, error) {
	var (
		refused   *refusal.Refusal
		committed *client.CommittedError
	)
	switch {
	case errors.As(err, &committed):
		return g.replay(ctx, method, question, committed.Response)
	case errors.As(err, &refused):
	default:
		refused = refusal.OfReserve(err, g.RetryAfter)
	}
	return nil, g.answer(ctx, refused)
}
