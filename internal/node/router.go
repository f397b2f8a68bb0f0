package node

import "github.com/atmostonce/coordinator/internal/shard"

// Router returns this node's replicas, or nil while they are not open. It is for looking
// at what the services do not show, such as the hash of a state; the node closes it.
func (n *Node) Router() *shard.Router { return n.shards.router.Load() }
