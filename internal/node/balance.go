package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
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
// comes to where no other node moves it away from. A node that is short of disk space, or
// did not take over what it was handed, has no share, as long as there is one that is well.
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
		unfit := n.short(bounded)
		n.declined.mark(unfit, time.Now())
		number, to := handover(n.cfg.NodeID, router.Shards(), led, unfit)
		if to == "" {
			cancel()
			continue
		}
		n.cfg.Logger.Info("leading more than this node's share; handing one shard over", "shard", number, "to", to, "leading", len(led))
		err := router.Replica(number).TransferLeadership(bounded, to)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.declined.forget(to)
		default:
			pause := n.declined.note(to, time.Now(), n.cfg.BalanceEvery)
			n.cfg.Logger.Warn("could not hand a shard over", "shard", number, "to", to, "error", err, "not_again_for", pause)
		}
	}
}

// declined are the nodes that have not taken over what they were handed. One that hears this node,
// and is not heard by the others, keeps up with its shards like any other: and while it is handed
// one of them, that has no leader. So it has no share for a while, each time for twice as long, up
// to declinedMax times BalanceEvery.
type declined struct {
	mu    sync.Mutex
	nodes map[string]refusal
}

type refusal struct {
	times int // in a row
	until time.Time
}

const declinedMax = 64

// note notes that a node has not taken a shard over, and returns for how long it is left alone.
func (d *declined) note(node string, now time.Time, every time.Duration) (pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes == nil {
		d.nodes = make(map[string]refusal)
	}
	times := d.nodes[node].times + 1
	pause = every * time.Duration(min(declinedMax, 1<<min(times, 30)))
	d.nodes[node] = refusal{times, now.Add(pause)}
	return pause
}

// forget notes that a node has taken a shard over.
func (d *declined) forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nodes, node)
}

// mark adds those that are left alone at the moment.
func (d *declined) mark(unfit map[string]bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for node, r := range d.nodes {
		if now.Before(r.until) {
			unfit[node] = true
		}
	}
}

// problems says, by name, which nodes did not take over what they were handed last.
func (d *declined) problems() (told []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(d.nodes)) {
		told = append(told, fmt.Sprintf(
			"Node %s was handed a shard and did not take it over, %d times in a row: it may not reach the others. Its own status says whom it reaches.",
			node, d.nodes[node].times))
	}
	return told
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
// preferred node, and only if that one keeps up and is not unfit.
func handover(self string, shards int, led []shard.Status, unfit map[string]bool) (number int, to string) {
	for _, status := range led {
		nodes := nodesWithShare(self, status, unfit)
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
// not unfit, or all of them where every one is.
func nodesWithShare(self string, status shard.Status, unfit map[string]bool) []string {
	all := []string{self}
	for _, replica := range status.Replicas {
		if replica.Voter && replica.NodeID != self {
			all = append(all, replica.NodeID)
		}
	}
	slices.Sort(all)
	if enough := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return unfit[name] }); len(enough) > 0 {
		return enough
	}
	return all
}
