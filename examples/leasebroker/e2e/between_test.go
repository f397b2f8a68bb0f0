package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// heldMost is how long a call is held, should a test forget it.
const heldMost = 2 * time.Minute

// between stands between the broker and the coordinator, and holds a call when it is told
// to: before it is passed on, or before its answer is. What was sent is passed on whatever
// becomes of its sender, as a network may do.
type between struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
	to      coordinatorv1.CoordinatorServiceClient
	address string

	mu    sync.Mutex
	gates map[string]*gate // by call and point, such as "commit before"
}

// gate holds one call.
type gate struct {
	arrived, open, passed chan struct{} // closed: it is held; it may go on; it has had its answer
}

func startBetween(t *testing.T, to grpc.ClientConnInterface) *between {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &between{
		to: coordinatorv1.NewCoordinatorServiceClient(to), address: listener.Addr().String(), gates: make(map[string]*gate),
	}
	server := grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServiceServer(server, b)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // it ends with Stop
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		for _, g := range b.gates {
			close(g.open)
		}
		clear(b.gates)
		b.mu.Unlock()
		server.Stop()
		<-served
	})
	return b
}

// hold holds the next call of a kind at a point.
func (b *between) hold(at string) *gate {
	g := &gate{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gates[at] = g
	return g
}

// wait lets a call wait at a point if it is to be held there.
func (b *between) wait(at string) *gate {
	b.mu.Lock()
	g := b.gates[at]
	delete(b.gates, at)
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	close(g.arrived)
	timer := time.NewTimer(heldMost)
	defer timer.Stop()
	select {
	case <-g.open:
	case <-timer.C:
	}
	return g
}

func pass[Q, A any](ctx context.Context, b *between, name string, asked Q, send func(context.Context, Q, ...grpc.CallOption) (A, error)) (A, error) {
	before := b.wait(name + " before")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	answer, err := send(ctx, asked)
	if before != nil {
		close(before.passed)
	}
	if after := b.wait(name + " after"); after != nil {
		close(after.passed)
	}
	return answer, err
}

func (b *between) Reserve(ctx context.Context, asked *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	return pass(ctx, b, "reserve", asked, b.to.Reserve)
}

func (b *between) Commit(ctx context.Context, asked *coordinatorv1.CommitRequest) (*coordinatorv1.CommitResponse, error) {
	return pass(ctx, b, "commit", asked, b.to.Commit)
}

func (b *between) Release(ctx context.Context, asked *coordinatorv1.ReleaseRequest) (*coordinatorv1.ReleaseResponse, error) {
	return pass(ctx, b, "release", asked, b.to.Release)
}

func (b *between) Extend(ctx context.Context, asked *coordinatorv1.ExtendRequest) (*coordinatorv1.ExtendResponse, error) {
	return pass(ctx, b, "extend", asked, b.to.Extend)
}
