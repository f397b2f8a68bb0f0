// Package cluster runs several nodes in one testing/synctest bubble: the nodes that
// the program starts, gRPC, Raft and files included, on a network in memory
// (package netsim) and in virtual time.
//
// A test begins with [Start] inside of a bubble, and does to the cluster what befalls
// one: [Cluster.Crash], [Cluster.Handover], the network's cuts, and so on. Each node is
// a host of its own; the tests call from a host "client". When the test ends everything
// is stopped, and the logs are shown if it failed.
//
// # Invariants
//
//  1. Nothing but disk I/O leaves the bubble, and that returns at once.
//  2. A node that was stopped or lost has its directory, and nothing else, left.
//
// # Failures
//
// Whatever goes wrong here fails the test.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/test/netsim"
)

// ClientHost is where the tests call from.
const ClientHost = "client"

const (
	clientPort = ":7420"
	peerPort   = ":7430"
)

// Options say what cluster it is to be.
type Options struct {
	Dir    string             // where the nodes' directories lie; "" is one of the test's own
	Nodes  int                // 3 if zero
	Change func(*node.Config) // may change a node's settings; may be nil
}

// Cluster is the nodes of a test.
type Cluster struct {
	Network *netsim.Network
	Names   []string // n1, n2, …

	t       testing.TB
	options Options
	dir     string
	log     journal

	mu      sync.Mutex
	nodes   map[string]*node.Node    // those that are started
	crashed map[string]chan struct{} // closed when nothing is left of the node
	images  map[string]string        // by node, what its disk was when it was killed
	conns   map[string]*grpc.ClientConn
}

// journal gathers what the nodes log.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements [io.Writer].
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

// Start starts all nodes and returns once they serve.
func Start(t testing.TB, options Options) *Cluster {
	t.Helper()
	if options.Nodes == 0 {
		options.Nodes = 3
	}
	if options.Dir == "" {
		options.Dir = t.TempDir()
	}
	c := &Cluster{
		Network: netsim.New(), t: t, options: options, dir: options.Dir,
		nodes: map[string]*node.Node{}, crashed: map[string]chan struct{}{}, images: map[string]string{}, conns: map[string]*grpc.ClientConn{},
	}
	t.Cleanup(c.close)
	for i := range options.Nodes {
		c.Names = append(c.Names, fmt.Sprintf("n%d", i+1))
	}
	for _, name := range c.Names {
		c.StartNode(name)
	}
	c.Serving()
	return c
}

func (c *Cluster) close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.Network.HealAll()
	for _, name := range c.Names {
		c.StopNode(name)
		c.awaitCrashed(name)
	}
	if c.t.Failed() {
		c.t.Log(c.Log())
	}
}

// Log returns what the nodes have logged.
func (c *Cluster) Log() string {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	return c.log.text.String()
}

// Address is where clients reach a node.
func Address(name string) string { return name + clientPort }

// StartNode starts a node on its directory.
func (c *Cluster) StartNode(name string) {
	c.t.Helper()
	c.awaitCrashed(name)
	host := c.Network.Host(name)
	cfg := node.Default()
	cfg.DataDir, cfg.NodeID = filepath.Join(c.dir, name), name
	cfg.Listen = name + clientPort
	if c.options.Nodes > 1 {
		for _, other := range c.Names {
			cfg.Peers = append(cfg.Peers, peer.Listed{Name: other, Address: other + peerPort})
		}
	}
	cfg.Insecure = true
	cfg.FreeBytes = func(string) (int64, error) { return 1 << 40, nil }
	cfg.ListenOn, cfg.Dial = host.Listen, host.Dial
	cfg.Logger = slog.New(slog.NewTextHandler(&c.log, nil)).With("node", name)
	if c.options.Change != nil {
		c.options.Change(&cfg)
	}
	started, err := node.Start(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatalf("start %s: %v", name, err)
	}
	c.mu.Lock()
	c.nodes[name] = started
	c.mu.Unlock()
}

// Node returns a node, or nil while it is not started.
func (c *Cluster) Node(name string) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// take returns a node that is not counted as started any more, or nil.
func (c *Cluster) take(name string) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	delete(c.nodes, name)
	return n
}

// StopNode stops a node as a supervisor does, and waits for it.
func (c *Cluster) StopNode(name string) {
	c.t.Helper()
	n := c.take(name)
	if n == nil {
		return
	}
	if err := n.Stop(context.Background()); err != nil {
		c.t.Errorf("stop %s: %v", name, err)
	}
}

// Conn returns a connection from the client's host to a node.
func (c *Cluster) Conn(name string) *grpc.ClientConn {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[name]; conn != nil {
		return conn
	}
	conn, err := grpc.NewClient("passthrough:///"+Address(name), append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.Network.Host(ClientHost).Dial),
		// A node that is back is found at once: what is measured is the cluster. One that is
		// away is not dialed for hours while nobody calls.
		grpc.WithIdleTimeout(10*time.Second),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.conns[name] = conn
	return conn
}

// Conns returns connections to all nodes.
func (c *Cluster) Conns() []grpc.ClientConnInterface {
	var all []grpc.ClientConnInterface
	for _, name := range c.Names {
		all = append(all, c.Conn(name))
	}
	return all
}

// Serving waits until every started node knows a leader of every shard.
func (c *Cluster) Serving() {
	c.t.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	for _, name := range c.Names {
		if c.Node(name) == nil {
			continue
		}
		for {
			if n := c.Node(name); n != nil && n.Err() != nil {
				c.t.Fatalf("%s has failed: %v", name, n.Err())
			}
			status, err := c.status(name)
			if err == nil && status.GetHealthy() {
				break
			}
			if time.Now().After(deadline) {
				c.t.Fatalf("%s does not serve: %v, %v", name, status.GetProblems(), err)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func (c *Cluster) status(name string) (*coordinatorv1.ClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	return coordinatorv1.NewAdminServiceClient(c.Conn(name)).ClusterStatus(ctx, &coordinatorv1.ClusterStatusRequest{})
}

// Running returns the names of the nodes that are started, in order.
func (c *Cluster) Running() []string {
	return slices.DeleteFunc(slices.Clone(c.Names), func(name string) bool { return c.Node(name) == nil })
}
