package rpc_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const shardCount = 3

// node is a server over shards in memory, and a client of it.
type node struct {
	name        string
	shards      *rpctest.Shards
	cluster     *rpctest.Cluster
	server      *grpc.Server
	coordinator coordinatorv1.CoordinatorServiceClient
	admin       coordinatorv1.AdminServiceClient
	connection  *grpc.ClientConn
	full        bool
	handled     atomic.Int64 // calls that a handler is done with
	unsent      func() int64 // bytes of answers that are held
}

// leaderNamed is the node as others know it.
func leaderNamed(name string) shard.Leader {
	return shard.Leader{NodeID: name, ServerID: name + "/1", PeerAddress: name + ":7421", ClientAddress: name + ":7420"}
}

func self(name string) shard.Leader {
	leader := leaderNamed(name)
	leader.Self = true
	return leader
}

// start starts a node that leads everything.
func start(t testing.TB, name string, change func(*rpc.Config)) *node {
	t.Helper()
	n := &node{
		name:    name,
		shards:  rpctest.New(shardCount, self(name)),
		cluster: &rpctest.Cluster{Self: name, Nodes: []rpc.Member{{NodeID: name, Self: true, ClientAddress: name + ":7420"}}},
	}
	cfg := rpc.Config{Shards: n.shards, Cluster: n.cluster, Settings: rpc.Default(), StorageFull: func() bool { return n.full }}
	if change != nil {
		change(&cfg)
	}
	n.unsent = cfg.CountUnsent()
	n.server = grpc.NewServer(append(rpc.ServerOptions(insecure.NewCredentials(), new(rpc.Arriving), cfg.Settings), grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			defer n.handled.Add(1)
			return handle(ctx, request)
		}))...)
	if err := rpc.Register(cfg, n.server); err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	n.serve(t, listener)
	n.connection = dial(t, func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
	n.coordinator = coordinatorv1.NewCoordinatorServiceClient(n.connection)
	n.admin = coordinatorv1.NewAdminServiceClient(n.connection)
	return n
}

// serve takes calls from a listener until the test ends.
func (n *node) serve(t testing.TB, listener net.Listener) {
	t.Helper()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = n.server.Serve(listener)
	}()
	t.Cleanup(func() {
		n.server.Stop()
		<-served
	})
}

func dial(t testing.TB, dialer func(context.Context, string) (net.Conn, error)) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///bufconn", grpc.WithContextDialer(dialer), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// startTwo starts two nodes of one cluster. n2 leads every shard.
func startTwo(t *testing.T, change func(*rpc.Config)) (n1, n2 *node) {
	t.Helper()
	n1, n2 = start(t, "n1", change), start(t, "n2", change)
	n1.shards.Dial = func(leader shard.Leader) (grpc.ClientConnInterface, error) { return n2.connection, nil }
	n2.shards.Dial = func(leader shard.Leader) (grpc.ClientConnInterface, error) { return n1.connection, nil }
	n1.shards.All(func(r *rpctest.Replica) { r.SetLeader(leaderNamed("n2")) })
	return n1, n2
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func key(k string) *coordinatorv1.Identity { return &coordinatorv1.Identity{Key: k} }

func attempt(b byte) []byte {
	id := make([]byte, 16)
	id[0] = b
	return id
}

// wantReason fails unless the error has the reason.
func wantReason(t *testing.T, err error, want reason.Reason) reason.Failure {
	t.Helper()
	got := reason.Of(err)
	if got.Reason != want || !got.Info {
		t.Fatalf("got %s (%v) %q, want %s", got.Reason, got.Code, got.Message, want)
	}
	return got
}

func wantNone(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got %v %v", reason.Of(err).Reason, err)
	}
}

func granted(t *testing.T, n *node, request *coordinatorv1.ReserveRequest) *coordinatorv1.Granted {
	t.Helper()
	answer, err := n.coordinator.Reserve(withTimeout(t), request)
	wantNone(t, err)
	if answer.GetGranted() == nil {
		t.Fatalf("not granted: %v", answer)
	}
	return answer.GetGranted()
}
