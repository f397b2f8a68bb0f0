package node

import (
	"context"
	"fmt"
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

// Members implements rpc.Cluster. Every other member is asked whether it is there.
func (c cluster) Members(ctx context.Context) []rpc.Member {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	state := c.node.file.State()
	if state.ClusterID == "" {
		return nil
	}
	contacts := c.node.membership.ExchangeOnce(ctx, c.node.port)
	var members []rpc.Member
	for _, m := range c.node.membership.Directory().Members() {
		self, contact := m.ID() == state.ID(), contacts[m.ID()]
		members = append(members, rpc.Member{
			NodeID:        m.Name,
			Incarnation:   m.Incarnation,
			PeerAddress:   m.PeerAddress,
			ClientAddress: m.ClientAddress,
			Reachable:     self || contact.Reached,
			Self:          self,
			Trouble:       trouble(m.Name, contact),
		})
	}
	return members
}

// trouble says what is wrong with another member, beyond being out of reach.
func trouble(name string, contact membership.Contact) string {
	switch {
	case contact.Usurped:
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
		problems = append(problems, fmt.Sprintf("This node has less than %d bytes of free disk space and takes no new keys.", c.node.cfg.FreeBytesMin))
	}
	return problems
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
