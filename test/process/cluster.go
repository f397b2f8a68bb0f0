package process

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// Cluster is the nodes of one test: n1, n2, …
type Cluster struct {
	Nodes    []*Node
	Programs Programs
}

// tailBytes is how much of each node's output is shown when a test fails.
const tailBytes = 16 << 10

// New prepares nodes without starting them. A single one is a cluster of its own
// without a peer port; several have each other as --peers. More arguments are for every
// node.
func New(t testing.TB, programs Programs, count int, more ...string) *Cluster {
	t.Helper()
	return NewBehind(t, programs, count, nil, more...)
}

// NewBehind is [New] for nodes whose peer ports are reached through something in
// between: behind is told a node's name and where its peer port listens, and returns the
// host:port that all nodes have for it in --peers. Nil stands for nothing in between.
func NewBehind(t testing.TB, programs Programs, count int, behind func(name, listens string) (string, error), more ...string) *Cluster {
	t.Helper()
	c := &Cluster{Programs: programs}
	dir := t.TempDir()
	free := ports{given: make(map[int]bool)}
	address := func() string {
		address, err := free.take()
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	var peers []string
	for i := range count {
		name := fmt.Sprintf("n%d", i+1)
		n := &Node{
			Name: name, Dir: filepath.Join(dir, name), Client: address(), Peer: address(),
			program: programs.Coordinator, output: filepath.Join(dir, name+".log"),
		}
		conn, err := grpc.NewClient("passthrough:///"+n.Client, grpc.WithTransportCredentials(insecure.NewCredentials()),
			// A node that was killed is dialed again soon.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}))
		if err != nil {
			t.Fatal(err)
		}
		n.conn = conn
		c.Nodes = append(c.Nodes, n)
		reached := n.Peer
		if behind != nil {
			if reached, err = behind(name, n.Peer); err != nil {
				t.Fatal(err)
			}
		}
		peers = append(peers, name+"="+reached)
	}
	for _, n := range c.Nodes {
		n.arguments = append([]string{"--node-id", n.Name, "--data-dir", n.Dir, "--listen", n.Client}, more...)
		if count > 1 {
			n.arguments = append(n.arguments, "--peers", strings.Join(peers, ","))
		}
		if behind != nil {
			n.arguments = append(n.arguments, "--peer-listen", n.Peer)
		}
	}
	t.Cleanup(func() { c.end(t) })
	return c
}

// Start starts nodes and returns once all of them serve.
func Start(t testing.TB, programs Programs, count int, more ...string) *Cluster {
	t.Helper()
	c := New(t, programs, count, more...)
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Serving(time.Minute); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Cluster) end(t testing.TB) {
	for _, n := range c.Nodes {
		if err := n.end(); err != nil {
			t.Error(err)
		}
		if n.conn != nil {
			_ = n.conn.Close()
		}
		output := n.Output()
		// The race detector of a node that was killed has already spoken.
		if strings.Contains(output, "WARNING: DATA RACE") || strings.Contains(output, "\npanic: ") || strings.Contains(output, "\nfatal error: ") {
			t.Errorf("%s had a data race or a panic", n.Name)
		}
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", n.Name, tail(output))
		}
	}
}

func tail(text string) string {
	if len(text) > tailBytes {
		return "…" + text[len(text)-tailBytes:]
	}
	return text
}

// Serving waits until every running node knows a leader of every shard.
func (c *Cluster) Serving(within time.Duration) error {
	deadline := time.Now().Add(within)
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		if err := n.Serving(time.Until(deadline)); err != nil {
			return err
		}
	}
	return nil
}

// Endpoints returns where the gRPC services of the nodes are, running or not.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, n := range c.Nodes {
		endpoints = append(endpoints, n.Client)
	}
	return endpoints
}

// Leaders returns how many shards each running node leads, by the first answer in which
// every shard has a leader.
func (c *Cluster) Leaders(within time.Duration) (map[*Node]int, error) {
	var last error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(pollEvery) {
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			leads, err := c.askLeaders(n)
			if err == nil {
				return leads, nil
			}
			last = err
		}
	}
	return nil, fmt.Errorf("no node knows a leader of every shard after %v: %w", within, last)
}

func (c *Cluster) askLeaders(asked *Node) (map[*Node]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	answer, err := coordinatorv1.NewAdminServiceClient(asked.conn).ListShards(ctx, &coordinatorv1.ListShardsRequest{})
	if err != nil {
		return nil, err
	}
	leads := make(map[*Node]int)
	for _, shard := range answer.GetShards() {
		leader := c.Node(shard.GetLeader())
		if leader == nil || !leader.Running() {
			return nil, fmt.Errorf("shard %d has leader %q", shard.GetShard(), shard.GetLeader())
		}
		leads[leader]++
	}
	return leads, nil
}

// LeaderOfMost returns the node that leads the most shards.
func (c *Cluster) LeaderOfMost(within time.Duration) (*Node, error) {
	leads, err := c.Leaders(within)
	if err != nil {
		return nil, err
	}
	var most *Node
	for _, n := range c.Nodes {
		if leads[n] > 0 && (most == nil || leads[n] > leads[most]) {
			most = n
		}
	}
	return most, nil
}

// Node returns the node of a name, or nil.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}
