package node

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// exhausted is a listener that has no files left until a time.
type exhausted struct {
	net.Listener
	until time.Time
}

func (e *exhausted) Accept() (net.Conn, error) {
	if time.Now().Before(e.until) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return e.Listener.Accept()
}

// What keeps clients out is in the log, and does not fill it.
func TestFailedAcceptsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("n1", func(c *Config) {
			c.Peers = nil
			c.ListenOn = func(network, address string) (net.Listener, error) {
				l, err := w.network.listen(network, address)
				return &exhausted{Listener: l, until: time.Now().Add(time.Minute)}, err
			}
		})
		time.Sleep(time.Minute)
		if lines := strings.Count(w.log.String(), "cannot accept connections"); lines < 2 || lines > 7 {
			t.Errorf("%d lines in a minute", lines)
		}
		if !strings.Contains(w.log.String(), "n1:7420") || !strings.Contains(w.log.String(), syscall.EMFILE.Error()) {
			t.Error("the line does not say where and why")
		}
		w.serving()
		w.admits("k", "n1")
	})
}

func TestClosedListenerIsNoFailure(t *testing.T) {
	var log logged
	l := &loggingListener{Listener: newNowhere(), logger: slog.New(slog.NewTextHandler(&log, nil))}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || log.String() != "" {
		t.Errorf("got %v, logged %s", err, log.String())
	}
}
