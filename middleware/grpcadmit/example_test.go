package grpcadmit_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

// example is the client that the examples share; a program makes its own with client.Dial.
func example() *client.Client { return shared.start() }

// show calls a method and prints what its caller sees.
func show(conn *grpc.ClientConn, method, key string, request *structpb.Struct) {
	a := invoke(context.Background(), conn, method, key, request)
	answer, _ := a.message.(*structpb.Struct)
	text := "OK " + answer.GetFields()["item"].GetStringValue()
	if a.err != nil {
		text = strings.TrimSpace(fmt.Sprint(status.Code(a.err), " ", a.reason()))
	}
	if a.replayed() {
		text += " (replayed)"
	}
	fmt.Println(text)
}

// The whole of it: a server whose calls are keyed, and what its callers see.
func Example() {
	account := unique("account")
	accountOf := func(context.Context) string { return account } // from authentication, outside
	guard := grpcadmit.New(example(), grpcadmit.WithPrincipal(accountOf), grpcadmit.WithKeyRequired())
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) {
		fmt.Println("placing an order")
		return order("order 1"), nil
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "order-42", order("tea"))
	show(conn, place, "order-42", order("tea"))
	show(conn, place, "order-42", order("coffee"))
	show(conn, place, "-", order("tea")) // without a key
	// Output:
	// placing an order
	// OK order 1
	// OK order 1 (replayed)
	// FailedPrecondition IDEMPOTENCY_KEY_REUSED
	// InvalidArgument IDEMPOTENCY_KEY_MISSING
}

// The caller's half: one key for a call, over gRPC's own retries and over those of a loop.
func Example_caller() {
	tries := 0
	guard := grpcadmit.New(example(), caller("Example_caller"))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) {
		if tries++; tries == 1 {
			return nil, status.Error(codes.Unavailable, "the warehouse is away")
		}
		return order(fmt.Sprint("try ", tries)), nil
	}, []grpc.UnaryServerInterceptor{guard},
		grpc.WithUnaryInterceptor(outgoing.New()), grpc.WithDefaultServiceConfig(outgoing.RetryServiceConfig))
	defer stop()

	answer := &structpb.Struct{}
	if err := conn.Invoke(outgoing.ContextWithNewKey(context.Background()), place, order("tea"), answer); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer.GetFields()["item"].GetStringValue())
	// Output: try 2
}

// Callers that follow AIP-155 have the key in the request, in a field request_id. Here the
// request is a StringValue, whose field is named value.
func ExampleKeyFromField() {
	guard := grpcadmit.New(example(), caller("ExampleKeyFromField"),
		grpcadmit.WithKeys(grpcadmit.IdempotencyKey(), grpcadmit.KeyFromField("value")))
	place := func(ctx context.Context, _ any) (any, error) {
		fmt.Println("placing", grpcadmit.Reservation(ctx).Identity().Key)
		return order("done"), nil
	}
	for range 2 {
		answer, err := guard(context.Background(), wrapperspb.String("request-7"), infoOf(wipe), place)
		fmt.Println(answer.(*structpb.Struct).GetFields()["item"].GetStringValue(), err)
	}
	// Output:
	// placing request-7
	// done <nil>
	// done <nil>
}

// A sender that changes what does not matter between two deliveries.
func ExampleWithoutFields() {
	fingerprint := grpcadmit.WithoutFields("sent_at")
	guard := grpcadmit.New(example(), caller("ExampleWithoutFields"), grpcadmit.WithFingerprint(fingerprint))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	// Output:
	// OK done
	// OK done (replayed)
}

// A handler whose side effects are keyed, so that they converge, and carry the fence.
func ExampleReservation() {
	guard := grpcadmit.New(example(), caller("ExampleReservation"))
	conn, stop := listen(func(ctx context.Context, _ *structpb.Struct) (any, error) {
		r := grpcadmit.Reservation(ctx)
		// Downstream, the same key in every attempt:
		downstream := outgoing.ContextWithKey(ctx, r.Derive("charge"))
		_ = downstream
		return order(fmt.Sprint(len(r.Derive("charge")), " digits, fenced: ", r.Fence() > 0)), nil
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	// Output: OK 64 digits, fenced: true
}

// Orders whose outcome may be unknown: nobody places them again until someone has looked.
func ExampleWithOnLapse() {
	guard := grpcadmit.New(example(), caller("ExampleWithOnLapse"),
		grpcadmit.WithOnLapse(client.Hold), grpcadmit.WithPendingTTL(30*time.Second))
	conn, stop := listen(func(_ context.Context, r *structpb.Struct) (any, error) {
		if r.GetFields()["item"].GetStringValue() == "gold" {
			// It did not get as far as the exchange, and says so: else it would be uncertain.
			return nil, client.NotApplied(status.Error(codes.Unavailable, "the exchange is closed"))
		}
		return nil, status.Error(codes.Unavailable, "the exchange gave no answer")
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "gold", order("gold"))
	show(conn, place, "gold", order("gold"))
	show(conn, place, "tea", order("tea"))
	show(conn, place, "tea", order("tea"))
	// Output:
	// Unavailable
	// Unavailable
	// Unavailable
	// Aborted IDEMPOTENCY_IN_FLIGHT
}

// An endpoint that answers a failure with OK.
func ExampleWithClassifier() {
	soft := func(o grpcadmit.Outcome) grpcadmit.Verdict {
		if answer, ok := o.Response.(*structpb.Struct); ok && answer.GetFields()["item"].GetStringValue() == "failed" {
			return grpcadmit.Release
		}
		return grpcadmit.Default
	}
	guard := grpcadmit.New(example(), caller("ExampleWithClassifier"), grpcadmit.WithClassifier(soft))
	answers := []string{"failed", "filled"}
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) {
		answer := order(answers[0])
		answers = answers[1:]
		return answer, nil
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	// Output:
	// OK failed
	// OK filled
	// OK filled (replayed)
}

// A handler that knows more than its status says.
func ExampleMarkUncertain() {
	guard := grpcadmit.New(example(), caller("ExampleMarkUncertain"))
	conn, stop := listen(func(ctx context.Context, _ *structpb.Struct) (any, error) {
		grpcadmit.MarkUncertain(ctx) // the request went out, and no answer came
		return nil, status.Error(codes.Internal, "the bank gave no answer")
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	// Output:
	// Internal
	// Aborted IDEMPOTENCY_IN_FLIGHT
}

// Only some methods, each with an operation of its own name.
func ExampleWithMethods() {
	guard := grpcadmit.New(example(), caller("ExampleWithMethods"), grpcadmit.WithKeyRequired(), grpcadmit.WithMethods(place),
		grpcadmit.WithOperation(func(method string, request proto.Message) string {
			return fmt.Sprint(method, " ", request.(*structpb.Struct).GetFields()["item"].GetStringValue())
		}))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("coffee")) // another operation, so another record
	show(conn, wipe, "-", order("tea"))     // not guarded
	// Output:
	// OK done
	// OK done
	// OK done
}

// How the principal comes from the call.
func ExampleWithPrincipal() {
	accountOf := func(ctx context.Context) string {
		// A program takes what its authentication has found out, and never a bare claim.
		for _, account := range metadata.ValueFromIncomingContext(ctx, "verified-account") {
			return account
		}
		return ""
	}
	guard := grpcadmit.New(example(), grpcadmit.WithPrincipal(accountOf))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	// Output: Unauthenticated PRINCIPAL_REQUIRED
}
