package load

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/process"
)

// Cluster is one node or several, with more connections to each.
type Cluster struct {
	*process.Cluster
	Shards int

	connections map[string][]*grpc.ClientConn // by client address
}

// connectionsPerNode spreads many callers over a few connections, as a pool of
// client processes would.
const connectionsPerNode = 4

// Start starts a new cluster of the given size, and waits until every shard serves.
// With more than one node the shards are spread over them first. More arguments are for
// every node.
func Start(t testing.TB, programs process.Programs, size, shards int, more ...string) *Cluster {
	t.Helper()
	c := &Cluster{
		Cluster:     process.Start(t, programs, size, append([]string{"--shards", strconv.Itoa(shards)}, more...)...),
		Shards:      shards,
		connections: make(map[string][]*grpc.ClientConn),
	}
	for _, n := range c.Nodes {
		c.dial(t, n.Client)
	}
	c.AwaitServing(t, 30*time.Second)
	if size > 1 {
		c.Spread(t)
	}
	return c
}

func (c *Cluster) dial(t testing.TB, address string) {
	t.Helper()
	for range connectionsPerNode {
		connection, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{
				// Dialed again without much ado: the other end is on this machine.
				Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		c.connections[address] = append(c.connections[address], connection)
	}
}

// Service returns the i-th connection to a node, modulo their number.
func (c *Cluster) Service(address string, i int) coordinatorv1.CoordinatorServiceClient {
	connections := c.connections[address]
	return coordinatorv1.NewCoordinatorServiceClient(connections[i%len(connections)])
}

// shardList asks the living nodes in turn for the shards.
func (c *Cluster) shardList(ctx context.Context) ([]*coordinatorv1.Shard, error) {
	err := fmt.Errorf("no node runs")
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
		var list *coordinatorv1.ListShardsResponse
		list, err = coordinatorv1.NewAdminServiceClient(c.connections[n.Client][0]).
			ListShards(bounded, &coordinatorv1.ListShardsRequest{})
		cancel()
		if err == nil {
			return list.GetShards(), nil
		}
	}
	return nil, err
}

// List returns the shards as their leaders see them.
func (c *Cluster) List(t testing.TB) []*coordinatorv1.Shard {
	t.Helper()
	shards, err := c.shardList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return shards
}

// Terms returns the Raft term of every shard: an election raises it.
func (c *Cluster) Terms(t testing.TB) []uint64 {
	t.Helper()
	var terms []uint64
	for _, shard := range c.List(t) {
		terms = append(terms, shard.GetTerm())
	}
	return terms
}

// LeaderAddresses returns the client address of every shard's leader.
func (c *Cluster) LeaderAddresses(t testing.TB) []string {
	t.Helper()
	var leaders []string
	for _, shard := range c.List(t) {
		if shard.GetLeaderAddress() == "" {
			t.Fatalf("shard %d has no leader", shard.GetShard())
		}
		leaders = append(leaders, shard.GetLeaderAddress())
	}
	return leaders
}

// AwaitServing waits until every shard has granted a Reserve, through whichever node
// answers, and returns when each first did.
func (c *Cluster) AwaitServing(t testing.TB, within time.Duration) []time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	served := make([]time.Time, c.Shards)
	failures := make(chan error, c.Shards)
	for shard := range c.Shards {
		go func() {
			at, err := c.awaitShard(ctx, shard)
			served[shard] = at
			failures <- err
		}()
	}
	for range c.Shards {
		if err := <-failures; err != nil {
			t.Fatalf("the cluster does not serve: %v", err)
		}
	}
	return served
}

// awaitShard asks every living node in turn for a new key of the shard.
func (c *Cluster) awaitShard(ctx context.Context, shard int) (time.Time, error) {
	last := fmt.Errorf("shard %d: no node runs", shard)
	for try := 0; ctx.Err() == nil; try++ {
		n := c.Nodes[try%len(c.Nodes)]
		if n.Running() {
			bounded, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			_, err := c.Service(n.Client, shard).Reserve(bounded, &coordinatorv1.ReserveRequest{
				Identity: c.KeyOf(shard, "awaited"),
			})
			cancel()
			if err == nil {
				return time.Now(), nil
			}
			last = fmt.Errorf("shard %d through %s: %w", shard, n.Name, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Time{}, last
}

// KeyOf returns a new identity that belongs to the shard.
func (c *Cluster) KeyOf(shard int, prefix string) *coordinatorv1.Identity {
	for {
		id := &coordinatorv1.Identity{Key: prefix + "-" + rand.Text()}
		if c.ShardOf(id) == shard {
			return id
		}
	}
}

// ShardOf returns the shard of an identity.
func (c *Cluster) ShardOf(id *coordinatorv1.Identity) int {
	namespace := id.GetNamespace()
	if namespace == "" {
		namespace = admission.DefaultNamespace
	}
	return admission.Identity{
		Namespace: namespace, Principal: id.GetPrincipal(), Operation: id.GetOperation(), Key: id.GetKey(),
	}.Shard(c.Shards)
}

// Spread hands the shards to the nodes in turn, so that what is measured does not
// depend on who won the first elections.
func (c *Cluster) Spread(t testing.TB) {
	t.Helper()
	var last error
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		amiss := false
		for _, shard := range c.List(t) {
			number := shard.GetShard()
			want := c.Nodes[int(number)%len(c.Nodes)]
			if shard.GetLeader() == want.Name {
				continue
			}
			amiss = true
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			_, err := coordinatorv1.NewAdminServiceClient(c.connections[want.Client][0]).TransferLeadership(ctx,
				&coordinatorv1.TransferLeadershipRequest{Shard: &number, ToNode: want.Name})
			cancel()
			if err != nil {
				last = fmt.Errorf("handing shard %d to %s: %w", number, want.Name, err)
			}
		}
		if !amiss {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the shards could not be spread over the nodes: %v", last)
}
