package node

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/internal/peer"
)

// acceptLinesEvery is the time between two log lines about connections that cannot be
// accepted.
const acceptLinesEvery = 10 * time.Second

// clientListener is the listener of a port for clients. Each connection takes a file of the
// process and some memory, and what a node must open to go on, such as the next segment of
// a log, is one of the same files: so no more connections are open than may be, and one
// beyond that is closed at once. What keeps clients out is in the log, and does not fill
// it.
type clientListener struct {
	net.Listener
	most   int64
	logger *slog.Logger

	open    atomic.Int64
	refused atomic.Uint64 // since the start
	failed  seldom
	full    seldom
}

// Accept implements [net.Listener].
func (l *clientListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			// The servers behind it try again without a word.
			l.failed.say(func(times int) {
				l.logger.Error("cannot accept connections; those that are open go on", "address", l.Addr().String(),
					"error", err, "failed_since_last_line", times)
			})
			return nil, err
		case l.open.Add(1) > l.most:
			l.open.Add(-1)
			l.refused.Add(1)
			_ = conn.Close()
			l.full.say(func(times int) {
				l.logger.Error("refused a connection: as many are open as may be", "address", l.Addr().String(),
					"connections_max", l.most, "refused_since_last_line", times)
			})
		default:
			if err := boundUnacknowledged(conn, pingWithin); err != nil {
				l.logger.Debug("cannot bound what a connection leaves unacknowledged", "error", err)
			}
			return &clientConn{Conn: conn, of: l}, nil
		}
	}
}

// connections are those that are open, how many may be, and how many were refused for that.
func (l *clientListener) connections() (open, most int64, refused uint64) {
	return l.open.Load(), l.most, l.refused.Load()
}

// clientConn is counted until it is closed.
type clientConn struct {
	net.Conn
	of     *clientListener
	closed atomic.Bool
}

// Close implements [net.Conn].
func (c *clientConn) Close() error {
	if !c.closed.Swap(true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

// seldom says something of what happens often: every [acceptLinesEvery].
type seldom struct {
	mu    sync.Mutex
	said  time.Time // zero: never
	times int       // since then
}

func (s *seldom) say(line func(times int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times++
	if now := time.Now(); s.said.IsZero() || now.Sub(s.said) >= acceptLinesEvery {
		line(s.times)
		s.said, s.times = now, 0
	}
}

// How many files a node opens beside the connections of its clients: those of the process,
// and for each shard its state, its log and what both are replaced with, besides its
// connections with each other node in either direction. The peer port has some more, of who
// has not said yet which node it is.
const (
	filesOfProcess = 64
	filesOfShard   = 9
	filesOfLink    = 6
)

// lookConnectionsMax is how many connections a port may have that only shows how the node is.
const lookConnectionsMax = 256

// clientConnectionsMax is how many connections clients may have to this node: the setting,
// or fewer where the process may not have as many files.
func (n *Node) clientConnectionsMax(shards, nodes int) int64 {
	most := int64(n.cfg.ConnectionsMax)
	files, err := n.cfg.FilesMax()
	if err != nil {
		n.cfg.Logger.Warn("cannot tell how many files this process may open", "error", err)
		return most
	}
	needed := int64(filesOfProcess + shards*(filesOfShard+filesOfLink*max(nodes-1, 0)))
	if n.cfg.peerListen() != "" {
		needed += int64(peer.Default().HalfOpenMax)
	}
	for _, at := range []string{n.cfg.HTTPListen, n.cfg.MetricsListen} {
		if at != "" {
			needed += lookConnectionsMax
		}
	}
	if left := max(files-needed, 1); left < most {
		n.cfg.Logger.Warn("this process may open too few files for as many connections of clients as are set", "connections_max", most,
			"files_max", files, "files_of_its_own", needed, "connections", left)
		return left
	}
	return most
}

// filesMax is how many files the process may have open.
func filesMax() (int64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return int64(min(limit.Cur, 1<<40)), nil
}
