package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	return c.node.askNewcomer(ctx, nodeID)
}

// askNewcomer asks who answers now under a node's name, at an address that the cluster
// knows of it: nobody's word is taken for that. It may be an empty node, or one that
// was taken in before, in some or all of the shards; then it is a member. This node is
// one that answers, too: where it leads a shard, it is asked about itself.
func (n *Node) askNewcomer(ctx context.Context, nodeID string) (rpc.Newcomer, error) {
	if nodeID == n.cfg.NodeID {
		answer := n.membership.Message()
		return n.judgeNewcomer(ctx, nodeID, answer.Self.PeerAddress, &answer)
	}
	addresses, names := make(map[string]bool), []string(nil)
	for _, m := range n.membership.Directory().Members() {
		names = append(names, m.Name)
		if m.Name == nodeID {
			addresses[m.PeerAddress] = true
		}
	}
	if len(addresses) == 0 {
		return rpc.Newcomer{}, rpc.UnknownNode("node_id", nodeID, names)
	}
	var failures []string
	var unfit error
	for _, address := range slices.Sorted(maps.Keys(addresses)) {
		answer, err := n.port.Hello(ctx, address, n.membership.Message())
		if err != nil {
			failures = append(failures, strings.TrimPrefix(err.Error(), "peer: "))
			continue
		}
		newcomer, err := n.judgeNewcomer(ctx, nodeID, address, &answer)
		if err == nil {
			return newcomer, nil
		}
		// It says nothing of who answers elsewhere: what a lost one left is used by others.
		if unfit == nil {
			unfit = err
		}
	}
	if unfit != nil {
		return rpc.Newcomer{}, unfit
	}
	// It may only be stopped, or hang: what it has on its disk is not to be given up for that.
	return rpc.Newcomer{}, rpc.NodeAway(fmt.Sprintf("names %s, which does not answer (%s). If its data directory still exists, "+
		"start it with that; only if it is lost, start it with an empty one and run this again", nodeID, strings.Join(failures, "; ")))
}

// judgeNewcomer decides whether what answered under a node's name may take its place.
func (n *Node) judgeNewcomer(ctx context.Context, nodeID, address string, answer *peer.HelloMessage) (_ rpc.Newcomer, err error) {
	state := n.file.State()
	switch {
	case answer.Self.Name != nodeID:
		err = rpc.InvalidNode(fmt.Sprintf("names a node at %s, where another one answers", address))
	case answer.Shards != state.Shards:
		err = rpc.InvalidNode(fmt.Sprintf("names a node that was started for %d shards; this cluster has %d", answer.Shards, state.Shards))
	case answer.ClusterID != "" && answer.ClusterID != state.ClusterID:
		err = rpc.InvalidNode(fmt.Sprintf("names a node that belongs to another cluster, %s", answer.ClusterID))
	case answer.ClusterID != "" && !n.comesToKnow(ctx, answer.Self.ID()):
		err = rpc.InvalidNode("names a node that answers from a data directory whose place has been taken; stop it, and start it with its present one, or an empty one")
	}
	if answer.Self.PeerAddress != "" {
		address = answer.Self.PeerAddress
	}
	if invalid := checkAddress(address, false); err == nil && invalid != nil {
		err = rpc.InvalidNode("has a peer address that " + invalid.Error())
	}
	return rpc.Newcomer{NodeID: nodeID, Incarnation: answer.Self.Incarnation, PeerAddress: address}, err
}

// Whoever is in the cluster by its own word must be so by ours: the incarnation that was
// replaced says so as well. One that has just been taken into another shard is not known
// here for as long as this replica of that shard is behind.
const (
	knownWithin = 2 * time.Second
	knownLook   = 50 * time.Millisecond
)

// comesToKnow reports whether an incarnation is a member of some shard, as far as this node
// knows or soon comes to know.
func (n *Node) comesToKnow(ctx context.Context, id raft.ServerID) bool {
	ctx, cancel := context.WithTimeout(ctx, knownWithin)
	defer cancel()
	look := time.NewTicker(knownLook)
	defer look.Stop()
	for {
		if _, known := n.servers()[id]; known {
			return true
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// Replace implements rpc.Membership. It makes one change after the other, each for who answers
// then. One replacement in a shard waits for the end of another: what that one has done is not
// undone for a node that was there before.
func (c cluster) Replace(ctx context.Context, number int, nodeID string) (newcomer rpc.Newcomer, changed bool, err error) {
	router := c.node.shards.router.Load()
	if router == nil {
		return rpc.Newcomer{}, false, actor.ErrNoLeader
	}
	replacing := c.node.shards.each[number].replacing
	select {
	case replacing <- struct{}{}:
		defer func() { <-replacing }()
	case <-ctx.Done():
		return rpc.Newcomer{}, false, ctx.Err()
	}
	group := router.Replica(number).Group()
	logger := c.node.cfg.Logger.With("shard", number)
	for {
		var (
			lost  raft.ServerID
			taken bool
		)
		if newcomer, lost, taken, err = c.node.standing(ctx, group, nodeID); err != nil {
			return newcomer, changed, err
		}
		id := peer.ServerID(newcomer.NodeID, newcomer.Incarnation)
		switch {
		case lost != "":
			// It goes first: then a majority of those that kept their records is needed for
			// everything, also for taking in the new one.
			if err := group.RemoveServer(lost, replaceWithin); err != nil {
				return newcomer, changed, membershipFault(err)
			}
			changed = true
			logger.Warn("took a lost member out of a shard", "server", string(lost))
			continue
		case !taken:
			if err := group.AddVoter(id, peer.Address(id, newcomer.PeerAddress), replaceWithin); err != nil {
				return newcomer, changed, membershipFault(err)
			}
			changed = true
			logger.Warn("took a new member into a shard", "server", string(id), "address", newcomer.PeerAddress)
		}
		// The newcomer waits to hear of it.
		c.node.membership.Observe(c.node.servers())
		return newcomer, changed, nil
	}
}

// standing returns who answers now under a node's name, and how it stands in a shard that is led
// here: another incarnation that has its place, "" for none, and whether it has a vote itself.
func (n *Node) standing(ctx context.Context, group *raftfsm.Group, nodeID string) (
	newcomer rpc.Newcomer, lost raft.ServerID, taken bool, err error,
) {
	for {
		term := group.Term()
		settled, err := group.Settled(ctx)
		if err != nil {
			return newcomer, "", false, membershipFault(err)
		}
		if newcomer, err = n.askNewcomer(ctx, nodeID); err != nil {
			return newcomer, "", false, err
		}
		if group.Term() != term {
			continue // another leader may have replaced it since
		}
		for _, server := range settled.Servers {
			switch {
			case peer.NodeName(server.ID) != nodeID:
			case server.ID == peer.ServerID(nodeID, newcomer.Incarnation):
				taken = server.Suffrage == raft.Voter
			default:
				lost = server.ID
			}
		}
		return newcomer, lost, taken, nil
	}
}

func membershipFault(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	case raftfsm.Classify(err) == raftfsm.NotApplied:
		return fmt.Errorf("%w: %w", actor.ErrNoLeader, err)
	}
	return fmt.Errorf("%w: %w", actor.ErrOutcomeUnknown, err)
}
