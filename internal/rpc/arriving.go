package rpc

import (
	"net"
	"sync"
)

// Arriving are connections that have come and have not said what for: TLS, or the beginning of
// HTTP/2, is awaited. A server that is stopped would wait for them, each as long as it may take, and
// tell those that are open nothing before. Nothing has been asked over them. The zero value is ready
// to use.
type Arriving struct {
	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Add takes a connection in, and reports whether it did: not after Close.
func (a *Arriving) Add(conn net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.conns == nil {
		a.conns = make(map[net.Conn]struct{})
	}
	a.conns[conn] = struct{}{}
	return true
}

// Remove lets go of one that has said what for, or has ended. It reports whether it was there: one
// that Close has ended is not.
func (a *Arriving) Remove(conn net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, there := a.conns[conn]
	delete(a.conns, conn)
	return there
}

// Close ends all of them, and takes none in any more.
func (a *Arriving) Close() {
	a.mu.Lock()
	conns := a.conns
	a.conns, a.closed = nil, true
	a.mu.Unlock()
	for conn := range conns {
		_ = conn.Close()
	}
}
