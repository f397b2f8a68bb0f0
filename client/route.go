package client

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/internal/metakey"
)

const (
	// shardsMost is more shards than a cluster has; a hint beyond it is none.
	shardsMost = 1 << 16
	// learnedMost bounds the connections to nodes that are not endpoints. Over it, those
	// that lead nothing are closed.
	learnedMost = 16
	// suspectFor is how long a node that gave no answer is passed over.
	suspectFor = 2 * time.Second
)

// router knows the nodes, and which of them leads the shard of an identity. A wrong
// belief costs one hop and is put right by the answer: any node takes any call.
//
// Once the number of shards is known, from the first answer of all, it computes an
// identity's shard as the nodes do. Leaders are learned from answers, errors included,
// and forgotten when they give none.
type router struct {
	connect       func(address string) (*grpc.ClientConn, error)
	clock         clock
	endpointsOnly bool
	sessions      bool // calls may share a stream

	cluster atomic.Pointer[string] // that this client is for; nil: not known

	mu        sync.Mutex
	endpoints []*clusterNode
	nodes     map[string]*clusterNode // by address, the endpoints included
	first     int                     // the endpoint that is asked first where no leader is known
	shards    int                     // 0: not known
	leaders   map[int]*clusterNode    // by shard
	closed    bool
}

// clusterNode is one node and the one connection to it.
type clusterNode struct {
	address  string
	conn     *grpc.ClientConn
	service  *sharing
	endpoint bool
	strange  atomic.Bool // another cluster has answered here, and that was logged

	// Guarded by the router's mutex.
	calls        int           // in flight
	suspectUntil time.Duration // on the router's clock
}

func newRouter(connect func(string) (*grpc.ClientConn, error), clock clock, endpointsOnly bool) *router {
	return &router{
		connect: connect, clock: clock, endpointsOnly: endpointsOnly,
		nodes: map[string]*clusterNode{}, leaders: map[int]*clusterNode{},
	}
}

// add takes an endpoint in, once.
func (r *router) add(address string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[address] != nil {
		return nil
	}
	n, err := r.node(address)
	if err != nil {
		return err
	}
	n.endpoint = true
	r.endpoints = append(r.endpoints, n)
	// Clients that are started alike do not all come to the same node.
	r.first = rand.IntN(len(r.endpoints)) //nolint:gosec // which one need not be unguessable
	return nil
}

// node returns the node at an address, which is there from now on; r.mu is held.
func (r *router) node(address string) (*clusterNode, error) {
	if n := r.nodes[address]; n != nil {
		return n, nil
	}
	conn, err := r.connect(address)
	if err != nil {
		return nil, err
	}
	n := &clusterNode{address: address, conn: conn, service: newSharing(conn, r.sessions, r.named)}
	r.nodes[address] = n
	return n, nil
}

// pick returns the node to ask about an identity: its shard's leader, or an endpoint; of
// those asked already only when there is no other. It reports whether it begins anew
// because there was no other. The node is given back with done.
func (r *router) pick(id Identity, asked map[*clusterNode]bool) (n *clusterNode, anew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if n != nil {
			n.calls++
		}
	}()
	if r.closed {
		return nil, false
	}
	now := r.clock()
	if r.shards > 0 {
		if n := r.leaders[id.shard(r.shards)]; n != nil && !asked[n] && now >= n.suspectUntil {
			return n, false
		}
	}
	for _, careful := range []bool{true, false} {
		for i := range r.endpoints {
			n := r.endpoints[(r.first+i)%len(r.endpoints)]
			if !asked[n] && (!careful || now >= n.suspectUntil) {
				return n, false
			}
		}
	}
	clear(asked)
	return r.endpoints[r.first%len(r.endpoints)], true
}

// done gives a node back, with what its answer says. A node that gave none is passed
// over for a while.
func (r *router) done(n *clusterNode, header metadata.MD, answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.calls--
	if r.closed {
		return
	}
	if answered {
		n.suspectUntil = 0
		r.learn(header)
		return
	}
	n.suspectUntil = r.clock() + suspectFor
	for shard, leader := range r.leaders {
		if leader == n {
			delete(r.leaders, shard)
		}
	}
	if n.endpoint && r.endpoints[r.first%len(r.endpoints)] == n {
		r.first = (r.first + 1) % len(r.endpoints)
	}
}

// learn takes in what an answer says; r.mu is held.
func (r *router) learn(header metadata.MD) {
	shards, ok := number(header, metakey.Shards, shardsMost+1)
	if !ok || shards < 1 {
		return
	}
	if shards != r.shards { // the first answer, or another cluster behind the same address
		r.shards = shards
		clear(r.leaders)
	}
	shard, ok := number(header, metakey.Shard, shards)
	told := header.Get(metakey.Leader)
	if !ok || len(told) != 1 {
		return
	}
	if r.nodes[told[0]] == nil && (r.endpointsOnly || checkEndpoint(told[0]) != nil || !r.room()) {
		return
	}
	leader, err := r.node(told[0])
	if err != nil {
		return // not to be dialed in plain text, for example: any node forwards
	}
	r.leaders[shard] = leader
}

func number(header metadata.MD, key string, below int) (int, bool) {
	told := header.Get(key)
	if len(told) != 1 {
		return 0, false
	}
	n, err := strconv.Atoi(told[0])
	return n, err == nil && n >= 0 && n < below
}

// room reports whether one more node may be learned, after closing those that lead
// nothing if need be; r.mu is held.
func (r *router) room() bool {
	if len(r.nodes)-len(r.endpoints) < learnedMost {
		return true
	}
	leads := map[*clusterNode]bool{}
	for _, n := range r.leaders {
		leads[n] = true
	}
	for address, n := range r.nodes {
		if !n.endpoint && !leads[n] && n.calls == 0 {
			_ = n.conn.Close()
			delete(r.nodes, address)
		}
	}
	return len(r.nodes)-len(r.endpoints) < learnedMost
}

func (r *router) close() {
	r.mu.Lock()
	nodes := r.nodes
	r.nodes, r.closed = nil, true
	r.mu.Unlock()
	for _, n := range nodes {
		_ = n.conn.Close()
		n.service.close()
	}
}
