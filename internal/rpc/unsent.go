package rpc

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	protobuf "google.golang.org/protobuf/proto"
)

// A call is small and its answer may be large, and gRPC takes an answer from its
// handler whether or not the client reads: a message is queued whole once a stream
// has a byte of quota left, and the call is over then, as handlers and stats see it.
// So large answers are counted, from before they are read or made until gRPC has
// written them out and frees the buffer that they were encoded into. What is over the
// node's bound is refused, and only what has not been carried out is refused: calls
// that read, and replays.
//
// What a connection had queued when it broke is not freed by gRPC but dropped. The end
// of the connection gives it back.

// unsentFree is the size up to which an answer is not counted, in bytes. It is more than
// any answer has that says what was carried out, and more than what gRPC takes from no
// pool, whose end nobody hears of.
const unsentFree = 4 << 10

// unsent bounds the bytes of answers that are not sent yet.
type unsent struct {
	most  int64
	bytes atomic.Int64
}

// grow adds to a share of the bytes, unless they become too many. There is room for one
// share, however large.
func (u *unsent) grow(share, by, most int64) bool {
	for {
		bytes := u.bytes.Load()
		if bytes > share && bytes+by > most {
			return false
		}
		if u.bytes.CompareAndSwap(bytes, bytes+by) {
			return true
		}
	}
}

// link is what is known of one connection: what it holds, of which a half of the node's
// is the most, so that no single client keeps the others from their answers.
type link struct {
	unsent
	sessions int // that are open; the [workers] guard it

	mu     sync.Mutex
	queued map[*held]struct{} // in gRPC's hands
}

// held is what the answer to one call holds.
type held struct {
	node *unsent
	link *link

	mu    sync.Mutex
	bytes int64
	ended bool
}

type heldKey struct{}

// heldBy returns what the call's answer holds.
func heldBy(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// room makes what is held at least so many bytes, or reports that there is no room.
func (h *held) room(bytes int) bool {
	if bytes <= unsentFree {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	by := int64(bytes) - h.bytes
	switch {
	case h.ended:
		return false // the caller has gone
	case by <= 0:
		return true
	case !h.link.grow(h.bytes, by, h.node.most/2):
		return false
	case !h.node.grow(h.bytes, by, h.node.most):
		h.link.bytes.Add(-by)
		return false
	}
	h.bytes += by
	return true
}

// settle makes what is held the size that the answer has in fact, and reports whether
// that is still something. What is in memory already is counted, room or not.
func (h *held) settle(bytes int) bool {
	if bytes <= unsentFree {
		h.end()
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.bytes == 0 {
		return false
	}
	by := int64(bytes) - h.bytes
	h.bytes += by
	h.link.bytes.Add(by)
	h.node.bytes.Add(by)
	return true
}

// end gives back what is held, once.
func (h *held) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.bytes != 0 {
		h.link.bytes.Add(-h.bytes)
		h.node.bytes.Add(-h.bytes)
		h.bytes = 0
	}
}

// answered is an answer on its way to the codec, with what it holds.
type answered struct {
	protobuf.Message
	held *held
}

// encode is what the codec makes of it. The buffer gives back what is held as soon as
// gRPC frees it.
func (a answered) encode() (mem.BufferSlice, error) {
	size := protobuf.Size(a.Message)
	options := protobuf.MarshalOptions{UseCachedSize: true}
	if !a.held.settle(size) {
		plain, err := options.Marshal(a.Message)
		return mem.BufferSlice{mem.SliceBuffer(plain)}, err
	}
	buffer, err := options.MarshalAppend(make([]byte, 0, size), a.Message)
	if err != nil {
		a.held.end()
		return nil, err
	}
	a.held.link.add(a.held)
	return mem.BufferSlice{mem.NewBuffer(&buffer, heldPool{a.held})}, nil
}

// heldPool is where one buffer goes to. It is not used again: gRPC's own pool gives out
// buffers many times as large as what they are for, which would not be counted.
type heldPool struct{ held *held }

// Get implements mem.BufferPool.
func (heldPool) Get(length int) *[]byte {
	buffer := make([]byte, length)
	return &buffer
}

// Put implements mem.BufferPool.
func (p heldPool) Put(*[]byte) {
	p.held.link.remove(p.held)
	p.held.end()
}

func (l *link) add(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued == nil {
		l.queued = make(map[*held]struct{})
	}
	l.queued[h] = struct{}{}
}

func (l *link) remove(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.queued, h)
}

// broken gives back what was queued for a connection that is no more. gRPC queues
// nothing after that: an answer that comes later is freed by the usual way.
func (l *link) broken() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.queued {
		h.end()
	}
	clear(l.queued)
}

// linking makes a [link] of every connection of a server: for the calls that come over
// it to find, and to be told when it breaks. It is what a server hands its connections
// to before it uses them. gRPC's stats would tell both too, at the price of an eighth
// more memory for each call.
type linking struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (l linking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := l.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return linkedConn{conn, raw, &link{}}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (l linking) Clone() credentials.TransportCredentials {
	return linking{l.TransportCredentials.Clone()}
}

type linkedConn struct {
	net.Conn
	raw  net.Conn // below the credentials
	link *link
}

// Close implements net.Conn. gRPC takes no more for the connection before it closes it. TLS would
// take up to 5 s to say goodbye to a client that does not read, and HTTP/2 has ends of its own.
func (c linkedConn) Close() error {
	err := c.raw.Close()
	c.link.broken()
	return err
}

// RemoteAddr implements net.Conn. It is what a call knows of its connection.
func (c linkedConn) RemoteAddr() net.Addr { return linkedAddr{c.Conn.RemoteAddr(), c.link} }

type linkedAddr struct {
	net.Addr
	link *link
}

// linkOf returns the connection that a call came over.
func linkOf(ctx context.Context) *link {
	if from, ok := peer.FromContext(ctx); ok {
		if address, ok := from.Addr.(linkedAddr); ok {
			return address.link
		}
	}
	return &link{} // a server without the options: what breaks with a connection is lost
}
