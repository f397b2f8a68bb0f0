package netsim

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferBytes is how much a connection holds in flight, each way.
const bufferBytes = 256 << 10

// conn is one end of a connection.
type conn struct {
	network       *Network
	way           way // from this end to the other
	local, remote Address
	in, out       *stream
	number        int  // counts connections
	dialed        bool // this is the end that was dialed from
	once          sync.Once
}

// stream is one direction of a connection. Its mutex is taken while the network's is
// not held, and the network's may be taken while it is.
type stream struct {
	network *Network
	way     way

	mu       sync.Mutex
	changed  *sync.Cond
	inFlight []packet
	size     int
	finished bool      // the writer has closed
	finishAt time.Time // when the reader may see that
	gone     bool      // the reader has closed
	broken   bool      // reset

	readBy, writeBy time.Time // deadlines; zero is none
}

// packet is what was written at once.
type packet struct {
	bytes    []byte
	arriveAt time.Time
}

// connection returns both ends of a connection, that of the dialing host first.
func connection(n *Network, from, to string, local, remote Address) (near, far *conn) {
	out, back := newStream(n, way{from, to}), newStream(n, way{to, from})
	near = &conn{network: n, way: way{from, to}, local: local, remote: remote, in: back, out: out}
	far = &conn{network: n, way: way{to, from}, local: remote, remote: local, in: out, out: back}
	return near, far
}

func newStream(n *Network, w way) *stream {
	s := &stream{network: n, way: w}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.wrap("read", err)
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if errors.Is(err, syscall.ECONNRESET) {
		// A reset ends both directions at once. Were the reader to hear of it later, a user
		// that takes the connection for alive until then could spin, and time stand still.
		c.in.abort()
		c.out.abort()
	}
	return n, c.wrap("write", err)
}

// Close implements [net.Conn]. What was written still arrives.
func (c *conn) Close() error {
	first := false
	c.once.Do(func() {
		first = true
		c.in.leave()
		c.out.finish()
		c.network.mu.Lock()
		delete(c.network.conns, c)
		c.network.mu.Unlock()
	})
	if !first {
		return c.wrap("close", net.ErrClosed)
	}
	return nil
}

// LocalAddr implements [net.Conn].
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements [net.Conn].
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements [net.Conn].
func (c *conn) SetReadDeadline(t time.Time) error {
	return c.wrap("set", c.in.deadline(t, func() bool { return c.in.gone }, &c.in.readBy))
}

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.wrap("set", c.out.deadline(t, func() bool { return c.out.finished }, &c.out.writeBy))
}

func (c *conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // readers compare it with ==
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		up := s.network.up(s.way)
		switch {
		case s.gone:
			return 0, net.ErrClosed
		case over(s.readBy, now):
			return 0, os.ErrDeadlineExceeded
		case s.broken:
			return 0, syscall.ECONNRESET
		case len(p) == 0:
			return 0, nil
		case !up:
			s.sleep(s.readBy)
		case len(s.inFlight) > 0 && !now.Before(s.inFlight[0].arriveAt):
			return s.take(p, now), nil
		case len(s.inFlight) > 0:
			s.sleep(s.readBy, s.inFlight[0].arriveAt)
		case s.finished && !now.Before(s.finishAt):
			return 0, io.EOF
		case s.finished:
			s.sleep(s.readBy, s.finishAt)
		default:
			s.sleep(s.readBy)
		}
	}
}

// take moves what has arrived into p.
func (s *stream) take(p []byte, now time.Time) int {
	n := 0
	for n < len(p) && len(s.inFlight) > 0 && !now.Before(s.inFlight[0].arriveAt) {
		first := &s.inFlight[0]
		m := copy(p[n:], first.bytes)
		n += m
		first.bytes = first.bytes[m:]
		if len(first.bytes) == 0 {
			s.inFlight = s.inFlight[1:]
		}
	}
	s.size -= n
	s.changed.Broadcast()
	return n
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	written := 0
	for {
		now := time.Now()
		up, latency := s.network.state(s.way)
		switch {
		case s.finished:
			return written, net.ErrClosed
		case over(s.writeBy, now):
			return written, os.ErrDeadlineExceeded
		case s.broken || s.gone && up && s.network.up(s.way.back()):
			// The other end has gone and answers with a reset, where it hears of it and is heard.
			return written, syscall.ECONNRESET
		case written == len(p):
			return written, nil
		case s.size == bufferBytes:
			s.sleep(s.writeBy)
		default:
			m := min(len(p)-written, bufferBytes-s.size)
			s.inFlight = append(s.inFlight, packet{append([]byte(nil), p[written:written+m]...), s.later(now.Add(latency))})
			s.size += m
			written += m
			s.changed.Broadcast()
			if written == len(p) {
				return written, nil
			}
		}
	}
}

// later keeps the order where a link has become faster.
func (s *stream) later(arriveAt time.Time) time.Time {
	if last := len(s.inFlight) - 1; last >= 0 && arriveAt.Before(s.inFlight[last].arriveAt) {
		return s.inFlight[last].arriveAt
	}
	return arriveAt
}

// sleep waits until something changes or the earliest of the given times is there;
// zero times are none. s.mu is held, and is free meanwhile.
func (s *stream) sleep(until ...time.Time) {
	var earliest time.Time
	for _, t := range until {
		if !t.IsZero() && (earliest.IsZero() || t.Before(earliest)) {
			earliest = t
		}
	}
	if earliest.IsZero() {
		s.changed.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(earliest), s.wake)
	s.changed.Wait()
	timer.Stop()
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// finish is the writer's close.
func (s *stream) finish() {
	_, latency := s.network.state(s.way)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished, s.finishAt = true, s.later(time.Now().Add(latency))
	s.changed.Broadcast()
}

// leave is the reader's close.
func (s *stream) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.changed.Broadcast()
}

// abort is a reset.
func (s *stream) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.inFlight, s.size = true, nil, 0
	s.changed.Broadcast()
}

func (s *stream) deadline(t time.Time, closed func() bool, which *time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if closed() {
		return net.ErrClosed
	}
	*which = t
	s.changed.Broadcast()
	return nil
}

// over reports whether a deadline has passed; zero never does.
func over(deadline, now time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }
