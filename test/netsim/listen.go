package netsim

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// backlog is how many connections may wait to be accepted.
const backlog = 1024

// listener accepts what is dialed to its address.
type listener struct {
	host    *Host
	address Address
	waiting chan *conn
	once    sync.Once
	closed  chan struct{}
}

// Listen opens a listener on host:port; the host is this one's name or empty, and
// port 0 is a free one. The kind of network is ignored.
func (h *Host) Listen(_, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	if host != "" && host != h.name {
		return nil, fault("listen", Address(address), syscall.EADDRNOTAVAIL)
	}
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		port = n.freePort()
	}
	full := net.JoinHostPort(h.name, port)
	if n.listeners[full] != nil {
		return nil, fault("listen", Address(full), syscall.EADDRINUSE)
	}
	l := &listener{host: h, address: Address(full), waiting: make(chan *conn, backlog), closed: make(chan struct{})}
	n.listeners[full] = l
	return l, nil
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
	case c := <-l.waiting:
		return c, nil
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: net.ErrClosed}
}

// Addr implements [net.Listener].
func (l *listener) Addr() net.Addr { return l.address }

// Close implements [net.Listener]. What was not accepted yet is broken.
func (l *listener) Close() error {
	first := false
	l.once.Do(func() {
		first = true
		n := l.host.network
		n.mu.Lock()
		delete(n.listeners, string(l.address))
		close(l.closed)
		n.mu.Unlock()
		for {
			select {
			case c := <-l.waiting:
				c.in.abort()
				c.out.abort()
				_ = c.Close()
				continue
			default:
			}
			return
		}
	})
	if !first {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.address, Err: net.ErrClosed}
	}
	return nil
}

// Dial connects to an address of the network. Where the link is cut, either way, it
// waits until it is healed or the context ends.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	n := h.network
	there, back := way{h.name, host}, way{host, h.name}
	for {
		if ctx.Err() != nil {
			return nil, abandoned(ctx, address)
		}
		n.mu.Lock()
		changed := n.changed
		open := h.name == host || !n.link(there).cut && !n.link(back).cut
		trip := n.delay(n.link(there)) + n.delay(n.link(back))
		n.mu.Unlock()
		if !open {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, abandoned(ctx, address)
			}
		}
		if h.name == host || trip == 0 {
			return h.connect(address)
		}
		timer := time.NewTimer(trip)
		select {
		case <-timer.C:
			return h.connect(address)
		case <-changed: // it may have been cut on the way: start over
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil, abandoned(ctx, address)
		}
	}
}

// connect makes a connection to the listener that is there at this moment.
func (h *Host) connect(address string) (net.Conn, error) {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[address]
	if l == nil || len(l.waiting) == backlog {
		return nil, fault("dial", Address(address), syscall.ECONNREFUSED)
	}
	near, far := connection(n, h.name, l.host.name, Address(net.JoinHostPort(h.name, n.freePort())), l.address)
	near.number, near.dialed = n.port, true
	n.conns[near], n.conns[far] = struct{}{}, struct{}{}
	l.waiting <- far // there is room, and only who holds the mutex fills it
	return near, nil
}

func abandoned(ctx context.Context, address string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: Address(address), Err: ctx.Err()}
}
