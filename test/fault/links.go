package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atmostonce/coordinator/internal/peer"
)

// links are all connections between nodes. Each node's peer port is reached through a
// listener of its own; who dials says so in the header that opens every connection, and
// from then on each direction can be cut by itself.
//
// A direction that is cut is silent: what is sent on it is taken and held back, and arrives
// when it heals, as it does where TCP sends again what a network has dropped. Nobody is
// told that anything is amiss. New connections are taken and go nowhere meanwhile.
type links struct {
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	held   atomic.Int64 // chunks that a cut has held back so far

	mu         sync.Mutex
	listeners  []net.Listener
	directions map[direction]*way
	open       map[*joint]struct{}
}

// direction is from whom to whom bytes go.
type direction struct{ from, to string }

// way is the state of one direction.
type way struct {
	passes chan struct{} // closed while bytes pass
	delay  time.Duration // what each chunk waits
}

// joint is one connection through a proxy.
type joint struct {
	dialer, accepter string
	conns            [2]net.Conn // of the dialer, to the accepter
}

// linksOpenMax bounds the connections of all proxies together; one more is closed at once.
const linksOpenMax = 4096

// chunkBytes is how much a cut holds back of each connection, beside what the kernel does.
const chunkBytes = 32 << 10

func newLinks() *links {
	ctx, cancel := context.WithCancel(context.Background())
	return &links{ctx: ctx, cancel: cancel, directions: make(map[direction]*way), open: make(map[*joint]struct{})}
}

// listen makes the listener in front of a node, and returns its address.
func (l *links) listen(node, target string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	l.listeners = append(l.listeners, listener)
	l.mu.Unlock()
	l.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(10 * time.Millisecond) // out of files: some are about to be closed
				continue
			}
			l.work.Go(func() { l.join(node, target, conn) })
		}
	})
	return listener.Addr().String(), nil
}

// close ends everything and waits for it.
func (l *links) close() {
	l.cancel()
	l.mu.Lock()
	for _, listener := range l.listeners {
		_ = listener.Close()
	}
	l.mu.Unlock()
	l.sever(func(*joint) bool { return true })
	l.work.Wait()
}

// join carries one accepted connection.
func (l *links) join(node, target string, from net.Conn) {
	defer from.Close()
	j := &joint{accepter: node, conns: [2]net.Conn{from, nil}}
	if !l.track(j) {
		return
	}
	defer l.untrack(j)
	header, err := peer.ReadHeader(from)
	if err != nil {
		return
	}
	encoded, err := header.Encode()
	if err != nil {
		return
	}
	dialer := peer.NodeName(header.Sender)
	l.mu.Lock()
	j.dialer = dialer
	l.mu.Unlock()
	if !l.pass(direction{dialer, node}) {
		return
	}
	var d net.Dialer
	to, err := d.DialContext(l.ctx, "tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	l.mu.Lock()
	j.conns[1] = to
	l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	if _, err := to.Write(encoded); err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { l.pump(to, from, direction{node, dialer}) })
	l.pump(from, to, direction{dialer, node})
	back.Wait()
}

// pump copies one direction to its end, and then ends the connection.
func (l *links) pump(from, to net.Conn, d direction) {
	buffer := make([]byte, chunkBytes)
	for {
		n, err := from.Read(buffer)
		// The end of a connection is a message like any other.
		if !l.pass(d) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

func (l *links) track(j *joint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= linksOpenMax || l.ctx.Err() != nil {
		return false
	}
	l.open[j] = struct{}{}
	return true
}

func (l *links) untrack(j *joint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, j)
}

// way returns a direction's state. The caller holds mu.
func (l *links) way(d direction) *way {
	w := l.directions[d]
	if w == nil {
		w = &way{passes: make(chan struct{})}
		close(w.passes)
		l.directions[d] = w
	}
	return w
}

// pass waits until a chunk may go on; false once the proxies are closed.
func (l *links) pass(d direction) bool {
	for first := true; ; first = false {
		l.mu.Lock()
		w := l.way(d)
		passes, delay := w.passes, w.delay
		l.mu.Unlock()
		select {
		case <-passes:
			if delay > 0 {
				select {
				case <-time.After(delay):
				case <-l.ctx.Done():
					return false
				}
			}
			return l.ctx.Err() == nil
		default:
		}
		if first {
			l.held.Add(1)
		}
		select {
		case <-passes:
		case <-l.ctx.Done():
			return false
		}
	}
}

// cut silences directions.
func (l *links) cut(directions ...direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range directions {
		w := l.way(d)
		select {
		case <-w.passes:
			w.passes = make(chan struct{})
		default:
		}
	}
}

// heal lets everything pass, without delay.
func (l *links) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.directions {
		w.delay = 0
		select {
		case <-w.passes:
		default:
			close(w.passes)
		}
	}
}

// slow makes every chunk wait in some directions. A connection sends one after the other.
func (l *links) slow(delay time.Duration, directions ...direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range directions {
		l.way(d).delay = delay
	}
}

// sever breaks off connections, which both ends notice, and returns how many.
func (l *links) sever(chosen func(*joint) bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	severed := 0
	for j := range l.open {
		if !chosen(j) {
			continue
		}
		severed++
		for _, conn := range j.conns {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}
	return severed
}

// both are the two directions between two nodes.
func both(a, b string) []direction { return []direction{{a, b}, {b, a}} }

// severSome breaks off about half of the connections.
func (l *links) severSome(random *rand.Rand) int {
	return l.sever(func(*joint) bool { return random.IntN(2) == 0 })
}
