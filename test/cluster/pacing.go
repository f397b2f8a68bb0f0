package cluster

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// gRPC tries a call again by itself, at once and without end, as long as it is given a
// connection that is going away. On a real clock the connection is gone soon. In a bubble
// no time passes while a goroutine runs, so that such a call would run for ever: pacing
// lets a millisecond pass before every try of a call but its first.
type pacing struct{}

type triesKey struct{}

// DialOptions are what connections of gRPC need in a bubble.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(countTries), grpc.WithStatsHandler(pacing{})}
}

// countTries gives a call the counter that pacing looks at.
func countTries(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(context.WithValue(ctx, triesKey{}, new(atomic.Int32)), method, request, reply, conn, options...)
}

// TagRPC implements stats.Handler. It is called for every try.
func (pacing) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if tries, ok := ctx.Value(triesKey{}).(*atomic.Int32); ok && tries.Add(1) > 1 {
		time.Sleep(time.Millisecond)
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (pacing) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (pacing) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (pacing) HandleConn(context.Context, stats.ConnStats) {}
