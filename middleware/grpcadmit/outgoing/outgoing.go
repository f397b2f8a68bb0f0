// Package outgoing is the caller's half of an idempotency key: a client interceptor that
// gives each unary call one key and keeps it over its retries.
//
//	conn, err := grpc.NewClient(target, grpc.WithUnaryInterceptor(outgoing.New()), …)
//
// # Which calls
//
// Unary ones that change something: all but those whose method is declared with
// idempotency_level = NO_SIDE_EFFECTS, and those of the health service. A call that has the
// metadata idempotency-key already keeps it, byte for byte. Otherwise the key is, in this
// order: that of the context ([ContextWithKey]); what the function of [WithKeyFunc] says; a
// random UUID. Streams are not touched.
//
// # Retries
//
// The interceptor sends nothing twice by itself. The key is drawn once for a call, above
// gRPC's own retries, so that all tries of the call carry it. They are switched on with a
// retryPolicy in the service config ([RetryServiceConfig] is one), and keep the pause that
// a guarded server asks for. They are safe where the server guards the method; where it does
// not know the key, UNAVAILABLE may come of a call that was carried out.
//
// Retries that are made outside, in a loop of the caller's or by an interceptor that is
// chained before this one, are calls of their own: they keep the key if they use the context
// of [ContextWithKey] or [ContextWithNewKey]. [Refusal] says what a guarded server answered by
// itself, and when to try again.
//
// # In a guarded handler
//
// A call downstream is keyed by a derived key, which every attempt derives alike:
//
//	ctx = outgoing.ContextWithKey(ctx, grpcadmit.Reservation(ctx).Derive("charge"))
//
// # Invariants
//
//  1. No two tries of one call carry different keys.
//  2. No call carries two keys.
//  3. A key that cannot be sent fails the call before anything is sent.
package outgoing

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/atmostonce/coordinator/middleware/internal/key"
)

// metadataKey is the metadata that package grpcadmit takes the key from.
const metadataKey = "idempotency-key"

// domain is that of package grpcadmit's own answers.
const domain = "grpcadmit.coordinator"

// RetryServiceConfig is a service config for grpc.WithDefaultServiceConfig that sends every
// call of a connection, streams included, up to four times, for as long as it is answered
// UNAVAILABLE, or ABORTED, which is what a guarded server says while the first delivery is in
// flight. It is for connections to servers that are guarded; name the methods in a config of
// your own where others are called too.
//
// A guarded server asks for a pause of 1 s at least, and for half of the time that the first delivery
// has taken, up to 5 s: so a duplicate waits for an answer for 3 to 15 s, and gets ABORTED then. For a
// handler that takes longer, let the server wait inside the call (grpcadmit.WithWait). While the
// coordinator is away a call takes up to 15 s: four tries of 3 s each (grpcadmit.WithReserveTimeout) and
// the pauses between them. The call's deadline bounds it all.
const RetryServiceConfig = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]}}]}`

// Option is an option of [New].
type Option func(*caller)

// WithKeyFunc makes the key of a call that has none, from what names the operation in the
// caller's own records. "" means a random one. It is called once for each call.
func WithKeyFunc(key func(ctx context.Context, method string, request any) string) Option {
	return func(c *caller) { c.key = key }
}

type caller struct {
	key func(context.Context, string, any) string
}

// New returns an interceptor that keys unary calls. It may be used by several goroutines at
// once. It panics where an option, or the function of [WithKeyFunc], is nil.
func New(options ...Option) grpc.UnaryClientInterceptor {
	c := &caller{key: func(context.Context, string, any) string { return "" }}
	for i, option := range options {
		if option == nil {
			panic(fmt.Sprintf("outgoing: option %d of New is nil", i+1))
		}
		option(c)
	}
	if c.key == nil {
		panic("outgoing: there is no function for the key")
	}
	return c.call
}

type contextKey struct{}

// ContextWithKey gives the calls made under the context this key, 1 to 255 characters of
// printable ASCII. Make one context for each logical call: two different requests under one
// key are a mismatch, which the server refuses.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// ContextWithNewKey is ContextWithKey with a random key: for retries that are made outside of
// the interceptor.
func ContextWithNewKey(ctx context.Context) context.Context { return ContextWithKey(ctx, key.New()) }

// call gives a call its key, and leaves it to gRPC then.
func (c *caller) call(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if readOnly(method) {
		return invoke(ctx, method, request, reply, conn, options...)
	}
	if sent, _ := metadata.FromOutgoingContext(ctx); len(sent.Get(metadataKey)) > 0 {
		return invoke(ctx, method, request, reply, conn, options...)
	}
	chosen, given := ctx.Value(contextKey{}).(string)
	if !given {
		if chosen = c.key(ctx, method, request); chosen == "" {
			chosen = key.New()
		}
	}
	// Bare where that is well-formed, since metadata is often looked at.
	value, err := key.Encode(chosen)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "outgoing: %v; nothing was sent", err)
	}
	return invoke(metadata.AppendToOutgoingContext(ctx, metadataKey, value), method, request, reply, conn, options...)
}

// readOnly reports whether the method is declared to change nothing.
func readOnly(method string) bool {
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return true
	}
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	options, ok := found.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// Refusal returns the reason with which a guarded server answered by itself, such as
// "IDEMPOTENCY_IN_FLIGHT" (docs/grpc.md), and how long to wait before the same call with the
// same key may fare better; 0: waiting does not help. The reason is "" where the error is not
// from the server's guard but, for example, from its handler.
func Refusal(err error) (reason string, retryAfter time.Duration) {
	told, ok := status.FromError(err)
	if !ok {
		return "", 0
	}
	for _, detail := range told.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				reason = d.GetReason()
			}
		case *errdetails.RetryInfo:
			retryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	if reason == "" {
		return "", 0
	}
	return reason, retryAfter
}
