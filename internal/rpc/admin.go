package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/shard"
)

// adminService serves operators.
type adminService struct {
	coordinatorv1.UnimplementedAdminServiceServer
	*server
}

// belongs refuses what only a node of a cluster can answer. One that waits for its cluster knows
// neither the other nodes nor how many shards there are, so what it found wrong with a call, or
// done about it, would be said of no cluster; and who is refused for good asks no other node.
// What it waits for is for ClusterStatus to say.
func (s *server) belongs() error {
	if s.cluster.ID() == "" {
		return s.noLeader()
	}
	return nil
}

// Purge implements coordinatorv1.AdminServiceServer.
func (s *adminService) Purge(ctx context.Context, request *coordinatorv1.PurgeRequest) (*coordinatorv1.PurgeResponse, error) {
	received := time.Now()
	if err := s.belongs(); err != nil {
		return nil, err
	}
	command, err := decodePurge(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.PurgeResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.PurgeResponse, error) {
			reply, err := submit(ctx, replica, command, received)
			if command.Fence != 0 && reply.Answer.Refusal == admission.RevisionMismatch {
				return nil, reason.Error(reason.RevisionMismatch,
					"the record is not pending under this fence: a fence names a PENDING record only, any other is named by its revision")
			}
			if err != nil {
				return nil, err
			}
			return &coordinatorv1.PurgeResponse{Existed: !reply.Answer.Repeated}, nil
		},
		there: passOn(coordinatorv1.NewAdminServiceClient, coordinatorv1.AdminServiceClient.Purge, request),
	})
}

func decodePurge(request *coordinatorv1.PurgeRequest) (command admission.Purge, err error) {
	command.Force = request.GetForce()
	if command.Identity, err = decodeIdentity(request.GetIdentity()); err != nil {
		return command, err
	}
	switch target := request.GetTarget().(type) {
	case *coordinatorv1.PurgeRequest_Revision:
		command.Revision = target.Revision
	case *coordinatorv1.PurgeRequest_Fence:
		if target.Fence == 0 {
			return command, invalid("fence", "is 0, it must be the one that was looked at, 1 or more")
		}
		command.Fence = target.Fence
	}
	return command, refused(command.Validate())
}

// Members implements coordinatorv1.AdminServiceServer.
func (s *adminService) Members(ctx context.Context, _ *coordinatorv1.MembersRequest) (*coordinatorv1.MembersResponse, error) {
	if err := s.belongs(); err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return &coordinatorv1.MembersResponse{ClusterId: s.cluster.ID(), Members: s.members(s.cluster.Members(ctx))}, nil
}

// members are the nodes by name, with what each leads as far as this node knows.
func (s *server) members(known []Member) []*coordinatorv1.Member {
	leads := make(map[string]uint32)
	for i := range s.shards.Shards() {
		if leader := s.shards.Replica(i).Leader(); leader.Known() {
			leads[leader.NodeID]++
		}
	}
	var members []*coordinatorv1.Member
	for _, m := range known {
		members = append(members, &coordinatorv1.Member{
			NodeId:        m.NodeID,
			Incarnation:   m.Incarnation,
			PeerAddress:   m.PeerAddress,
			ClientAddress: m.ClientAddress,
			Reachable:     m.Reachable || m.Self,
			Self:          m.Self,
			Leads:         leads[m.NodeID],
		})
	}
	slices.SortFunc(members, func(a, b *coordinatorv1.Member) int {
		return strings.Compare(a.GetNodeId(), b.GetNodeId())
	})
	return members
}

// ClusterStatus implements coordinatorv1.AdminServiceServer.
func (s *adminService) ClusterStatus(ctx context.Context, _ *coordinatorv1.ClusterStatusRequest) (*coordinatorv1.ClusterStatusResponse, error) {
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	known := s.cluster.Members(ctx)
	status := &coordinatorv1.ClusterStatusResponse{
		ClusterId: s.cluster.ID(),
		NodeId:    s.cluster.NodeID(),
		Version:   s.cluster.Version(),
		Shards:    uint32(s.shards.Shards()),
		Members:   s.members(known),
	}
	var leaderless []string
	for i := range s.shards.Shards() {
		if s.shards.Replica(i).Leader().Known() {
			status.ShardsWithLeader++
		} else {
			leaderless = append(leaderless, fmt.Sprint(i))
		}
	}
	if len(leaderless) > 0 {
		status.Problems = append(status.Problems,
			"Without a leader that this node knows: shard "+strings.Join(leaderless, ", ")+".")
	}
	for _, m := range known {
		switch {
		case m.Trouble != "":
			status.Problems = append(status.Problems, m.Trouble)
		case !m.Reachable && !m.Self:
			status.Problems = append(status.Problems, "Node "+m.NodeID+" cannot be reached from this node.")
		}
	}
	status.Problems = append(status.Problems, s.cluster.Problems(ctx)...)
	status.Healthy = len(status.Problems) == 0
	return status, nil
}

// TransferLeadership implements coordinatorv1.AdminServiceServer.
func (s *adminService) TransferLeadership(ctx context.Context, request *coordinatorv1.TransferLeadershipRequest) (*coordinatorv1.TransferLeadershipResponse, error) {
	if err := s.belongs(); err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	members := s.cluster.Members(ctx)
	to, names := request.GetToNode(), make([]string, len(members))
	for i, m := range members {
		names[i] = m.NodeID
	}
	if to != "" && !slices.Contains(names, to) {
		return nil, UnknownNode("to_node", to, names)
	}
	if request.Shard == nil {
		return s.transferAll(ctx, to, len(members))
	}
	number, err := s.checkShard(request.GetShard())
	if err != nil {
		return nil, err
	}
	return route(ctx, s.server, number, hop[*coordinatorv1.TransferLeadershipResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.TransferLeadershipResponse, error) {
			response := &coordinatorv1.TransferLeadershipResponse{}
			if len(members) < 2 || to == s.cluster.NodeID() {
				return response, nil
			}
			if err := replica.TransferLeadership(ctx, to); err != nil {
				return nil, s.transferFault(number, to, err)
			}
			response.Shards = []uint32{request.GetShard()}
			return response, nil
		},
		there: passOn(coordinatorv1.NewAdminServiceClient, coordinatorv1.AdminServiceClient.TransferLeadership, request),
	})
}

// UnknownNode is an INVALID_ARGUMENT about a field that names none of the cluster's nodes,
// which may be given in any order and more than once.
func UnknownNode(field, given string, names []string) error {
	known := slices.Compact(slices.Sorted(slices.Values(names)))
	return invalid(field, "is %d bytes that name no node of this cluster, which has %s", len(given), strings.Join(known, ", "))
}

// transferAll hands over what this node leads. One shard that cannot be handed over
// does not keep the others, but the call then fails.
func (s *adminService) transferAll(ctx context.Context, to string, members int) (*coordinatorv1.TransferLeadershipResponse, error) {
	response := &coordinatorv1.TransferLeadershipResponse{}
	if members < 2 || to == s.cluster.NodeID() {
		return response, nil
	}
	var failed error
	for i := range s.shards.Shards() {
		replica := s.shards.Replica(i)
		if !replica.Leader().Self {
			continue
		}
		if err := replica.TransferLeadership(ctx, to); err != nil {
			if failed == nil || reason.Of(failed).Applied == reason.No { // a doubt stays
				failed = s.transferFault(i, to, err)
			}
			continue
		}
		response.Shards = append(response.Shards, uint32(i))
	}
	if failed != nil && len(response.GetShards()) > 0 {
		return nil, s.brokenOff(failed, "not all were handed over, only %s", inShards(response.GetShards()))
	}
	if failed != nil {
		return nil, failed
	}
	return response, nil
}

// transferFault says what kept a shard from being handed over. An operator is helped
// by the replica's own words.
func (s *server) transferFault(number int, to string, err error) error {
	switch {
	case errors.Is(err, shard.ErrNoSuchReplica):
		return invalid("to_node", "names a node that has no replica of shard %d", number)
	case errors.Is(err, shard.ErrNotAnswering) && to != "":
		return invalid("to_node", "names %s, which does not answer the leader of shard %d", to, number)
	case errors.Is(err, shard.ErrNotAnswering):
		return reason.Error(reason.NoLeader, fmt.Sprintf("nobody else answers the leader of shard %d: it goes on leading", number))
	}
	if named := s.namedFault(err); named != nil {
		return named
	}
	return reason.Error(reason.OutcomeUnknown, fmt.Sprintf("shard %d was not handed over: %v", number, err))
}

func (s *server) checkShard(given uint32) (int, error) {
	if uint64(given) >= uint64(s.shards.Shards()) {
		return 0, invalid("shard", "is %d, the last one is %d", given, s.shards.Shards()-1)
	}
	return int(given), nil
}
