package rpc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// A call that is for another cluster is not carried out, by whichever way it comes, and
// whoever asks is told which cluster this is.
func TestOnlyTheExpectedClusterAnswers(t *testing.T) {
	n := start(t, "n1", nil)
	for _, one := range []struct {
		name    string
		named   []string
		refused bool
		told    []string
	}{
		{"no cluster is named", nil, false, nil},
		{"this one is named", []string{"c0ffee"}, false, nil},
		{"it is asked for", []string{""}, false, []string{"c0ffee"}},
		{"another one is named", []string{"decaf"}, true, []string{"c0ffee"}},
		{"something is named", []string{strings.Repeat("x", 4096)}, true, []string{"c0ffee"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			ctx := withTimeout(t)
			for _, name := range one.named {
				ctx = metadata.AppendToOutgoingContext(ctx, rpc.ClusterKey, name)
			}
			check := func(what string, err error, header metadata.MD) {
				t.Helper()
				if one.refused {
					wantReason(t, err, reason.NoLeader)
				} else {
					wantNone(t, err)
				}
				if told := header.Get(rpc.ClusterKey); strings.Join(told, " ") != strings.Join(one.told, " ") {
					t.Errorf("%s is told %q, want %q", what, told, one.told)
				}
			}
			identity := key(one.name)
			var header metadata.MD
			_, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: identity}, grpc.Header(&header))
			check("Reserve", err, header)
			_, err = n.admin.Members(ctx, &coordinatorv1.MembersRequest{}, grpc.Header(&header))
			check("Members", err, header)

			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := n.coordinator.Session(ctx)
			wantNone(t, err)
			// It may be refused before this is sent.
			_ = stream.Send(&coordinatorv1.SessionRequest{Calls: []*coordinatorv1.SessionCall{{
				Id: 1, Call: &coordinatorv1.SessionCall_Reserve{Reserve: &coordinatorv1.ReserveRequest{Identity: key(one.name + ", session")}},
			}}})
			_, err = stream.Recv()
			header, _ = stream.Header() // it fails where Recv did
			check("Session", err, header)
		})
	}
	if got := granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("another one is named")}); got.GetFence() == 0 {
		t.Error("a call for another cluster was carried out")
	}
}

// A node that belongs to no cluster has no leaders for a reason of its own.
func TestANodeOfNoClusterSaysSo(t *testing.T) {
	n := start(t, "n1", func(cfg *rpc.Config) {
		cfg.Cluster = &noCluster{Cluster: &rpctest.Cluster{Self: "n1"}}
		cfg.Settings.LeaderWait = time.Millisecond
	})
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
	_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
	if got := wantReason(t, err, reason.NoLeader); got.Message != "this node belongs to no cluster yet" {
		t.Errorf("%q", got.Message)
	}
}

// A node that belongs to no cluster finds no fault with what operators ask for, and does nothing
// about it: it knows neither the nodes nor the shards, and others may be asked after it. It says
// only how it is itself.
func TestANodeOfNoClusterRefusesNothingForGood(t *testing.T) {
	n := start(t, "n1", func(cfg *rpc.Config) {
		cfg.Cluster = &noCluster{Cluster: &rpctest.Cluster{Self: "n1"}}
		cfg.Membership = nobody{}
	})
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
	refused := func(what string, err error) {
		t.Helper()
		if got := reason.Of(err); got.Reason != reason.NoLeader || got.Message != "this node belongs to no cluster yet" {
			t.Errorf("%s: %s %q", what, got.Reason, got.Message)
		}
	}
	for _, method := range coordinatorv1.AdminService_ServiceDesc.Methods {
		err := n.connection.Invoke(withTimeout(t), "/"+coordinatorv1.AdminService_ServiceDesc.ServiceName+"/"+method.MethodName,
			&emptypb.Empty{}, &emptypb.Empty{})
		if method.MethodName == "ClusterStatus" {
			wantNone(t, err)
			continue
		}
		refused(method.MethodName, err)
	}
	last := uint32(shardCount) // of a cluster that has more shards than this node was started for
	_, err := n.admin.ReplaceMember(withTimeout(t), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2"})
	refused("ReplaceMember", err)
	_, err = n.admin.ReplaceMember(withTimeout(t), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2", Shard: &last})
	refused("ReplaceMember in a shard", err)
	_, err = n.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{ToNode: "n2"})
	refused("TransferLeadership", err)
	_, err = n.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{Shard: &last})
	refused("TransferLeadership of a shard", err)
	_, err = n.admin.GetShard(withTimeout(t), &coordinatorv1.GetShardRequest{Shard: last, Local: true})
	refused("GetShard", err)
}

// nobody knows no node.
type nobody struct{}

// Newcomer implements [rpc.Membership].
func (nobody) Newcomer(_ context.Context, nodeID string) (rpc.Newcomer, error) {
	return rpc.Newcomer{}, rpc.UnknownNode("node_id", nodeID, nil)
}

// Replace implements [rpc.Membership].
func (nobody) Replace(context.Context, int, string) (rpc.Newcomer, bool, error) {
	return rpc.Newcomer{}, false, actor.ErrNoLeader
}

// noCluster is a node that waits for others.
type noCluster struct{ *rpctest.Cluster }

// ID implements [rpc.Cluster].
func (noCluster) ID() string { return "" }
