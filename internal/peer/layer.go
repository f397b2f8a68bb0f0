package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var errBusy = errors.New("peer: as many connections are open as may be")

// inlet is where connections of one purpose arrive: it queues the accepted ones for an
// Accept, and keeps all of them, dialed ones included, to close them together.
type inlet struct {
	port     *Port
	accepted chan net.Conn
	stopped  chan struct{} // closed: nothing is accepted any more

	mu      sync.Mutex
	stops   bool
	closed  bool
	tracked map[*connection]struct{}
}

func newInlet(p *Port) *inlet {
	return &inlet{
		port:     p,
		accepted: make(chan net.Conn),
		stopped:  make(chan struct{}),
		tracked:  make(map[*connection]struct{}),
	}
}

// connection is one that an inlet tracks until it is closed.
type connection struct {
	net.Conn
	inlet   *inlet
	far     process // who is at the other end; zero where it does not matter
	counted bool    // among the port's accepted ones
	once    sync.Once
	err     error
}

// Read ends as if the far end had closed where it was this one: Raft then ends its
// reader without a word, and reports everything else as an error.
func (c *connection) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if err != nil && (errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)) {
		err = io.EOF
	}
	return n, err
}

// Close closes the connection and lets go of it.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.err = c.Conn.Close()
		c.untrack()
	})
	return c.err
}

// untrack is for the first of Close and adopt.
func (c *connection) untrack() {
	c.inlet.mu.Lock()
	delete(c.inlet.tracked, c)
	c.inlet.mu.Unlock()
	if c.counted {
		c.inlet.port.mu.Lock()
		c.inlet.port.accepted--
		c.inlet.port.mu.Unlock()
	}
}

// adopt tracks a connection. It fails once the inlet is closed or, for an accepted
// one, stopped; when the port has as many accepted ones as it may; and when a newer
// process than the one at the far end has been met in the meantime. The caller closes
// what was not adopted.
func (i *inlet) adopt(conn net.Conn, far process, accepted bool) (*connection, error) {
	if accepted {
		p := i.port
		p.mu.Lock()
		full := p.accepted >= p.cfg.ConnectionsMax
		if !full {
			p.accepted++
		}
		p.mu.Unlock()
		if full {
			return nil, errBusy
		}
	}
	tracked := &connection{Conn: conn, inlet: i, far: far, counted: accepted}
	i.mu.Lock()
	refused := i.closed || accepted && i.stops
	if !refused {
		i.tracked[tracked] = struct{}{}
	}
	i.mu.Unlock()
	if !refused {
		// Only now: whoever meets a newer process from here on finds this connection.
		if err := i.port.lives.check(far); err != nil {
			tracked.once.Do(tracked.untrack)
			return nil, err
		}
		return tracked, nil
	}
	if accepted {
		i.port.mu.Lock()
		i.port.accepted--
		i.port.mu.Unlock()
	}
	return nil, net.ErrClosed
}

// offer gives a connection to whoever accepts, or closes it when nobody does in time.
func (i *inlet) offer(conn *connection, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case i.accepted <- conn:
		return
	case <-i.stopped:
	case <-timer.C:
	}
	_ = conn.Close()
}

func (i *inlet) accept() (net.Conn, error) {
	select {
	case conn := <-i.accepted:
		return conn, nil
	case <-i.stopped:
		return nil, net.ErrClosed
	}
}

// stop ends accepting; what is open stays so.
func (i *inlet) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.stops {
		i.stops = true
		close(i.stopped)
	}
}

// close ends accepting and closes every connection.
func (i *inlet) close() {
	i.stop()
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.closeWhere(func(*connection) bool { return true })
}

// closeWhere closes some of the connections, and returns how many.
func (i *inlet) closeWhere(chosen func(*connection) bool) int {
	i.mu.Lock()
	var open []*connection
	for conn := range i.tracked {
		if chosen(conn) {
			open = append(open, conn)
		}
	}
	i.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close()
	}
	return len(open)
}

// Layer is the raft.StreamLayer of one shard.
type Layer struct {
	inlet  *inlet
	port   *Port
	shard  int
	ctx    context.Context // ends when the layer closes
	cancel context.CancelFunc
}

var _ raft.StreamLayer = (*Layer)(nil)

// Layer opens the stream layer of a shard: from now on, connections for this shard
// are taken. It panics while another layer of the shard is open. On a closed port it
// returns a layer that is closed.
func (p *Port) Layer(shard int) *Layer {
	ctx, cancel := context.WithCancel(p.ctx)
	layer := &Layer{inlet: newInlet(p), port: p, shard: shard, ctx: ctx, cancel: cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		cancel()
		layer.inlet.close()
		return layer
	}
	if p.layers[shard] != nil {
		panic(fmt.Sprintf("peer: shard %d is open already", shard))
	}
	p.layers[shard] = layer
	return layer
}

// Accept returns the next connection that another server opened to this shard.
func (l *Layer) Accept() (net.Conn, error) { return l.inlet.accept() }

// Addr returns this server's own address, as a Raft configuration holds it.
func (l *Layer) Addr() net.Addr {
	return address(Address(l.port.cfg.Self, l.port.cfg.Advertise))
}

// Close closes every connection of the layer, accepted or dialed, and ends the dials
// under way. The shard may then be opened again.
func (l *Layer) Close() error {
	l.cancel()
	l.port.mu.Lock()
	if l.port.layers[l.shard] == l {
		delete(l.port.layers, l.shard)
	}
	l.port.mu.Unlock()
	l.inlet.close()
	return nil
}

// Dial connects to a server at an address as [Address] returns; one without an id
// is refused, since nobody could say whom to expect there.
func (l *Layer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, hostPort := SplitAddress(to)
	if id == "" {
		return nil, fmt.Errorf("peer: address %q does not say whom to expect there", string(to))
	}
	ctx := l.ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return l.port.open(ctx, l.inlet, Header{Kind: KindRaft, Shard: l.shard, Target: id}, hostPort)
}

// callListener is the net.Listener of the internal gRPC server.
type callListener struct{ inlet *inlet }

// CallListener returns the listener of the internal gRPC server. There is one; closing it
// ends accepting, and leaves open what was accepted, so that a server can finish its
// calls.
func (p *Port) CallListener() net.Listener { return p.calls }

func (c *callListener) Accept() (net.Conn, error) { return c.inlet.accept() }
func (c *callListener) Addr() net.Addr            { return address(c.inlet.port.cfg.Advertise) }
func (c *callListener) Close() error {
	c.inlet.stop()
	return nil
}

// address is a net.Addr made of text.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
