package rpc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// A node that closes its shards hears of no leader: who waits for one is told so at once.
func TestWaitingForALeaderWhereTheShardsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing := make(chan struct{})
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Closing = closing })
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
		time.AfterFunc(time.Second, func() { close(closing) })
		for _, wait := range []time.Duration{time.Second, 0} {
			begin := time.Now()
			_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
			wantReason(t, err, reason.NoLeader)
			if took := time.Since(begin); took != wait {
				t.Errorf("it took %v, not %v", took, wait)
			}
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// A call waits for a leader a while, and no longer than it should.
func TestWaitingForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", nil)
		nobody := func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) }
		n.shards.All(nobody)
		begin := time.Now()
		_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
		wantReason(t, err, reason.NoLeader)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
		// A short deadline leaves time for an answer that says more than a deadline.
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = n.coordinator.Reserve(short, &coordinatorv1.ReserveRequest{Identity: key("k")})
		wantReason(t, err, reason.NoLeader)

		go func() {
			time.Sleep(time.Second)
			n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
		}()
		begin = time.Now()
		granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k")})
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
		// A forwarded call does not wait: the first node does.
		n.shards.All(nobody)
		begin = time.Now()
		_, err = n.coordinator.Reserve(metadata.AppendToOutgoingContext(withTimeout(t), rpc.ForwardedKey, "1"),
			&coordinatorv1.ReserveRequest{Identity: key("k")})
		wantReason(t, err, reason.NoLeader)
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %v", took)
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// hanging is a connection to a node that takes every call and never answers.
type hanging struct{ grpc.ClientConnInterface }

func (hanging) Invoke(ctx context.Context, _ string, _, _ any, options ...grpc.CallOption) error {
	for _, option := range options {
		if to, ok := option.(grpc.PeerCallOption); ok {
			to.PeerAddr.Addr = bufconn.Listen(1).Addr() // it was sent
		}
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// A leader that is frozen does not hold its callers once another one is there.
func TestAFrozenLeaderIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", nil)
		n.shards.Dial = func(shard.Leader) (grpc.ClientConnInterface, error) { return hanging{}, nil }
		for _, test := range []struct {
			name string
			then []shard.Leader // a second after each other
			took time.Duration
			want reason.Reason
		}{
			{"another leader", []shard.Leader{leaderNamed("n3")}, 1500 * time.Millisecond, reason.OutcomeUnknown},
			{"this node leads", []shard.Leader{self("n1")}, 1500 * time.Millisecond, reason.OutcomeUnknown},
			{"no leader, then another", []shard.Leader{{}, leaderNamed("n3")}, 2500 * time.Millisecond, reason.OutcomeUnknown},
			{"no leader, then it comes back", []shard.Leader{{}, leaderNamed("n2")}, 10 * time.Second, reason.DeadlineExceeded},
			{"no leader for long", []shard.Leader{{}}, 3 * time.Second, reason.OutcomeUnknown},
			{"nothing", nil, 10 * time.Second, reason.DeadlineExceeded},
		} {
			n.shards.All(func(r *rpctest.Replica) { r.SetLeader(leaderNamed("n2")) })
			go func() {
				for _, leader := range test.then {
					time.Sleep(time.Second)
					n.shards.All(func(r *rpctest.Replica) { r.SetLeader(leader) })
				}
			}()
			begin := time.Now()
			_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
			if got := reason.Of(err).Reason; got != test.want || time.Since(begin) != test.took {
				t.Errorf("%s: %s after %v, want %s after %v", test.name, got, time.Since(begin), test.want, test.took)
			}
			synctest.Wait()
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}
