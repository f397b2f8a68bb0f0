package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// replacing is a membership in which a replacement comes to an end in some shard.
type replacing struct {
	in      int // the shard
	changed bool
	err     error
}

func (r replacing) Newcomer(_ context.Context, nodeID string) (rpc.Newcomer, error) {
	return rpc.Newcomer{NodeID: nodeID, Incarnation: "fad"}, nil
}

func (r replacing) Replace(_ context.Context, number int, nodeID string) (rpc.Newcomer, bool, error) {
	if number == r.in {
		return rpc.Newcomer{}, r.changed, r.err
	}
	return rpc.Newcomer{NodeID: nodeID, Incarnation: "fad"}, number < r.in, nil
}

// A replacement that ends when something has been done already is not told as one that did
// nothing, whoever led the shard.
func TestAReplacementThatIsBrokenOff(t *testing.T) {
	away := rpc.InvalidNode("names n3, which does not answer")
	const half = "the lost incarnation was taken out, and the new one may not be in yet"
	for _, test := range []struct {
		membership replacing
		want       reason.Reason
		said       string // in the message
	}{
		{replacing{0, false, actor.ErrNoLeader}, reason.NoLeader, ""},
		{replacing{0, false, away}, reason.InvalidArgument, "node_id names n3, which does not answer"},
		{replacing{0, true, actor.ErrNoLeader}, reason.OutcomeUnknown, half + ": the shard has no leader that can be reached"},
		{replacing{0, true, away}, reason.OutcomeUnknown, half + ": node_id names n3, which does not answer"},
		{replacing{2, false, actor.ErrNoLeader}, reason.OutcomeUnknown, "done in shards 0, 1, and was broken off in shard 2: the shard has no leader"},
		{replacing{1, false, away}, reason.OutcomeUnknown, "done in shard 0, and was broken off in shard 1: node_id names n3"},
		{replacing{2, true, away}, reason.OutcomeUnknown, "was broken off in shard 2: " + half + ": node_id"},
		{replacing{2, false, actor.ErrOutcomeUnknown}, reason.OutcomeUnknown, "was broken off in shard 2: it is not known"},
		{replacing{2, true, context.DeadlineExceeded}, reason.DeadlineExceeded, ""},
	} {
		for _, led := range []string{"here", "elsewhere"} {
			t.Run(fmt.Sprint(led, test.membership), func(t *testing.T) {
				n1, n2 := startTwo(t, func(cfg *rpc.Config) {
					cfg.Membership = test.membership
				})
				for _, n := range []*node{n1, n2} {
					n.cluster.Nodes = append(n.cluster.Nodes, rpc.Member{NodeID: "n3"})
				}
				asked := map[string]*node{"here": n2, "elsewhere": n1}[led]
				_, err := asked.admin.ReplaceMember(withTimeout(t), &coordinatorv1.ReplaceMemberRequest{NodeId: "n3"})
				if got := wantReason(t, err, test.want); !strings.Contains(got.Message, test.said) {
					t.Errorf("said: %s", got.Message)
				}
			})
		}
	}
}
