package rpc

import (
	"context"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/shard"
)

// Shards is the way to this node's replicas and to the other nodes.
type Shards interface {
	// Shards returns how many there are, 1 or more.
	Shards() int
	// Replica returns this node's replica of a shard, 0 ≤ i < Shards().
	Replica(i int) Replica
	// Call returns a connection to the server for forwarded calls of the node that
	// leads. It does not block. The connection must not retry calls by itself.
	Call(leader shard.Leader) (grpc.ClientConnInterface, error)
}

// Replica is this node's copy of one shard.
type Replica interface {
	// Submit asks the shard. Its errors are those of package actor and the context's.
	Submit(ctx context.Context, request actor.Request) (actor.Reply, error)
	// Leader says who leads, as far as this node knows.
	Leader() shard.Leader
	// LeaderChanged returns a channel that is closed when [Replica.Leader] may say
	// something else than it did before this call.
	LeaderChanged() <-chan struct{}
	// Status describes the shard as this node sees it.
	Status() shard.Status
	// Page returns records in the order of their arrival, from the one after the
	// given sequence on, with every deadline noted that had come before the call. It is
	// for the leader, and confirms that. keep is called with each record and the live
	// time, in one goroutine, and must not keep what it is given. A page may be short
	// while there is more.
	Page(ctx context.Context, after uint64, limit int, keep func(*admission.Record, admission.Time) bool) (
		records []*admission.Record, next uint64, more bool, err error)
	// TransferLeadership hands the shard over to the named node, "" being any. It is
	// for the leader. [shard.ErrNoSuchReplica] reports that the node has no replica.
	TransferLeadership(ctx context.Context, toNode string) error
}

// Router is a node's shards as [Config] wants them.
func Router(r *shard.Router) Shards { return router{r} }

// router differs from what it holds in a type only: a replica is an interface here.
type router struct{ *shard.Router }

// Replica implements [Shards].
func (r router) Replica(i int) Replica { return r.Router.Replica(i) }

// Cluster is what the node knows beyond its shards.
type Cluster interface {
	ID() string      // of the cluster
	NodeID() string  // of this node
	Version() string // of this program, such as "v1.2.0"
	// Members returns the nodes, this one included, in any order.
	Members(ctx context.Context) []Member
	// Problems returns what this node sees wrong beyond shards without a leader
	// and members out of reach, a sentence each.
	Problems(ctx context.Context) []string
}

// Member is one node of the cluster as this one sees it.
type Member struct {
	NodeID        string
	Incarnation   string // "" where not known
	PeerAddress   string
	ClientAddress string // "" where not known
	Reachable     bool
	Self          bool
	Lost          bool   // another incarnation answers in its place, which no shard has taken in
	Trouble       string // what this node sees wrong with it, a sentence; "" for no more than the above
}
