package peer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Config is what a [Port] needs. Start from [Default].
type Config struct {
	// Listener accepts the connections. The port owns and closes it. Required.
	Listener net.Listener
	// Dial connects to a host:port. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Self is this server, and Life its process. Required.
	Self raft.ServerID
	Life Life
	// Advertise is the host:port that others dial; empty where nobody can.
	Advertise string
	// Hello answers what another node asked; ctx ends with the connection's time.
	// Required.
	Hello func(ctx context.Context, asked HelloMessage) (HelloMessage, error)
	// Superseded is told that this process must not go on: nothing
	// it has stored or will store may count. It may be called more than once, and must
	// return soon. Required.
	Superseded func(*SupersededError)
	// AddressOf knows where a server is to be found now, whatever the Raft configuration
	// says. Nil knows nothing.
	AddressOf func(raft.ServerID) (hostPort string, ok bool)
	// Logger is told what was refused. Required.
	Logger *slog.Logger

	// HandshakeTimeout bounds everything before a connection is handed over, on either
	// side, and one Hello, the answer included. 10 ms to 1 min.
	HandshakeTimeout time.Duration
	// HalfOpenMax is how many connections may be in that state. 1 or more.
	HalfOpenMax int
	// ConnectionsMax is how many accepted connections may be open beyond it. 1 or
	// more.
	ConnectionsMax int
}

// HandshakeTimeoutDefault is how long whoever connects to a port of a node may take to say
// what for. The port for clients has it, too.
const HandshakeTimeoutDefault = 5 * time.Second

// Default returns the settings that need no thought: 5 s, 128 and 4,096.
func Default() Config {
	return Config{HandshakeTimeout: HandshakeTimeoutDefault, HalfOpenMax: 128, ConnectionsMax: 4096}
}

// Validate names what is missing or out of range.
func (c *Config) Validate() error {
	switch {
	case c.Listener == nil, c.Dial == nil, c.Hello == nil, c.Superseded == nil, c.Logger == nil:
		return errors.New("peer: config lacks a listener, a dialer, a hello, a way to end or a logger")
	case c.HandshakeTimeout < 10*time.Millisecond || c.HandshakeTimeout > time.Minute:
		return fmt.Errorf("peer: handshake timeout %s is not between 10ms and 1m", c.HandshakeTimeout)
	case c.HalfOpenMax < 1 || c.ConnectionsMax < 1:
		return fmt.Errorf("peer: room for %d half-open and %d open connections", c.HalfOpenMax, c.ConnectionsMax)
	}
	if _, _, err := SplitServerID(c.Self); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return c.Life.check()
}

// Port is a node's peer port. Its methods may be called from any goroutine.
//
// One mutex guards everything that changes; it is never held while reading from,
// writing to or dialing a connection. A connection belongs to exactly one of three:
// the half-open list while its header is awaited, an inlet once it is accepted, or the
// set of dialed calls. Each of them closes what it holds when the port closes, and
// takes nothing in afterwards.
type Port struct {
	cfg    Config
	ctx    context.Context // ends when the port closes
	cancel context.CancelFunc
	work   sync.WaitGroup // the accept loop and the half-open connections
	lives  *lives
	refuse limiter // of lines about coordinators that were turned away
	twins  limiter // of lines about two processes of one server
	noise  limiter // of lines about everything else

	mu       sync.Mutex
	closed   bool
	cluster  string         // empty: none yet
	layers   map[int]*Layer // the open ones
	halfOpen *list.List     // of net.Conn, oldest first
	accepted int            // connections that inlets accepted and that are open

	calls  *callListener
	dialed *inlet // connections of CallDial
}

// linesEvery is the time between two lines about what strangers can bring about.
const linesEvery = 5 * time.Second

// Listen starts to accept connections. Until [Port.JoinCluster] it answers Hello and
// refuses everything else.
func Listen(cfg Config) (*Port, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Port{
		cfg:      cfg,
		ctx:      ctx,
		cancel:   cancel,
		lives:    newLives(process{cfg.Self, cfg.Life}),
		refuse:   limiter{every: linesEvery, level: slog.LevelWarn},
		twins:    limiter{every: linesEvery, level: slog.LevelError},
		noise:    limiter{every: linesEvery, level: slog.LevelWarn},
		layers:   make(map[int]*Layer),
		halfOpen: list.New(),
	}
	p.calls = &callListener{inlet: newInlet(p)}
	p.dialed = newInlet(p)
	p.work.Add(1)
	go p.accept()
	return p, nil
}

// Self returns the server that listens here.
func (p *Port) Self() raft.ServerID { return p.cfg.Self }

// Advertised returns the host:port that others dial; "" where nobody can.
func (p *Port) Advertised() string { return p.cfg.Advertise }

// JoinCluster tells the port which cluster it belongs to. From then on it takes
// connections of that cluster. It panics when told of two.
func (p *Port) JoinCluster(id string) {
	if err := CheckClusterID(id); err != nil {
		panic("peer: " + err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cluster != "" && p.cluster != id {
		panic("peer: a node belongs to one cluster, not to " + p.cluster + " and " + id)
	}
	p.cluster = id
}

// Cluster returns the id of the cluster; empty while there is none.
func (p *Port) Cluster() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cluster
}

// Close closes the listener, every layer and every connection, and waits until
// nothing of the port runs any more. Further calls do nothing.
func (p *Port) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	layers := make([]*Layer, 0, len(p.layers))
	for _, layer := range p.layers {
		layers = append(layers, layer)
	}
	for e := p.halfOpen.Front(); e != nil; e = e.Next() {
		closeHalfOpen(e)
	}
	p.mu.Unlock()

	var err error
	if first {
		p.cancel()
		err = p.cfg.Listener.Close()
	}
	for _, layer := range layers {
		_ = layer.Close()
	}
	p.calls.inlet.close()
	p.dialed.close()
	p.work.Wait()
	return err
}

// accept is the accept loop.
func (p *Port) accept() {
	defer p.work.Done()
	wait := time.Duration(0)
	for {
		conn, err := p.cfg.Listener.Accept()
		if err == nil {
			wait = 0
			p.admit(conn)
			continue
		}
		if p.ctx.Err() != nil {
			return
		}
		if errors.Is(err, net.ErrClosed) {
			p.cfg.Logger.Error("the peer port was closed by somebody else", "error", err)
			return
		}
		// Out of files, most likely: what is open must end first.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		p.noise.log(p.cfg.Logger, "cannot accept a peer's connection", "error", err)
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// admit gives a new connection a place among the half-open ones; when all are
// taken the oldest loses its own, so that connections which say nothing cannot
// keep a peer out.
func (p *Port) admit(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return
	}
	if p.halfOpen.Len() >= p.cfg.HalfOpenMax {
		oldest := p.halfOpen.Front()
		closeHalfOpen(oldest)
		p.halfOpen.Remove(oldest)
		p.noise.log(p.cfg.Logger, "too many connections to the peer port say nothing; dropped the oldest")
	}
	place := p.halfOpen.PushBack(conn)
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		p.handshake(conn, place)
	}()
}

func closeHalfOpen(place *list.Element) {
	if conn, ok := place.Value.(net.Conn); ok {
		_ = conn.Close()
	}
}

// leave takes a connection off the half-open list, if it is still there.
func (p *Port) leave(place *list.Element) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halfOpen.Remove(place)
}

// handshake reads the header of an accepted connection and hands it to where it belongs.
func (p *Port) handshake(conn net.Conn, place *list.Element) {
	defer p.leave(place)
	deadline := time.Now().Add(p.cfg.HandshakeTimeout)
	if err := conn.SetDeadline(deadline); err != nil {
		_ = conn.Close()
		return
	}
	header, err := ReadHeader(conn)
	if err != nil {
		p.reject(conn, err)
		return
	}
	to, status, reason := p.route(&header, remote(conn))
	if status != StatusOK {
		p.turnAway(conn, &header, status, reason)
		return
	}
	if header.Kind == KindHello {
		p.answerHello(conn, deadline)
		return
	}
	tracked, err := to.adopt(conn, process{header.Sender, header.Life}, true)
	if err != nil {
		status, reason = p.whyNot(err)
		p.turnAway(conn, &header, status, reason)
		return
	}
	p.leave(place) // it has said what it wants, and is the inlet's
	if _, err := conn.Write(appendOK(nil, p.cfg.Life)); err != nil {
		_ = tracked.Close()
		return
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = tracked.Close()
		return
	}
	to.offer(tracked, p.cfg.HandshakeTimeout)
}

// route says where a connection belongs, or why nowhere.
func (p *Port) route(h *Header, remote string) (to *inlet, status Status, reason string) {
	p.mu.Lock()
	cluster, layer := p.cluster, p.layers[h.Shard]
	p.mu.Unlock()
	switch {
	case h.Cluster != cluster && h.Kind != KindHello:
		return nil, StatusWrongCluster, p.whoAmI()
	case h.Target != p.cfg.Self && (h.Target != "" || h.Kind != KindHello):
		return nil, StatusWrongTarget, p.whoAmI()
	}
	// Of another cluster's processes, and before there is a cluster, nothing is known.
	if h.Cluster != "" && h.Cluster == cluster {
		if err := p.meet(process{h.Sender, h.Life}, remote); err != nil {
			status, reason = p.whyNot(err)
			return nil, status, reason
		}
	}
	switch h.Kind {
	case KindRaft:
		if layer == nil {
			return nil, StatusNotServed, fmt.Sprintf("shard %d is not open here; %s", h.Shard, p.whoAmI())
		}
		return layer.inlet, StatusOK, ""
	case KindCall:
		return p.calls.inlet, StatusOK, ""
	}
	return nil, StatusOK, ""
}

// whyNot is what a dialer is told whose connection could not be taken.
func (p *Port) whyNot(err error) (Status, string) {
	if stale := (*staleError)(nil); errors.As(err, &stale) {
		return StatusSuperseded, stale.reason()
	}
	if errors.Is(err, errBusy) {
		return StatusBusy, p.whoAmI()
	}
	return StatusNotServed, p.whoAmI()
}

// whoAmI is what a refused dialer is told.
func (p *Port) whoAmI() string {
	if cluster := p.Cluster(); cluster != "" {
		return fmt.Sprintf("this is %s of cluster %s", p.cfg.Self, cluster)
	}
	return fmt.Sprintf("this is %s, of no cluster yet", p.cfg.Self)
}

// reject ends a connection whose header could not be read. What has not even the
// magic is no coordinator, and gets no answer.
func (p *Port) reject(conn net.Conn, err error) {
	defer conn.Close()
	var netErr net.Error
	if p.ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return
	}
	p.noise.log(p.cfg.Logger, "refused a connection to the peer port", "remote", remote(conn), "error", err)
	if errors.Is(err, errNotAPeer) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr) {
		return
	}
	_, _ = conn.Write(appendRefusal(nil, StatusBadHeader, fmt.Sprintf("%v; %s", err, p.whoAmI())))
}

// turnAway answers a connection that is meant for somebody else, and ends it.
func (p *Port) turnAway(conn net.Conn, h *Header, status Status, reason string) {
	p.refuse.log(p.cfg.Logger, "refused a peer's connection", "status", status.String(), "kind", h.Kind.String(),
		"shard", h.Shard, "from", string(h.Sender), "remote", remote(conn),
		"meant_for", string(h.Target), "of_cluster", h.Cluster, "reason", reason)
	_, _ = conn.Write(appendRefusal(nil, status, reason))
	_ = conn.Close()
}

// answerHello answers one question and ends the connection.
func (p *Port) answerHello(conn net.Conn, deadline time.Time) {
	defer conn.Close()
	if _, err := conn.Write(appendOK(nil, p.cfg.Life)); err != nil {
		return
	}
	asked, err := readHello(conn)
	if err != nil {
		p.noise.log(p.cfg.Logger, "could not read a hello", "remote", remote(conn), "error", err)
		return
	}
	ctx, cancel := context.WithDeadline(p.ctx, deadline)
	defer cancel()
	answer, err := p.cfg.Hello(ctx, asked)
	if err != nil {
		p.noise.log(p.cfg.Logger, "could not answer a hello", "from", string(asked.Self.ID()), "error", err)
		return
	}
	if err := writeHello(conn, answer); err != nil {
		p.noise.log(p.cfg.Logger, "could not answer a hello", "from", string(asked.Self.ID()), "error", err)
	}
}

func remote(conn net.Conn) string {
	if address := conn.RemoteAddr(); address != nil {
		return address.String()
	}
	return ""
}
