package netsim

import (
	"cmp"
	"math/rand/v2"
	"net"
	"os"
	"slices"
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
	random    *rand.Rand         // what delays are drawn from
}

// way is from one host to another.
type way struct{ from, to string }

func (w way) back() way { return way{w.to, w.from} }

// link is the state of a way. The network's mutex guards it.
type link struct {
	cut     bool
	latency time.Duration
	jitter  time.Duration // what is added to it at most
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
		random:    seeded(0),
	}
}

// Seed says where the delays of [Network.Jitter] are drawn from. Which of them meets
// which write depends on the order in which goroutines run.
func (n *Network) Seed(seed uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.random = seeded(seed)
}

func seeded(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // delays are no secrets, and come again with their seed
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

// Jitter is how much longer than the latency it takes at most, drawn anew for each write
// and each dial: what goes over one connection keeps its order and overtakes what goes
// over another.
func (n *Network) Jitter(from, to string, most time.Duration) {
	n.change(from, to, func(l *link) { l.jitter = most })
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

// Rejoin heals every link of a host, both ways.
func (n *Network) Rejoin(name string) {
	n.mu.Lock()
	for w, l := range n.links {
		if w.from == name || w.to == name {
			l.cut = false
		}
	}
	n.announce()
	n.mu.Unlock()
	n.wake()
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

// SeverOne breaks one of the connections between two hosts, at both ends: the one of
// that place, modulo their number, in the order in which they were dialed.
func (n *Network) SeverOne(a, b string, place int) {
	between := n.all(func(c *conn) bool { return c.dialed && (c.way == way{a, b} || c.way == way{b, a}) })
	if len(between) == 0 {
		return
	}
	slices.SortFunc(between, func(x, y *conn) int { return cmp.Compare(x.number, y.number) })
	one := between[place%len(between)]
	one.in.abort()
	one.out.abort()
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

// up returns whether what is sent on the way arrives.
func (n *Network) up(w way) bool {
	if w.from == w.to {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.link(w).cut
}

// state returns whether what is sent on the way arrives, and how long that takes.
func (n *Network) state(w way) (up bool, latency time.Duration) {
	if w.from == w.to {
		return true, 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.link(w)
	return !l.cut, n.delay(l)
}

// delay draws how long something takes; n.mu is held.
func (n *Network) delay(l *link) time.Duration {
	if l.jitter <= 0 {
		return l.latency
	}
	return l.latency + time.Duration(n.random.Int64N(int64(l.jitter)))
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
