package grpcadmit_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
)

// What a payment service usually wants: a key on every call; nobody pays twice because somebody
// fell silent; a quick no when the coordinator is away.
func ExampleNew() {
	account := unique("account")
	guard := grpcadmit.New(example(),
		grpcadmit.WithPrincipal(func(context.Context) string { return account }), // from authentication, outside
		grpcadmit.WithKeyRequired(),
		grpcadmit.WithOnLapse(client.Hold),                  // what ended in silence is looked at first
		grpcadmit.WithPendingTTL(2*time.Minute),             // how long a handler may take
		grpcadmit.WithRetention(7*24*time.Hour),             // how long its answer is kept
		grpcadmit.WithReserveTimeout(2*time.Second),         // how long the coordinator is asked
		grpcadmit.WithSettleWait(5*time.Second),             // how long a caller waits for the recording
		grpcadmit.WithHandlerTimeout(30*time.Second),        // how long it waits for the handler
		grpcadmit.WithOwner("payments-1"),                   // for people
		grpcadmit.WithFingerprint(grpcadmit.WholeRequest()), // as by default
		grpcadmit.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
	)
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("paid"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	show(conn, place, "-", order("tea")) // without a key
	// Output:
	// OK paid
	// OK paid (replayed)
	// InvalidArgument IDEMPOTENCY_KEY_MISSING
}

// Calls of nobody in particular, of one tenant: all share their keys.
func ExampleWithAnonymous() {
	guard := grpcadmit.New(example(), grpcadmit.WithAnonymous(), grpcadmit.WithNamespace(unique("desk")))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	// Output:
	// OK done
	// OK done (replayed)
}

// An answer over the limit reaches its first caller only. The interceptor's own answers have the
// codes and the page of one's own API; their reasons stay.
func ExampleWithResponseLimit() {
	guard := grpcadmit.New(example(), caller("ExampleWithResponseLimit"), grpcadmit.WithResponseLimit(10),
		grpcadmit.WithStatusCode(grpcadmit.ReasonResponseNotStored, codes.AlreadyExists),
		grpcadmit.WithDocs("https://docs.example/idempotency"), grpcadmit.WithRetryAfter(5*time.Second))
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) { return order("a long answer"), nil }, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "k", order("tea"))
	show(conn, place, "k", order("tea"))
	// Output:
	// OK a long answer
	// AlreadyExists RESPONSE_NOT_STORED
}

// Work that may take longer than its window is renewed, and stops when its caller has gone. A
// second delivery waits for its answer.
func ExampleWithKeepAlive() {
	started := make(chan struct{})
	guard := grpcadmit.New(example(), caller("ExampleWithKeepAlive"), grpcadmit.WithPendingTTL(300*time.Millisecond),
		grpcadmit.WithKeepAlive(), grpcadmit.WithCallerCancel(), grpcadmit.WithWait(time.Minute))
	conn, stop := listen(func(ctx context.Context, _ *structpb.Struct) (any, error) {
		close(started)
		select {
		case <-time.After(time.Second): // the work
			return order("done"), nil
		case <-ctx.Done():
			return nil, client.Uncertain(status.FromContextError(ctx.Err()).Err())
		}
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	first := make(chan answered, 1)
	go func() { first <- invoke(context.Background(), conn, place, "k", order("tea")) }()
	<-started
	show(conn, place, "k", order("tea"))
	fmt.Println((<-first).err)
	// Output:
	// OK done (replayed)
	// <nil>
}

// A handler that knows that nothing happened, and one that knows that it is done, whatever
// their statuses say.
func ExampleMarkNotApplied() {
	guard := grpcadmit.New(example(), caller("ExampleMarkNotApplied"), grpcadmit.WithOnLapse(client.Hold))
	conn, stop := listen(func(ctx context.Context, r *structpb.Struct) (any, error) {
		if r.GetFields()["item"].GetStringValue() == "tea" {
			grpcadmit.MarkDone(ctx)
			return nil, status.Error(codes.DataLoss, "paid, but the receipt is lost")
		}
		grpcadmit.MarkNotApplied(ctx)
		return nil, status.Error(codes.Unavailable, "not even asked")
	}, []grpc.UnaryServerInterceptor{guard})
	defer stop()

	show(conn, place, "a", order("coffee"))
	show(conn, place, "a", order("coffee"))
	show(conn, place, "b", order("tea"))
	show(conn, place, "b", order("tea"))
	// Output:
	// Unavailable
	// Unavailable
	// DataLoss
	// DataLoss (replayed)
}
