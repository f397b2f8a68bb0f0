package netsim

import (
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Network is hosts and the links between them.
type Network struct {
	mu        sync.Mutex
	hosts     map[string]*Host
	links     map[way]*link
	listeners map[string]*listener
	conns     map[*conn]struct{} // both ends of each
	changed   chan struct{}      // closed and replaced whenever a link changes
	port      int                // the last that was given out
}

// way is from one host to another.
type way struct{ from, to string }

// link is the state of a way. The network's mutex guards it.
type link struct {
	cut     bool
	latency time.Duration
}

// Host is one machine of the network.
type Host struct {
	network *Network
	name    string
}

// Address is a host:port of the network.
type Address string

// Network implements [net.Addr].
func (Address) Network() string { return "tcp" }

// String implements [net.Addr].
func (a Address) String() string { return string(a) }

// New returns a network without hosts.
func New() *Network {
	return &Network{
		hosts:     map[string]*Host{},
		links:     map[way]*link{},
		listeners: map[string]*listener{},
		conns:     map[*conn]struct{}{},
		changed:   make(chan struct{}),
		port:      49151,
	}
}

// Host returns the host of that name, which is there from now on.
func (n *Network) Host(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[name] == nil {
		n.hosts[name] = &Host{network: n, name: name}
	}
	return n.hosts[name]
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Cut stops whatever is sent on the way from one host to another.
func (n *Network) Cut(from, to string) { n.change(from, to, func(l *link) { l.cut = true }) }

// Heal lets arrive again what is sent on the way, what was held included.
func (n *Network) Heal(from, to string) { n.change(from, to, func(l *link) { l.cut = false }) }

// Latency is how long what is sent on the way from now on takes to arrive.
func (n *Network) Latency(from, to string, latency time.Duration) {
	n.change(from, to, func(l *link) { l.latency = latency })
}

// Partition cuts both ways between each host of one side and each of the other.
func (n *Network) Partition(side, other []string) {
	for _, a := range side {
		for _, b := range other {
			n.Cut(a, b)
			n.Cut(b, a)
		}
	}
}

// Isolate cuts a host off from all others, both ways.
func (n *Network) Isolate(name string) {
	n.mu.Lock()
	var others []string
	for other := range n.hosts {
		if other != name {
			others = append(others, other)
		}
	}
	n.mu.Unlock()
	n.Partition([]string{name}, others)
}

// HealAll heals every link.
func (n *Network) HealAll() {
	n.mu.Lock()
	for _, l := range n.links {
		l.cut = false
	}
	n.announce()
	n.mu.Unlock()
	n.wake()
}

// Sever breaks every connection between two hosts, at both ends and at once.
func (n *Network) Sever(a, b string) {
	n.reset(func(c *conn) bool {
		return c.way == way{a, b} || c.way == way{b, a}
	})
}

// Crash breaks every connection of the host and closes its listeners. It may
// listen and dial again.
func (h *Host) Crash() {
	n := h.network
	n.mu.Lock()
	var mine []*listener
	for _, l := range n.listeners {
		if l.host == h {
			mine = append(mine, l)
		}
	}
	n.mu.Unlock()
	for _, l := range mine {
		_ = l.Close()
	}
	n.reset(func(c *conn) bool { return c.way.from == h.name || c.way.to == h.name })
}

// Connections returns how many connections are open, each counted once.
func (n *Network) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return (len(n.conns) + 1) / 2
}

func (n *Network) change(from, to string, change func(*link)) {
	n.mu.Lock()
	change(n.link(way{from, to}))
	n.announce()
	n.mu.Unlock()
	n.wake()
}

// link returns the state of a way; n.mu is held.
func (n *Network) link(w way) *link {
	l := n.links[w]
	if l == nil {
		l = &link{}
		n.links[w] = l
	}
	return l
}

// announce wakes whoever is dialing; n.mu is held.
func (n *Network) announce() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// state returns whether what is sent on the way arrives, and how long that takes.
func (n *Network) state(w way) (up bool, latency time.Duration) {
	if w.from == w.to {
		return true, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(w)
	return !l.cut, l.latency
}

// wake lets every connection look at its link again.
func (n *Network) wake() {
	for _, c := range n.all(func(*conn) bool { return true }) {
		c.in.wake()
		c.out.wake()
	}
}

func (n *Network) reset(which func(*conn) bool) {
	for _, c := range n.all(which) {
		c.in.abort()
		c.out.abort()
	}
}

func (n *Network) all(which func(*conn) bool) []*conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*conn
	for c := range n.conns {
		if which(c) {
			all = append(all, c)
		}
	}
	return all
}

// freePort returns a port that nobody has had; n.mu is held.
func (n *Network) freePort() string {
	n.port++
	return strconv.Itoa(n.port)
}

func fault(op string, address Address, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: address, Err: os.NewSyscallError(op, errno)}
}
