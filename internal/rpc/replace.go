package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Newcomer is an incarnation of a node that takes the place of a lost one.
type Newcomer struct {
	NodeID      string
	Incarnation string
	PeerAddress string // host:port
}

// Membership changes who belongs to the cluster.
type Membership interface {
	// Newcomer asks the node of that name who it is now. Its errors carry a reason;
	// one that is no empty node is an INVALID_ARGUMENT.
	Newcomer(ctx context.Context, nodeID string) (Newcomer, error)
	// Replace makes whoever answers as an empty node of that name a voter of a shard
	// that this node leads, and takes out every other incarnation of the name, which comes
	// first. It reports whether it has changed anything, also where it returns an error. Its
	// errors are those of package actor, or carry a reason.
	Replace(ctx context.Context, shard int, nodeID string) (newcomer Newcomer, changed bool, err error)
}

// ReplaceMember implements coordinatorv1.AdminServiceServer.
func (s *adminService) ReplaceMember(ctx context.Context, request *coordinatorv1.ReplaceMemberRequest) (*coordinatorv1.ReplaceMemberResponse, error) {
	if s.membership == nil {
		return s.UnimplementedAdminServiceServer.ReplaceMember(ctx, request)
	}
	if err := s.belongs(); err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	if request.Shard != nil {
		number, err := s.checkShard(request.GetShard())
		if err != nil {
			return nil, err
		}
		return s.replaceIn(ctx, number, request.GetNodeId())
	}
	if err := s.checkOthers(ctx, request.GetNodeId()); err != nil {
		return nil, err
	}
	newcomer, err := s.membership.Newcomer(ctx, request.GetNodeId())
	if err != nil {
		return nil, s.fault(err)
	}
	response := &coordinatorv1.ReplaceMemberResponse{Incarnation: newcomer.Incarnation}
	// One shard after the other: a failure then leaves little half done, and the call
	// can be made again.
	for i := range s.shards.Shards() {
		one, err := s.replaceIn(ctx, i, newcomer.NodeID)
		if err != nil && len(response.GetShards()) > 0 {
			return nil, s.brokenOff(err, "the replacement is done in %s, and was broken off in shard %d", inShards(response.GetShards()), i)
		}
		if err != nil {
			return nil, s.withoutMajority(ctx, err)
		}
		response.Shards = append(response.Shards, one.GetShards()...)
	}
	return response, nil
}

// checkOthers refuses where this node is the only member: what a lost one had stored comes from the
// others.
func (s *adminService) checkOthers(ctx context.Context, named string) error {
	self, members := s.cluster.NodeID(), s.cluster.Members(ctx)
	switch {
	case len(members) == 0 || slices.ContainsFunc(members, func(m Member) bool { return m.NodeID != self }):
		return nil
	case named != self:
		return UnknownNode("node_id", named, []string{self})
	}
	return InvalidNode(fmt.Sprintf("cannot be replaced: %s is the only member of this cluster, and no other has its records. "+
		"Keep it on its data directory; if that is lost, so are the records: start it with an empty one, which makes a new cluster", self))
}

// withoutMajority is the error of a replacement that failed: that there is no leader passes by itself,
// but not where a majority is gone. Waiting for one would only hide that.
func (s *adminService) withoutMajority(ctx context.Context, err error) error {
	if reason.Of(err).Reason != reason.NoLeader {
		return err
	}
	members := s.cluster.Members(ctx)
	lost := LostMajority(members)
	if lost == 0 {
		return err
	}
	return InvalidNode(fmt.Sprintf("cannot be replaced: at %d of %d nodes another incarnation answers, from another data directory. "+
		"Start each that still has its old one on that. A replacement needs a majority that kept its data: without one nobody can tell what was acknowledged, "+
		"and there is only a new cluster to be founded, whose keys are treated as never seen", lost, len(members)))
}

// LostMajority returns how many members are lost, where the others are no majority; else 0.
func LostMajority(members []Member) int {
	lost := 0
	for _, m := range members {
		if m.Lost {
			lost++
		}
	}
	if len(members)-lost > len(members)/2 {
		return 0
	}
	return lost
}

// replaceIn replaces in one shard, wherever that is led.
func (s *adminService) replaceIn(ctx context.Context, number int, nodeID string) (*coordinatorv1.ReplaceMemberResponse, error) {
	wire := uint32(number)
	answer, _, err := deliver(ctx, s.server, number, hop[*coordinatorv1.ReplaceMemberResponse]{
		here: func(ctx context.Context, _ Replica) (*coordinatorv1.ReplaceMemberResponse, error) {
			newcomer, changed, err := s.membership.Replace(ctx, number, nodeID)
			response := &coordinatorv1.ReplaceMemberResponse{Incarnation: newcomer.Incarnation}
			if err != nil && changed {
				return nil, s.brokenOff(err, "the lost incarnation was taken out, and the new one may not be in yet")
			}
			if changed {
				response.Shards = []uint32{wire}
			}
			return response, err
		},
		there: passOn(coordinatorv1.NewAdminServiceClient, coordinatorv1.AdminServiceClient.ReplaceMember, &coordinatorv1.ReplaceMemberRequest{
			NodeId: nodeID, Shard: &wire,
		}),
	})
	return answer, err
}

// brokenOff is the error of a call that has changed something before it came to another one,
// which speaks of what it came to last and may say that nothing was done.
func (s *server) brokenOff(err error, format string, arguments ...any) error {
	last := reason.Of(s.fault(err))
	if last.Applied == reason.Maybe && last.Reason != reason.OutcomeUnknown {
		return err
	}
	return reason.Error(reason.OutcomeUnknown, fmt.Sprintf(format, arguments...)+": "+last.Message)
}

func inShards(numbers []uint32) string {
	texts := make([]string, len(numbers))
	for i, number := range numbers {
		texts[i] = fmt.Sprint(number)
	}
	if len(texts) == 1 {
		return "shard " + texts[0]
	}
	return "shards " + strings.Join(texts, ", ")
}

// InvalidNode is the error of a [Membership] about the node that was named.
func InvalidNode(detail string) error {
	return reason.Violation(reason.InvalidArgument, "node_id", detail)
}

// NodeAway is [InvalidNode] of a node that does not answer.
func NodeAway(detail string) error {
	return reason.ViolationOf(reason.InvalidArgument, reason.NodeDoesNotAnswer, "node_id", detail)
}
