package node

import (
	"context"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/internal/shard"
)

// behindMax is how many entries the node that a shard is handed to may lack.
const behindMax = 1000

// balance hands over, one at a time, what this node leads beyond its share, until ctx
// ends. Shard i prefers node i mod n of the nodes by name, so each shard that moves
// comes to where no other node moves it away from.
func (n *Node) balance(ctx context.Context) {
	if n.cfg.BalanceEvery == 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.cfg.BalanceEvery):
		}
		router := n.shards.router.Load()
		var led []shard.Status
		for i := range router.Shards() {
			if replica := router.Replica(i); replica.Leads() {
				led = append(led, replica.Status())
			}
		}
		number, to := handover(n.cfg.NodeID, router.Shards(), led)
		if to == "" {
			continue
		}
		n.cfg.Logger.Info("leading more than this node's share; handing one shard over", "shard", number, "to", to, "leading", len(led))
		bounded, cancel := context.WithTimeout(ctx, n.cfg.BalanceEvery)
		err := router.Replica(number).TransferLeadership(bounded, to)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("could not hand a shard over", "shard", number, "to", to, "error", err)
		}
	}
}

// handover picks one of the shards that a node leads and the node to hand it to, or
// "". It hands over only from a node that leads more than its share, to the shard's
// preferred node, and only if that one keeps up.
func handover(self string, shards int, led []shard.Status) (number int, to string) {
	for _, status := range led {
		var nodes []string
		for _, replica := range status.Replicas {
			if replica.Voter && replica.NodeID != self {
				nodes = append(nodes, replica.NodeID)
			}
		}
		nodes = append(nodes, self)
		slices.Sort(nodes)
		share := (shards + len(nodes) - 1) / len(nodes)
		if len(led) <= share {
			return 0, ""
		}
		preferred := nodes[status.Shard%len(nodes)]
		if preferred == self {
			continue
		}
		for _, replica := range status.Replicas {
			if replica.NodeID == preferred && replica.Voter && replica.Behind <= behindMax &&
				replica.LastContact >= 0 && replica.LastContact < 5*time.Second {
				return status.Shard, preferred
			}
		}
	}
	return 0, ""
}
