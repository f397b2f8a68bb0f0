package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// reachWithin bounds how long Members waits for the others to answer.
const reachWithin = time.Second

// cluster is what the services are told about the cluster.
type cluster struct{ node *Node }

var _ rpc.Cluster = cluster{}

// ID implements rpc.Cluster. It is "" while the node belongs to no cluster.
func (c cluster) ID() string {
	if id := c.node.foundCluster(); id != "" {
		return id
	}
	return c.node.file.State().ClusterID
}

// NodeID implements rpc.Cluster.
func (c cluster) NodeID() string { return c.node.cfg.NodeID }

// Version implements rpc.Cluster.
func (c cluster) Version() string { return c.node.cfg.Version }

// Members implements rpc.Cluster. Every other member is asked whether it is there. While one
// takes the place of another of its name, this node may know both: it is one member, the one
// that is there.
func (c cluster) Members(ctx context.Context) []rpc.Member {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	n := c.node
	state := n.file.State()
	if state.ClusterID == "" {
		return nil
	}
	n.membership.Observe(n.servers()) // what the shards know by now
	contacts := n.membership.ExchangeOnce(ctx, n.port)
	seats := n.countSeats(state.ID())
	var members []rpc.Member
	best := 0 // rank of the last one
	for _, m := range n.membership.Directory().Members() {
		self, contact := m.ID() == state.ID(), contacts[m.ID()]
		rank := seats.of[m.ID()]
		switch {
		case self:
			rank += 2 * (seats.shards + 1)
		case contact.Reached, contact.Joining:
			rank += seats.shards + 1
		}
		lacking := seats.shards - seats.of[m.ID()]
		lost := lostAt(contact, lacking)
		if contact.Succeeded {
			m = contact.Instead
		}
		shown := rpc.Member{
			NodeID:        m.Name,
			Incarnation:   m.Incarnation,
			PeerAddress:   m.PeerAddress,
			ClientAddress: m.ClientAddress,
			Reachable:     self || contact.Reached || contact.Joining || contact.Succeeded,
			Self:          self,
			Lost:          !self && lost,
		}
		if !self {
			shown.Trouble = trouble(m.Name, contact, lacking, seats.shards)
		}
		// They come by name.
		switch last := len(members) - 1; {
		case last < 0 || members[last].NodeID != m.Name:
			members, best = append(members, shown), rank
		case rank > best:
			members[last], best = shown, rank
		}
	}
	if lost := rpc.LostMajority(members); lost > 0 {
		for i := range members {
			if members[i].Lost {
				members[i].Trouble = lostWithMost(members[i].NodeID, lost, len(members))
			}
		}
	}
	return members
}

// lostAt reports whether a member may have lost its directory: another incarnation answers in its
// place, and nobody has begun to take that in.
func lostAt(contact membership.Contact, lacking int) bool {
	return contact.Instead.Name != "" && !contact.Succeeded && lacking == 0
}

// lostWithMost is what is wrong with such a member where there are so many of them that the others are
// no majority: taking one in takes a majority, too.
func lostWithMost(name string, lost, nodes int) string {
	return fmt.Sprintf("Node %s cannot be reached from this node: another incarnation of it answers, from another data directory. "+
		"That is so for %d of %d nodes. Start each that still has its old one on that. If they are lost, a majority is: "+
		"coordctl members replace cannot help then, and nobody can tell what was acknowledged. Found a new cluster, and treat its keys as never seen.",
		name, lost, nodes)
}

// trouble says what is wrong with another member, beyond being out of reach. Whoever is in a
// shard, here or as others know it, is on its way in: it is not to be replaced.
func trouble(name string, contact membership.Contact, lacking, shards int) string {
	switch {
	case contact.Succeeded:
		return fmt.Sprintf("Node %s is joining: this node has yet to hear from its shards that they have taken it in.", name)
	case lacking > 0:
		return fmt.Sprintf("Node %s is joining: %d of %d shards have yet to take it in, as far as this node knows. "+
			"If coordctl members replace %s was broken off, run it again.", name, lacking, shards, name)
	case contact.Joining:
		return fmt.Sprintf("Node %s is joining: every shard has taken it in, and it has yet to open them.", name)
	case lostAt(contact, lacking):
		return fmt.Sprintf("Node %s cannot be reached from this node: another incarnation of it answers, from another data directory. "+
			"If the one that it had is lost, start it with an empty one and run coordctl members replace %s.", name, name)
	case contact.StorageFull:
		return fmt.Sprintf("Node %s is short of free disk space: the shards that it leads take no new keys.", name)
	}
	return ""
}

// Problems implements rpc.Cluster.
func (c cluster) Problems(context.Context) []string {
	var problems []string
	if waiting := c.node.membership.Waiting(); waiting != "" {
		problems = append(problems, "This node belongs to no cluster yet: "+waiting+".")
	}
	if c.node.membership.Removed() {
		problems = append(problems, "The cluster goes on without this node: it was replaced.")
	}
	if c.node.storageFull.Load() {
		problems = append(problems, fmt.Sprintf("This node is short of free disk space and takes no new keys: %s.", c.node.space()))
	}
	return append(problems, c.node.declined.problems()...)
}

// servers returns every server in the Raft configurations of the shards.
func (n *Node) servers() map[raft.ServerID]raft.ServerAddress {
	router := n.shards.router.Load()
	if router == nil {
		return nil
	}
	servers := make(map[raft.ServerID]raft.ServerAddress)
	for i := range router.Shards() {
		for _, server := range router.Replica(i).Group().Configuration().Servers {
			servers[server.ID] = server.Address
		}
	}
	return servers
}

// seats is in how many shards each server is, of those that this node is in as far as it knows.
type seats struct {
	shards int
	of     map[raft.ServerID]int
}

func (n *Node) countSeats(self raft.ServerID) seats {
	router := n.shards.router.Load()
	if router == nil {
		return seats{}
	}
	configurations := make([]raft.Configuration, router.Shards())
	for i := range configurations {
		configurations[i] = router.Replica(i).Group().Configuration()
	}
	return seatsIn(configurations, self)
}

// seatsIn counts them as a node knows them. A shard that the node is not in counts for nothing:
// its log is still being sent to the node, and others may have come and gone since.
func seatsIn(configurations []raft.Configuration, self raft.ServerID) seats {
	counted := seats{of: make(map[raft.ServerID]int)}
	for _, configuration := range configurations {
		if !slices.ContainsFunc(configuration.Servers, func(server raft.Server) bool { return server.ID == self }) {
			continue
		}
		counted.shards++
		for _, server := range configuration.Servers {
			counted.of[server.ID]++
		}
	}
	return counted
}
