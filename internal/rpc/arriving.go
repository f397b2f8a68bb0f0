package rpc

import (
	"net"
	"sync"

	"golang.org/x/net/http2"
)

// Arriving are connections that have come and have not said what for: TLS, or the beginning of
// HTTP/2 up to the client's settings, is awaited. A server that is stopped would wait for them, each as long as it may take, and
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

// What a client says first: that it speaks HTTP/2, and its settings in one frame. gRPC takes no
// longer frames than frameBytesMax, and nothing else as the first.
const (
	prefaceBytes     = len(http2.ClientPreface)
	frameHeaderBytes = 9
	frameBytesMax    = 16 << 10
)

// beginning is how much has come of what a client says first, which is no more than
// prefaceBytes + frameHeaderBytes + frameBytesMax. It is for who reads.
type beginning struct {
	came   int // bytes; no longer counted once it has come
	header [frameHeaderBytes]byte
	whole  bool
}

// ends takes what comes next, in whatever pieces, and reports whether the beginning ends in it. What
// gRPC will refuse never ends: gRPC may wait for more of it first, such as the rest of headers.
func (b *beginning) ends(next []byte) bool {
	if b.whole {
		return false
	}
	for at := b.came - prefaceBytes; at < frameHeaderBytes && len(next) > 0; at++ {
		if at >= 0 {
			b.header[at] = next[0]
		}
		next = next[1:]
		b.came++
	}
	b.came += len(next)
	length := int(b.header[0])<<16 | int(b.header[1])<<8 | int(b.header[2])
	b.whole = b.came >= prefaceBytes+frameHeaderBytes+length &&
		length <= frameBytesMax && http2.FrameType(b.header[3]) == http2.FrameSettings
	return b.whole
}
