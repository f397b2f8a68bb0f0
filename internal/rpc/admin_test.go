package rpc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// listAll follows a listing to its end and returns the keys.
func listAll(t *testing.T, n *node, request *coordinatorv1.ListRecordsRequest) (keys []string, pages int) {
	t.Helper()
	for {
		page, err := n.admin.ListRecords(withTimeout(t), request)
		wantNone(t, err)
		pages++
		if len(page.GetRecords()) > int(request.GetPageSize()) && request.GetPageSize() > 0 {
			t.Fatalf("%d records on a page of %d", len(page.GetRecords()), request.GetPageSize())
		}
		for _, r := range page.GetRecords() {
			if r.GetResponse() != nil {
				t.Errorf("%s is listed with its response", r.GetIdentity().GetKey())
			}
			keys = append(keys, r.GetIdentity().GetKey())
		}
		if page.GetNextPageToken() == "" {
			slices.Sort(keys)
			return keys, pages
		}
		request = proto.CloneOf(request)
		request.PageToken = page.GetNextPageToken()
	}
}

// fill makes 100 records: even ones committed, by tens in two namespaces.
func fill(t *testing.T, n *node) (all, even, second []string) {
	t.Helper()
	for i := range 100 {
		k := fmt.Sprintf("%03d", i)
		id := &coordinatorv1.Identity{Key: k, Operation: "op", Namespace: "first"}
		if i >= 50 {
			id.Namespace = "second"
			second = append(second, k)
		}
		grant := granted(t, n, &coordinatorv1.ReserveRequest{Identity: id})
		if i%2 == 0 {
			_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{Identity: id, Token: grant.GetToken()})
			wantNone(t, err)
			even = append(even, k)
		}
		all = append(all, k)
	}
	return all, even, second
}

func TestListings(t *testing.T) {
	single := start(t, "n1", nil)
	n1, n2 := startTwo(t, nil)
	// Leadership is spread: the first node leads shard 0.
	n1.shards.At(0).SetLeader(self("n1"))
	n2.shards.At(0).SetLeader(leaderNamed("n1"))
	for name, nodes := range map[string][]*node{"one node": {single}, "two nodes": {n1, n2}} {
		all, even, second := fill(t, nodes[0])
		op, none := "op", ""
		for i, n := range nodes {
			for _, test := range []struct {
				filter string
				list   *coordinatorv1.ListRecordsRequest
				want   []string
			}{
				{"none", &coordinatorv1.ListRecordsRequest{}, all},
				{"pages of 1", &coordinatorv1.ListRecordsRequest{PageSize: 1}, all},
				{"pages of 7", &coordinatorv1.ListRecordsRequest{PageSize: 7}, all},
				{"pages of 1000", &coordinatorv1.ListRecordsRequest{PageSize: 1000}, all},
				{"state", &coordinatorv1.ListRecordsRequest{State: coordinatorv1.State_STATE_COMMITTED, PageSize: 3}, even},
				{"another state", &coordinatorv1.ListRecordsRequest{State: coordinatorv1.State_STATE_LAPSED}, nil},
				{"namespace", &coordinatorv1.ListRecordsRequest{Namespace: "second", PageSize: 10}, second},
				{"operation", &coordinatorv1.ListRecordsRequest{Operation: &op}, all},
				{"no operation", &coordinatorv1.ListRecordsRequest{Operation: &none}, nil},
			} {
				got, pages := listAll(t, n, test.list)
				if !slices.Equal(got, test.want) {
					t.Errorf("%s, node %d, filter %s: %d records, want %d", name, i, test.filter, len(got), len(test.want))
				}
				if size := int(test.list.GetPageSize()); size > 0 && pages > len(test.want)/size+shardCount+1 {
					t.Errorf("%s, node %d, filter %s: %d pages", name, i, test.filter, pages)
				}
			}
		}
	}
	// Pages that find nothing for long are given out empty, and the listing goes on.
	single.shards.All(func(r *rpctest.Replica) { r.PageMax(1) })
	if got, _ := listAll(t, single, &coordinatorv1.ListRecordsRequest{Namespace: "nobody"}); len(got) != 0 {
		t.Errorf("found %v", got)
	}
}

// The state that is listed, and filtered by, is the one at live time.
func TestListingsAreLive(t *testing.T) {
	n := start(t, "n1", nil)
	granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k")})
	for _, step := range []struct {
		state   coordinatorv1.State
		want    int
		advance time.Duration // afterwards
	}{
		{coordinatorv1.State_STATE_PENDING, 1, 5 * time.Minute},
		{coordinatorv1.State_STATE_PENDING, 0, 0},
		{coordinatorv1.State_STATE_LAPSED, 1, 24 * time.Hour},
		{coordinatorv1.State_STATE_LAPSED, 0, 0},
	} {
		got, _ := listAll(t, n, &coordinatorv1.ListRecordsRequest{State: step.state})
		if len(got) != step.want {
			t.Errorf("%v: %v", step.state, got)
		}
		n.shards.All(func(r *rpctest.Replica) { r.Advance(step.advance) })
	}
}

// A page is bounded in bytes, too.
func TestPagesOfLargeRecords(t *testing.T) {
	n := start(t, "n1", nil)
	for i := range 1200 {
		id := &coordinatorv1.Identity{Key: fmt.Sprintf("%0255d", i), Operation: strings.Repeat("o", 255), Principal: strings.Repeat("p", 128)}
		grant := granted(t, n, &coordinatorv1.ReserveRequest{Identity: id, Owner: strings.Repeat("o", 128)})
		_, err := n.coordinator.Release(withTimeout(t), &coordinatorv1.ReleaseRequest{Identity: id, Token: grant.GetToken(), Reason: strings.Repeat("r", 1024)})
		wantNone(t, err)
	}
	page, err := n.admin.ListRecords(withTimeout(t), &coordinatorv1.ListRecordsRequest{PageSize: 1000})
	wantNone(t, err)
	if size := proto.Size(page); size > 3<<20 || page.GetNextPageToken() == "" {
		t.Errorf("a page of %d bytes, %d records", size, len(page.GetRecords()))
	}
	if got, _ := listAll(t, n, &coordinatorv1.ListRecordsRequest{PageSize: 1000}); len(got) != 1200 {
		t.Errorf("%d records", len(got))
	}
}

// What was found is not lost with a shard that has no leader; the next page says so.
func TestListingsAcrossALeaderlessShard(t *testing.T) {
	n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.LeaderWait = 0 })
	fill(t, n)
	n.shards.At(1).SetLeader(shard.Leader{})
	page, err := n.admin.ListRecords(withTimeout(t), &coordinatorv1.ListRecordsRequest{PageSize: 1000})
	wantNone(t, err)
	if len(page.GetRecords()) == 0 || page.GetNextPageToken() == "" {
		t.Fatalf("a page of %d records", len(page.GetRecords()))
	}
	_, err = n.admin.ListRecords(withTimeout(t), &coordinatorv1.ListRecordsRequest{PageSize: 1000, PageToken: page.GetNextPageToken()})
	wantReason(t, err, reason.NoLeader)
}

func TestShardsAreShown(t *testing.T) {
	n1, _ := startTwo(t, nil)
	granted(t, n1, &coordinatorv1.ReserveRequest{Identity: key("k")})
	n1.shards.At(2).SetLeader(shard.Leader{}) // not known here
	n1.shards.At(1).SetLeader(self("n1"))
	answer, err := n1.admin.ListShards(withTimeout(t), &coordinatorv1.ListShardsRequest{})
	wantNone(t, err)
	var got []string
	for _, s := range answer.GetShards() {
		got = append(got, fmt.Sprintf("%d %s %s", s.GetShard(), s.GetLeader(), s.GetLeaderAddress()))
	}
	if want := []string{"0 n2 n2:7420", "1 n1 n1:7420", "2  "}; !slices.Equal(got, want) {
		t.Errorf("shards %q, want %q", got, want)
	}
	// Where the leader cannot be asked, what this node knows is shown.
	n1.shards.Dial = func(shard.Leader) (grpc.ClientConnInterface, error) { return nil, errors.New("x") }
	one, err := n1.admin.GetShard(withTimeout(t), &coordinatorv1.GetShardRequest{Shard: 0})
	wantNone(t, err)
	if one.GetShard().GetLeader() != "n2" {
		t.Errorf("shard %v", one)
	}
}

func TestClusterAndMembers(t *testing.T) {
	n := start(t, "n1", nil)
	n.cluster.Nodes = append(n.cluster.Nodes, rpc.Member{NodeID: "n0", PeerAddress: "n0:7421"},
		rpc.Member{NodeID: "n2", Reachable: true, Trouble: "Node n2 is tired."})
	n.shards.At(1).SetLeader(shard.Leader{})
	n.cluster.Trouble = []string{"The disk is nearly full."}
	members, err := n.admin.Members(withTimeout(t), &coordinatorv1.MembersRequest{})
	wantNone(t, err)
	if m := members.GetMembers(); len(m) != 3 || m[0].GetNodeId() != "n0" || m[0].GetReachable() || !m[1].GetReachable() || m[1].GetLeads() != 2 {
		t.Errorf("members %v", members)
	}
	status, err := n.admin.ClusterStatus(withTimeout(t), &coordinatorv1.ClusterStatusRequest{})
	wantNone(t, err)
	if status.GetHealthy() || len(status.GetProblems()) != 4 || status.GetShards() != 3 || status.GetShardsWithLeader() != 2 {
		t.Errorf("status %v", status)
	}
}

func TestHandovers(t *testing.T) {
	n1, n2 := startTwo(t, nil)
	both := []rpc.Member{{NodeID: "n1"}, {NodeID: "n2"}}
	n1.cluster.Nodes, n2.cluster.Nodes = both, both
	one := uint32(1)
	for _, test := range []struct {
		name string
		on   *node
		ask  *coordinatorv1.TransferLeadershipRequest
		want []uint32
	}{
		{"one, from elsewhere", n1, &coordinatorv1.TransferLeadershipRequest{Shard: &one, ToNode: "n1"}, []uint32{1}},
		{"one, to where it is", n1, &coordinatorv1.TransferLeadershipRequest{Shard: &one, ToNode: "n2"}, nil},
		{"all of a node that leads none", n1, &coordinatorv1.TransferLeadershipRequest{}, nil},
		{"all", n2, &coordinatorv1.TransferLeadershipRequest{}, []uint32{0, 1, 2}},
		{"all to itself", n2, &coordinatorv1.TransferLeadershipRequest{ToNode: "n2"}, nil},
	} {
		answer, err := test.on.admin.TransferLeadership(withTimeout(t), test.ask)
		wantNone(t, err)
		if !slices.Equal(answer.GetShards(), test.want) {
			t.Errorf("%s: %v, want %v", test.name, answer.GetShards(), test.want)
		}
	}
	for fault, want := range map[error]reason.Reason{
		actor.ErrNoLeader:        reason.NoLeader,
		errors.New("raft: busy"): reason.OutcomeUnknown,
		fmt.Errorf("%w: no replica on a node", shard.ErrNoSuchReplica): reason.InvalidArgument,
	} {
		n2.shards.All(func(r *rpctest.Replica) { r.Fail(fault) })
		_, err := n2.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{})
		wantReason(t, err, want)
		_, err = n1.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{Shard: &one, ToNode: "n1"})
		wantReason(t, err, want)
	}
	// Whoever was to take over does not answer: nothing was tried, and that is what is said.
	n2.shards.All(func(r *rpctest.Replica) { r.Fail(fmt.Errorf("%w: server", shard.ErrNotAnswering)) })
	_, err := n2.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{Shard: &one})
	wantReason(t, err, reason.NoLeader)
	_, err = n1.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{Shard: &one, ToNode: "n1"})
	if got := wantReason(t, err, reason.InvalidArgument); got.Message != "to_node names n1, which does not answer the leader of shard 1" {
		t.Errorf("said: %s", got.Message)
	}
	// What was handed over was so, whatever came of the others.
	n2.shards.All(func(r *rpctest.Replica) { r.Fail(nil) })
	n2.shards.At(1).Fail(actor.ErrNoLeader)
	_, err = n2.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{})
	if got := wantReason(t, err, reason.OutcomeUnknown); got.Message != "not all were handed over, only shards 0, 2: the shard has no leader that can be reached" {
		t.Errorf("said: %s", got.Message)
	}
	n2.shards.At(1).Fail(errors.New("raft: busy"))
	n2.shards.At(2).Fail(actor.ErrNoLeader)
	_, err = n2.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{})
	wantReason(t, err, reason.OutcomeUnknown)
	// A node alone has nobody to hand over to.
	alone := start(t, "n3", nil)
	answer, err := alone.admin.TransferLeadership(withTimeout(t), &coordinatorv1.TransferLeadershipRequest{Shard: &one})
	wantNone(t, err)
	if len(answer.GetShards()) > 0 {
		t.Errorf("handed over: %v", answer)
	}
}

// A fence names a pending record only, and who names another one by it is told so.
func TestAPurgeByTheFenceOfWhatIsNotPending(t *testing.T) {
	n := start(t, "n1", nil)
	grant := granted(t, n, &coordinatorv1.ReserveRequest{
		Identity: key("k"), OnLapse: coordinatorv1.OnLapse_ON_LAPSE_HOLD, PendingTtl: durationpb.New(time.Second),
	})
	n.shards.All(func(r *rpctest.Replica) { r.Advance(time.Minute) })
	_, err := n.admin.Purge(withTimeout(t), &coordinatorv1.PurgeRequest{
		Identity: key("k"), Force: true, Target: &coordinatorv1.PurgeRequest_Fence{Fence: grant.GetFence()},
	})
	if failure := wantReason(t, err, reason.RevisionMismatch); !strings.Contains(failure.Message, "PENDING") {
		t.Errorf("got %q", failure.Message)
	}
	_, err = n.admin.Purge(withTimeout(t), &coordinatorv1.PurgeRequest{
		Identity: key("k"), Force: true, Target: &coordinatorv1.PurgeRequest_Revision{Revision: 999},
	})
	if failure := wantReason(t, err, reason.RevisionMismatch); failure.Message != reason.RevisionMismatch.Row().Meaning {
		t.Errorf("got %q", failure.Message)
	}
}
