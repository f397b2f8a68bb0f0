package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atmostonce/coordinator/client"
)

// What a client can be told, besides where the nodes are.
func ExampleDial_options() {
	c, err := client.Dial([]string{endpoint()},
		client.WithCallTimeout(10*time.Second),  // a call with all its tries
		client.WithTryTimeout(2*time.Second),    // one try: a node that hangs costs that much
		client.WithSettleTimeout(5*time.Minute), // what was done is recorded, for as long as this
		client.WithEndpointsOnly(),              // the nodes are behind a load balancer
		client.WithSessions(false),              // which spreads calls, and would see one stream
		client.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
		client.WithDialOptions(grpc.WithUserAgent("orders/1.4")),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Get(context.Background(), client.Identity{Operation: "op", Key: "never seen"})
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output: true
}

// Nodes that are reached in another way, in plain text because the way is safe.
func ExampleWithDialer() {
	tunnel := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", endpoint())
	}
	for _, plain := range []client.DialOption{client.WithInsecure(), client.WithTransportCredentials(insecure.NewCredentials())} {
		c, err := client.Dial([]string{"coordinator.internal:7420"}, client.WithDialer(tunnel), plain)
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = c.Get(context.Background(), client.Identity{Operation: "op", Key: "never seen"})
		fmt.Println(errors.Is(err, client.ErrNotFound), c.Close())
	}
	// Output:
	// true <nil>
	// true <nil>
}

// An endpoint at which another cluster answers, told by mistake: nothing is granted there.
func ExampleWithCluster() {
	c, err := client.Dial([]string{endpoint()},
		client.WithCluster("5f0c1d7e92ab4c3d8e6f0a1b2c3d4e5f"), // as `coordctl status` shows it
		client.WithCallTimeout(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Reserve(context.Background(), client.Identity{Operation: "op", Key: "elsewhere"})
	fmt.Println(errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrUnknown))
	// Output: true false
}

// A request that is better refused soon than answered late.
func ExampleWithReserveTimeout() {
	c, err := client.Dial([]string{"127.0.0.1:1"}) // nobody is there
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Reserve(context.Background(), client.Identity{Operation: "op", Key: "k"}, client.WithReserveTimeout(200*time.Millisecond))
	fmt.Println(errors.Is(err, client.ErrUnavailable))
	// Output: true
}

// One key, two requests: the second one is a bug, and is told so.
func ExampleWithFingerprint() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	order := client.Identity{Operation: "POST /v1/orders", Key: "fingerprint-42"}
	for _, body := range []string{"1 tea", "1 tea", "2 teas"} {
		result, err := c.Do(context.Background(), order, func(context.Context, *client.Reservation) (client.Response, error) {
			return client.Response{Code: 201}, nil
		}, client.WithFingerprint([]byte(body))) // or a hash of it: 64 bytes at most
		fmt.Println(result.Response.Code, errors.Is(err, client.ErrFingerprintMismatch))
	}
	// Output:
	// 201 false
	// 201 false
	// 0 true
}

// How long a key is kept: by itself a day, from its commit on.
func ExampleReservation_Commit() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	invoice := client.Identity{Operation: "invoice", Key: "commit-42"}
	r, err := c.Reserve(ctx, invoice, client.WithRetention(time.Hour)) // of what comes to nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	response := client.Response{Code: 201, ContentType: "application/json", Body: []byte(`{"invoice":42}`)}
	if err := r.Commit(ctx, response, client.WithCommitRetention(7*24*time.Hour)); err != nil {
		fmt.Println(err)
		return
	}
	record, err := c.Get(ctx, invoice, client.WithBody())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(record.State, record.Retention, string(record.Response.Body))
	// Output: COMMITTED 168h0m0s {"invoice":42}
}

// An owner that needs longer than it thought. KeepAlive does this by itself.
func ExampleReservation_Extend() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	r, err := c.Reserve(ctx, client.Identity{Operation: "import", Key: "extend-42"}, client.WithPendingTTL(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Release(ctx, "only an example") }()
	fmt.Println(r.Remaining() > time.Minute)
	if err := r.Extend(ctx, time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Remaining() > 59*time.Minute, len(r.Token()) <= 64) // the token is the same one
	// Output:
	// false
	// true true
}

// Work that may take longer than its window is renewed while it runs.
func ExampleWithKeepAlive() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	report := client.Identity{Operation: "report", Key: "do-keep-alive-42"}
	_, err = c.Do(context.Background(), report, func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
		select {
		case <-time.After(time.Second): // the work
			return client.Response{}, nil
		case <-ctx.Done(): // it is not ours any more
			return client.Response{}, client.Uncertain(context.Cause(ctx))
		}
	}, client.WithKeepAlive(), client.WithPendingTTL(300*time.Millisecond))
	fmt.Println(err)
	// Output: <nil>
}

// A response that is too large to be kept reaches its first caller whole. Later ones hear that
// it was done, and the function does not run again.
func ExampleResponse_Omitted() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	export := client.Identity{Operation: "export", Key: "omitted-42"}
	for range 2 {
		result, err := c.Do(context.Background(), export, func(context.Context, *client.Reservation) (client.Response, error) {
			return client.Response{Code: 200, Body: bytes.Repeat([]byte("x"), 2<<20)}, nil
		})
		fmt.Println(result.Response.Code, len(result.Response.Body), result.Response.Omitted(), errors.Is(err, client.ErrOmitted))
	}
	// Output:
	// 200 2097152 false false
	// 200 0 true true
}

// That it was done is recorded, if not all of what was answered.
func ExampleWithSubstitute() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	report := client.Identity{Operation: "report", Key: "substitute-42"}
	r, err := c.Reserve(context.Background(), report)
	if err != nil {
		fmt.Println(err)
		return
	}
	whole := client.Response{Code: 200, Body: bytes.Repeat([]byte("x"), 2<<20)}
	err = r.Commit(context.Background(), whole, client.WithSubstitute(func(error) client.Response {
		return client.Response{Code: 200, ContentType: "text/plain", Body: []byte("see /reports/42")}
	}))
	fmt.Println(err)

	var done *client.CommittedError
	if _, err := c.Reserve(context.Background(), report); errors.As(err, &done) {
		fmt.Printf("%s\n", done.Response.Body)
	}
	// Output:
	// <nil>
	// see /reports/42
}

// The rule of Do, for whoever does without it.
func ExampleIsUncertain() {
	refused, cut := errors.New("not enough funds"), fmt.Errorf("ask the bank: %w", context.DeadlineExceeded)
	fmt.Println(client.IsUncertain(refused, client.Reopen), client.IsUncertain(cut, client.Reopen))
	fmt.Println(client.IsUncertain(refused, client.Hold), client.IsUncertain(client.NotApplied(refused), client.Hold))
	// Output:
	// false true
	// true false
}

// Someone who knows that it was done says so, with the response that retries get.
func ExampleClient_ResolveApplied() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	order := client.Identity{Operation: "trade:live", Key: "resolve-applied-42"}
	r, err := c.Reserve(ctx, order, client.WithOnLapse(client.Hold), client.WithPendingTTL(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	<-r.Context().Done() // its owner went silent
	record := &client.Record{}
	for record.State != client.StateInDoubt {
		if record, err = c.Get(ctx, order); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(c.ResolveApplied(ctx, order, record.Revision, client.Response{Code: 201, Body: []byte("order 7")}, "the exchange has it"))
	var done *client.CommittedError
	_, err = c.Reserve(ctx, order)
	fmt.Println(errors.As(err, &done) && string(done.Response.Body) == "order 7")
	// Output:
	// <nil>
	// true
}
