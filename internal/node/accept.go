package node

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// acceptLinesEvery is the time between two log lines about connections that cannot be
// accepted.
const acceptLinesEvery = 10 * time.Second

// loggingListener says when connections cannot be accepted, for want of files most
// likely. The servers behind it try again without a word. One goroutine accepts.
type loggingListener struct {
	net.Listener
	logger *slog.Logger
	said   time.Time // when it last did; zero: never
	failed int       // times since then
}

// Accept implements net.Listener.
func (l *loggingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil || errors.Is(err, net.ErrClosed) {
		return conn, err
	}
	l.failed++
	if now := time.Now(); l.said.IsZero() || now.Sub(l.said) >= acceptLinesEvery {
		l.logger.Error("cannot accept connections; those that are open go on", "address", l.Addr().String(),
			"error", err, "failed_since_last_line", l.failed)
		l.said, l.failed = now, 0
	}
	return conn, err
}
