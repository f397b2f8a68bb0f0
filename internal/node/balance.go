package node

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/shard"
)

// shortEvery is the time between two hand-overs of a node that is short of disk space: it
// refuses new keys meanwhile, and so is not to wait for long.
const shortEvery = time.Second

// behindMax is how many entries the node that a shard is handed to may lack.
const behindMax = 1000

// balance hands over, one at a time, what this node leads beyond its share, until ctx
// ends. Shard i prefers node i mod n of the nodes by name, so each shard that moves
// comes to where no other node moves it away from. A node that is short of disk space has
// no share, as long as there is one that is not.
func (n *Node) balance(ctx context.Context) {
	if n.cfg.BalanceEvery == 0 {
		return
	}
	for last := time.Now(); ; last = time.Now() {
		for time.Since(last) < n.cfg.BalanceEvery && (!n.storageFull.Load() || time.Since(last) < shortEvery) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(n.cfg.BalanceEvery, shortEvery)):
			}
		}
		router := n.shards.router.Load()
		var led []shard.Status
		for i := range router.Shards() {
			if replica := router.Replica(i); replica.Leads() {
				led = append(led, replica.Status())
			}
		}
		if len(led) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, n.cfg.BalanceEvery)
		number, to := handover(n.cfg.NodeID, router.Shards(), led, n.short(bounded))
		if to == "" {
			cancel()
			continue
		}
		n.cfg.Logger.Info("leading more than this node's share; handing one shard over", "shard", number, "to", to, "leading", len(led))
		err := router.Replica(number).TransferLeadership(bounded, to)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("could not hand a shard over", "shard", number, "to", to, "error", err)
		}
	}
}

// short are the nodes that say that they are short of disk space, this one among them.
func (n *Node) short(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	short := shortOf(n.membership.ExchangeOnce(ctx, n.port))
	short[n.cfg.NodeID] = n.storageFull.Load()
	return short
}

// shortOf are the nodes that say so in what came of asking them. Two incarnations of one may
// have been asked, of which one answers.
func shortOf(contacts map[raft.ServerID]membership.Contact) map[string]bool {
	short := make(map[string]bool)
	for id, contact := range contacts {
		short[peer.NodeName(id)] = short[peer.NodeName(id)] || contact.StorageFull
	}
	return short
}

// handover picks one of the shards that a node leads and the node to hand it to, or
// "". It hands over only from a node that leads more than its share, to the shard's
// preferred node, and only if that one keeps up and is not short of disk space.
func handover(self string, shards int, led []shard.Status, short map[string]bool) (number int, to string) {
	for _, status := range led {
		nodes := nodesWithShare(self, status, short)
		share := (shards + len(nodes) - 1) / len(nodes)
		if slices.Contains(nodes, self) && len(led) <= share {
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

// nodesWithShare are those, by name, among which a shard is to be led: its voters that are
// not short of disk space, or all of them where every one is.
func nodesWithShare(self string, status shard.Status, short map[string]bool) []string {
	all := []string{self}
	for _, replica := range status.Replicas {
		if replica.Voter && replica.NodeID != self {
			all = append(all, replica.NodeID)
		}
	}
	slices.Sort(all)
	if enough := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return short[name] }); len(enough) > 0 {
		return enough
	}
	return all
}
