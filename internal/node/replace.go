package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// replaceWithin bounds how long a change of a shard's members waits to be begun.
const replaceWithin = 5 * time.Second

var _ rpc.Membership = cluster{}

// Newcomer implements rpc.Membership.
func (c cluster) Newcomer(ctx context.Context, nodeID string) (rpc.Newcomer, error) {
	n := c.node
	if n.file.State().ClusterID == "" {
		// A member has to be asked; so this is no answer about the node that is named.
		return rpc.Newcomer{}, actor.ErrNoLeader
	}
	if nodeID == n.cfg.NodeID {
		return rpc.Newcomer{}, rpc.InvalidNode("names the node that was asked, which is a member; ask another one")
	}
	incarnations := 0
	addresses := make(map[string]bool)
	for _, m := range n.membership.Directory().Members() {
		if m.Name == nodeID {
			incarnations++
			addresses[m.PeerAddress] = true
		}
	}
	if incarnations == 0 {
		return rpc.Newcomer{}, rpc.InvalidNode("names no node of this cluster")
	}
	var failures []error
	for address := range addresses {
		answer, err := n.port.Hello(ctx, address, n.membership.Message())
		if err != nil {
			failures = append(failures, err)
			continue
		}
		return n.judgeNewcomer(nodeID, address, &answer, incarnations)
	}
	return rpc.Newcomer{}, rpc.InvalidNode(fmt.Sprintf(
		"names a node that does not answer; start it with an empty data directory first (%v)", errors.Join(failures...)))
}

// judgeNewcomer decides whether what answered under a node's name may take its place.
func (n *Node) judgeNewcomer(nodeID, address string, answer *peer.HelloMessage, incarnations int) (rpc.Newcomer, error) {
	state := n.file.State()
	switch {
	case answer.Self.Name != nodeID:
		return rpc.Newcomer{}, rpc.InvalidNode(fmt.Sprintf("names a node at %s, where another one answers", address))
	case answer.Shards != state.Shards:
		return rpc.Newcomer{}, rpc.InvalidNode(fmt.Sprintf("names a node that was started for %d shards; this cluster has %d", answer.Shards, state.Shards))
	case answer.ClusterID != "" && answer.ClusterID != state.ClusterID:
		return rpc.Newcomer{}, rpc.InvalidNode(fmt.Sprintf("names a node that belongs to another cluster, %s", answer.ClusterID))
	case answer.ClusterID != "" && incarnations == 1:
		return rpc.Newcomer{}, rpc.InvalidNode("names a node that answers as the member it is: there is nothing to replace")
	}
	// An empty one; or one that was taken in before, in some of the shards.
	if answer.Self.PeerAddress != "" {
		address = answer.Self.PeerAddress
	}
	return rpc.Newcomer{NodeID: nodeID, Incarnation: answer.Self.Incarnation, PeerAddress: address}, nil
}

// Replace implements rpc.Membership. The lost one goes first: then a majority of those
// that kept their records is needed for everything, also for taking in the new one.
func (c cluster) Replace(_ context.Context, number int, newcomer rpc.Newcomer) (changed bool, err error) {
	n := c.node
	router := n.shards.router.Load()
	if router == nil {
		return false, actor.ErrNoLeader
	}
	id := peer.ServerID(newcomer.NodeID, newcomer.Incarnation)
	if _, _, err := peer.SplitServerID(id); err != nil {
		return false, rpc.InvalidNode(err.Error())
	}
	if newcomer.NodeID == n.cfg.NodeID {
		return false, rpc.InvalidNode("names the node that leads the shard")
	}
	if err := checkAddress(newcomer.PeerAddress, false); err != nil {
		return false, rpc.InvalidNode("has a peer address that " + err.Error())
	}
	group := router.Replica(number).Group()
	known, voter := false, false
	for _, server := range group.Configuration().Servers {
		switch {
		case peer.NodeName(server.ID) != newcomer.NodeID:
		case server.ID == id:
			known, voter = true, server.Suffrage == raft.Voter
		default:
			known = true
			if err := group.RemoveServer(server.ID, replaceWithin); err != nil {
				return changed, membershipFault(err)
			}
			changed = true
			n.cfg.Logger.Warn("took a lost member out of a shard", "shard", number, "server", string(server.ID))
		}
	}
	if !known && !n.isMember(newcomer.NodeID) {
		return false, rpc.InvalidNode("names no node of this cluster")
	}
	if !voter {
		if err := group.AddVoter(id, peer.Address(id, newcomer.PeerAddress), replaceWithin); err != nil {
			return changed, membershipFault(err)
		}
		changed = true
		n.cfg.Logger.Warn("took a new member into a shard", "shard", number, "server", string(id), "address", newcomer.PeerAddress)
	}
	// The newcomer waits to hear of it.
	n.membership.Observe(n.servers())
	return changed, nil
}

// isMember reports whether a node is a member in any incarnation: one that was taken out
// of a shard, before a failure, is still in others, or was when last looked at.
func (n *Node) isMember(nodeID string) bool {
	for _, m := range n.membership.Directory().Members() {
		if m.Name == nodeID {
			return true
		}
	}
	return false
}

func membershipFault(err error) error {
	if raftfsm.Classify(err) == raftfsm.NotApplied {
		return fmt.Errorf("%w: %w", actor.ErrNoLeader, err)
	}
	return fmt.Errorf("%w: %w", actor.ErrOutcomeUnknown, err)
}
