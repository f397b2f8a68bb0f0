package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

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
//
// A client that takes nothing keeps what it holds for as long as its connection lasts, and one that
// takes one and asks for another does so as well. Where that leaves the others no room, the
// connection is ended once nothing large has been taken over it for answersStalledMax, or a large
// one has not been for answersOldMax.

// unsentFree is the size up to which an answer is not counted, in bytes. It is more than
// any answer has that says what was carried out, and more than what gRPC takes from no
// pool, whose end nobody hears of.
const unsentFree = 4 << 10

// answersStalledMax is how long a connection keeps others from their answers without that a
// large one is taken over it.
const answersStalledMax = 10 * time.Second

// answersOldMax is how long one answer keeps others from theirs, whatever is taken meanwhile. By
// default a connection has room for 32 MiB, which a client takes in it at 1.1 MiB/s.
const answersOldMax = 3 * answersStalledMax

// amount is of bytes of answers that are not sent yet.
type amount struct{ bytes atomic.Int64 }

// grow adds to a share of the bytes, unless they become too many. There is room for one
// share, however large.
func (a *amount) grow(share, by, most int64) bool {
	for {
		bytes := a.bytes.Load()
		if bytes > share && bytes+by > most {
			return false
		}
		if a.bytes.CompareAndSwap(bytes, bytes+by) {
			return true
		}
	}
}

// unsent bounds the bytes of answers of a node that are not sent yet.
type unsent struct {
	amount
	most   int64
	logger *slog.Logger

	mu     sync.Mutex // also for what the links have queued
	links  map[*link]struct{}
	looked time.Time
}

func newUnsent(most int64) *unsent {
	return &unsent{most: most, logger: slog.New(slog.DiscardHandler), links: make(map[*link]struct{})}
}

// link is what is known of one connection: what it holds, of which a half of the node's
// is the most, so that no single client keeps the others from their answers.
type link struct {
	amount
	sessions int    // that are open; the [workers] guard it
	hangUp   func() // ends the connection

	waits atomic.Pointer[waits] // of each crowd that it has joined
	looks atomic.Int64          // streams that are open, of services that only show something
	ended atomic.Bool

	node   atomic.Pointer[unsent] // that has it among its links; nil before it ever was
	queued map[*held]time.Time    // that are done and wait to be taken, and since when
	moved  time.Time              // when the first of these came, or one before them was taken
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
	case !h.node.hold(h.bytes, by):
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

// done notes that an answer is there that gRPC is to have once it has taken those before it.
func (h *held) done() {
	h.mu.Lock()
	holds := h.bytes != 0
	h.mu.Unlock()
	if holds {
		h.queue()
	}
}

// end gives back what is held, once.
func (h *held) end() {
	h.mu.Lock()
	bytes := h.bytes
	h.bytes, h.ended = 0, true
	h.mu.Unlock()
	if bytes != 0 {
		h.leave()
		h.link.bytes.Add(-bytes)
		h.node.bytes.Add(-bytes)
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
	a.held.queue()
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
	p.held.taken()
	p.held.end()
}

// queue notes that an answer waits to be taken. It may have waited before.
func (h *held) queue() {
	u, l := h.node, h.link
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if len(l.queued) == 0 {
		l.queued, l.moved = make(map[*held]time.Time), now
		l.node.Store(u)
		u.links[l] = struct{}{}
	}
	if _, waits := l.queued[h]; !waits {
		l.queued[h] = now
	}
}

// taken notes that it has been sent.
func (h *held) taken() {
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	h.link.moved = time.Now()
}

// leave notes that it waits no longer, if it did.
func (h *held) leave() {
	u, l := h.node, h.link
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(l.queued, h); len(l.queued) == 0 {
		delete(u.links, l)
	}
}

// broken gives back what was queued for a connection that is no more. gRPC queues
// nothing after that: an answer that comes later is freed by the usual way.
func (l *link) broken() {
	u := l.node.Load()
	if u == nil {
		return
	}
	u.mu.Lock()
	dropped := l.queued
	l.queued = nil
	delete(u.links, l)
	u.mu.Unlock()
	for h := range dropped {
		h.end()
	}
}

// hold adds to a share of the bytes, unless they become too many, where nothing can be freed.
func (u *unsent) hold(share, by int64) bool {
	return u.grow(share, by, u.most) || u.free() && u.grow(share, by, u.most)
}

// free ends the connections over which nothing was taken for too long, or something was not, and
// reports whether there were some. It looks once a second, at as many answers as are over unsentFree
// and find room.
func (u *unsent) free() (some bool) {
	u.mu.Lock()
	now := time.Now()
	var stalled []*link
	if now.Sub(u.looked) >= time.Second {
		u.looked = now
		for l := range u.links {
			if l.hangUp != nil && l.stalled(now) {
				stalled = append(stalled, l)
			}
		}
	}
	u.mu.Unlock()
	for _, l := range stalled {
		l.hangUp()
	}
	if len(stalled) > 0 {
		u.logger.Warn("ended connections over which answers were not taken: there was no room for those of others",
			"connections", len(stalled), "unsent_bytes_max", u.most)
	}
	return len(stalled) > 0
}

// stalled reports whether others have waited for the client for long enough.
func (l *link) stalled(now time.Time) bool {
	if now.Sub(l.moved) >= answersStalledMax {
		return true
	}
	for _, since := range l.queued {
		if now.Sub(since) >= answersOldMax {
			return true
		}
	}
	return false
}

// linking makes a [link] of every connection of a server: for the calls that come over
// it to find, and to be told when it breaks. It is what a server hands its connections
// to before it uses them. gRPC's stats would tell both too, at the price of an eighth
// more memory for each call.
type linking struct {
	credentials.TransportCredentials
	arriving *Arriving
}

// ServerHandshake implements credentials.TransportCredentials.
func (l linking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !l.arriving.Add(raw) {
		return nil, nil, net.ErrClosed
	}
	conn, info, err := l.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		l.arriving.Remove(raw)
		return nil, nil, err
	}
	linked := &linkedConn{Conn: conn, raw: raw, link: &link{}, arriving: l.arriving}
	linked.link.hangUp = func() { _ = linked.Close() }
	return linked, info, nil
}

// Clone implements credentials.TransportCredentials.
func (l linking) Clone() credentials.TransportCredentials {
	return linking{l.TransportCredentials.Clone(), l.arriving}
}

type linkedConn struct {
	net.Conn
	raw      net.Conn // below the credentials
	link     *link
	arriving *Arriving
	beginning
}

// Read implements net.Conn. gRPC reads in one goroutine.
func (c *linkedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if n > 0 && c.ends(into[:n]) && !c.arriving.Remove(c.raw) {
		return 0, net.ErrClosed // nothing of it is carried out
	}
	return n, err
}

// Close implements net.Conn. gRPC takes no more for the connection before it closes it. TLS would
// take up to 5 s to say goodbye to a client that does not read, and HTTP/2 has ends of its own.
func (c *linkedConn) Close() error {
	err := c.raw.Close()
	c.arriving.Remove(c.raw)
	c.link.leave()
	c.link.broken()
	return err
}

// RemoteAddr implements net.Conn. It is what a call knows of its connection.
func (c *linkedConn) RemoteAddr() net.Addr { return linkedAddr{c.Conn.RemoteAddr(), c.link} }

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
