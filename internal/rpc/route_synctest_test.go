package rpc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

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
