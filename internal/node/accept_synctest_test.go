package node

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
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
	l := &clientListener{Listener: newNowhere(), most: 1, logger: slog.New(slog.NewTextHandler(&log, nil))}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || log.String() != "" {
		t.Errorf("got %v, logged %s", err, log.String())
	}
}

// Each connection takes a file that the node may need to go on, so there are as many as may be. What
// is beyond that is told at once, and those that are there go on.
func TestConnectionsOfClientsAreBounded(t *testing.T) {
	const most = 3
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start("n1", func(c *Config) { c.Peers, c.ConnectionsMax = nil, most })
		w.serving()
		var idle []net.Conn
		for i := range 2 * most {
			conn, err := w.network.dial(t.Context(), "n1:7420")
			if err != nil {
				t.Fatal(err)
			}
			idle = append(idle, conn)
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			_, err = io.Copy(io.Discard, conn)
			if stays := errors.Is(err, os.ErrDeadlineExceeded); stays != (i < most) {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		if open, limit, refused := n.listener.connections(); open != most || limit != most || refused != most {
			t.Errorf("%d of %d connections are open, %d were refused", open, limit, refused)
		}
		const line = "refused a connection: as many are open as may be"
		if lines := strings.Count(w.log.String(), line); lines != 1 || !strings.Contains(w.log.String(), "connections_max=3") {
			t.Errorf("%d lines: %s", lines, w.log)
		}
		for _, conn := range idle {
			_ = conn.Close()
			_ = conn.Close() // which gives nothing back
		}
		synctest.Wait()
		if open, _, _ := n.listener.connections(); open != 0 {
			t.Errorf("%d connections are open", open)
		}
		w.admits("k", "n1")
	})
}

// A process that may not open as many files as its clients may have connections keeps some for
// itself.
func TestFilesBoundConnections(t *testing.T) {
	const set = 1000
	alone := func(*Config) {}
	among := func(c *Config) { c.PeerListen = "127.0.0.1:0" }
	everything := func(c *Config) { c.PeerListen, c.HTTPListen = "127.0.0.1:0", "127.0.0.1:0" }
	for name, test := range map[string]struct {
		files         int64
		err           error
		shards, nodes int
		ports         func(*Config)
		want          int64
		line          string
	}{
		"enough":              {1 << 20, nil, 3, 3, everything, set, ""},
		"just enough":         {set + 64 + 27, nil, 3, 1, alone, set, ""},
		"one too few":         {set + 64 + 26, nil, 3, 1, alone, set - 1, "connections=999"},
		"more for two others": {512, nil, 3, 3, among, 512 - 64 - 27 - 36 - 128, "files_of_its_own=255"},
		"more for probes":     {1024, nil, 3, 3, everything, 1024 - 64 - 27 - 36 - 128 - 256, "files_of_its_own=511"},
		"none":                {20, nil, 3, 3, among, 1, "connections=1"},
		"not known":           {0, errors.New("no such call"), 3, 3, among, set, "no such call"},
	} {
		t.Run(name, func(t *testing.T) {
			var log logged
			cfg := Default()
			cfg.ConnectionsMax = set
			cfg.FilesMax = func() (int64, error) { return test.files, test.err }
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			test.ports(&cfg)
			n := &Node{cfg: cfg}
			got := n.clientConnectionsMax(test.shards, test.nodes)
			if told := log.String(); got != test.want || (told != "") != (test.line != "") || !strings.Contains(told, test.line) {
				t.Errorf("%d connections, want %d; logged %q", got, test.want, told)
			}
		})
	}
}
