package grpcadmit_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
	"github.com/atmostonce/coordinator/test/cluster"
)

// Who calls as the documentation says gets through while the first call is carried out: duplicates
// that come with it, or right after it, outlast a handler that takes its time.
func TestRetriesOutlastAHandler(t *testing.T) {
	for name, options := range map[string][]grpcadmit.Option{
		"by retries": nil, "by waiting": {grpcadmit.WithWait(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := cluster.Start(t, cluster.Options{Nodes: 1, Change: func(c *node.Config) { c.Shards = 1 }})
				began := time.Now()
				c, err := client.Dial([]string{nodes.Names[0] + ":7420"}, client.WithInsecure(),
					client.WithDialer(nodes.Network.Host(cluster.ClientHost).Dial),
					client.WithClock(func() time.Duration { return time.Since(began) }))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				ran := 0
				conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) {
					ran++
					time.Sleep(2900 * time.Millisecond)
					return order("done"), nil
				}, []grpc.UnaryServerInterceptor{grpcadmit.New(c, append(options, as("me"), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))...)},
					grpc.WithUnaryInterceptor(outgoing.New()), grpc.WithDefaultServiceConfig(outgoing.RetryServiceConfig))
				defer stop()
				ctx := outgoing.ContextWithNewKey(t.Context())
				var calls sync.WaitGroup
				for i := range 4 {
					calls.Go(func() {
						time.Sleep(time.Duration(i) * 10 * time.Millisecond)
						if a := invoke(ctx, conn, place, "-", order("tea")); a.err != nil {
							t.Errorf("call %d, after %v: %v", i, time.Since(began), a.err)
						}
					})
				}
				calls.Wait()
				if ran != 1 {
					t.Errorf("it ran %d times", ran)
				}
			})
		})
	}
}

// No pause is shorter than HTTP's Retry-After can be.
func TestNoPauseIsShorterThanASecond(t *testing.T) {
	away, err := client.Dial([]string{"127.0.0.1:1"}, client.WithCallTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for told, want := range map[time.Duration]string{
		time.Millisecond: "1000", time.Second: "1000", 1500 * time.Millisecond: "1500", 1500*time.Millisecond + 1: "1501",
	} {
		conn := serveFor(t, away, nil, grpcadmit.WithRetryAfter(told), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
		a := send(t, conn, "k")
		if _, after := outgoing.Refusal(a.err); after != max(told, time.Second) || a.trailer.Get("grpc-retry-pushback-ms")[0] != want {
			t.Errorf("%v: after %v, %v", told, after, a.trailer)
		}
	}
}
