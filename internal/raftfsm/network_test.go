package raftfsm

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// network joins the groups of one process by pipes that can be cut.
type network struct {
	mu     sync.Mutex
	layers map[raft.ServerAddress]*pipeLayer
	cut    map[[2]raft.ServerAddress]bool
}

func newNetwork() *network {
	return &network{layers: make(map[raft.ServerAddress]*pipeLayer), cut: make(map[[2]raft.ServerAddress]bool)}
}

var errUnreachable = errors.New("unreachable")

// layer returns a stream layer at the address, in place of a closed one.
func (n *network) layer(at raft.ServerAddress) *pipeLayer {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &pipeLayer{
		network: n, at: at, accepted: make(chan net.Conn), closed: make(chan struct{}),
		connections: make(map[*pipeConn]struct{}),
	}
	n.layers[at] = l
	return l
}

// isolate cuts a server off, or joins it to the others again.
func (n *network) isolate(at raft.ServerAddress, off bool) {
	n.mu.Lock()
	var broken []*pipeConn
	for other, l := range n.layers {
		if other == at {
			continue
		}
		n.cut[[2]raft.ServerAddress{at, other}] = off
		n.cut[[2]raft.ServerAddress{other, at}] = off
		broken = append(broken, l.with(at)...)
	}
	n.mu.Unlock()
	if off {
		for _, conn := range broken {
			conn.Close()
		}
	}
}

// pipeLayer is one server's end of the network.
type pipeLayer struct {
	network  *network
	at       raft.ServerAddress
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once

	mu          sync.Mutex
	connections map[*pipeConn]struct{}
}

func (l *pipeLayer) with(other raft.ServerAddress) (found []*pipeConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.connections {
		if conn.other == other {
			found = append(found, conn)
		}
	}
	return found
}

func (l *pipeLayer) track(conn net.Conn, other raft.ServerAddress) *pipeConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	tracked := &pipeConn{Conn: conn, layer: l, other: other}
	l.connections[tracked] = struct{}{}
	select {
	case <-l.closed:
		_ = conn.Close()
	default:
	}
	return tracked
}

// Dial implements [raft.StreamLayer].
func (l *pipeLayer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	l.network.mu.Lock()
	other, cut := l.network.layers[to], l.network.cut[[2]raft.ServerAddress{l.at, to}]
	l.network.mu.Unlock()
	if other == nil || cut {
		return nil, errUnreachable
	}
	ours, theirs := net.Pipe()
	select {
	case other.accepted <- other.track(theirs, l.at):
		return l.track(ours, to), nil
	case <-other.closed:
	case <-l.closed:
	case <-time.After(timeout):
	}
	_, _ = ours.Close(), theirs.Close()
	return nil, errUnreachable
}

// Accept implements [net.Listener].
func (l *pipeLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener], and closes the connections.
func (l *pipeLayer) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.mu.Lock()
		var open []*pipeConn
		for conn := range l.connections {
			open = append(open, conn)
		}
		l.mu.Unlock()
		for _, conn := range open {
			conn.Close()
		}
	})
	return nil
}

// Addr implements [net.Listener].
func (l *pipeLayer) Addr() net.Addr { return pipeAddr(l.at) }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

type pipeConn struct {
	net.Conn
	layer *pipeLayer
	other raft.ServerAddress
}

func (c *pipeConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.connections, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
