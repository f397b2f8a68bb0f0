package outgoing_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

// A connection whose calls are keyed, and sent again with the same key when something breaks.
func Example() {
	s := &server{answer: func(try int) error {
		if try == 1 {
			return status.Error(codes.Unavailable, "the server is restarting")
		}
		return nil
	}}
	conn, stop := s.listen(
		grpc.WithUnaryInterceptor(outgoing.New()),
		grpc.WithDefaultServiceConfig(outgoing.RetryServiceConfig),
	)
	defer stop()

	err := call(outgoing.ContextWithKey(context.Background(), "order-42"), conn, place)
	fmt.Println(s.keys, err)
	// Output: [[order-42] [order-42]] <nil>
}

// Keys that the caller's own records name.
func ExampleWithKeyFunc() {
	s := &server{}
	conn, stop := s.listen(grpc.WithUnaryInterceptor(outgoing.New(outgoing.WithKeyFunc(
		func(_ context.Context, method string, _ any) string { return "invoice-7 " + method },
	))))
	defer stop()

	err := call(context.Background(), conn, place)
	fmt.Println(s.keys, err)
	// Output: [["invoice-7 /outgoing.test.Orders/Place"]] <nil>
}

// A loop that asks again for as long as the server says that it helps.
func ExampleRefusal() {
	s := &server{answer: func(try int) error {
		if try == 3 {
			return nil
		}
		told, err := status.New(codes.Aborted, "in flight").WithDetails( // as a guarded server says it
			&errdetails.ErrorInfo{Reason: "IDEMPOTENCY_IN_FLIGHT", Domain: "grpcadmit.coordinator"},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)},
		)
		if err != nil {
			return err
		}
		return told.Err()
	}}
	conn, stop := s.listen(grpc.WithUnaryInterceptor(outgoing.New()))
	defer stop()

	ctx := outgoing.ContextWithKey(context.Background(), "order-42") // one for all tries
	for {
		err := call(ctx, conn, place)
		reason, after := outgoing.Refusal(err)
		if after == 0 {
			fmt.Println("it came to", err)
			return
		}
		fmt.Println(reason)
		<-time.After(after)
	}
	// Output:
	// IDEMPOTENCY_IN_FLIGHT
	// IDEMPOTENCY_IN_FLIGHT
	// it came to <nil>
}

// Retries of a loop: one context is one call.
func ExampleContextWithNewKey() {
	s := &server{answer: func(try int) error {
		if try < 3 {
			return status.Error(codes.Internal, "try again")
		}
		return nil
	}}
	conn, stop := s.listen(grpc.WithUnaryInterceptor(outgoing.New()))
	defer stop()

	ctx := outgoing.ContextWithNewKey(context.Background())
	for call(ctx, conn, place) != nil {
	}
	fmt.Println(len(s.keys), "tries, the same key:", s.keys[0][0] == s.keys[2][0])
	// Output: 3 tries, the same key: true
}
