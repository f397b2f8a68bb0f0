package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is a network of pipes.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

func newNetwork() *network { return &network{listeners: make(map[string]*pipeListener)} }

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (n *network) listen(address string) *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = l
	return l
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return address("pipe") }

func open(t *testing.T, n *network, name, incarnation, at string, change func(*Config)) *Port {
	t.Helper()
	cfg := Default()
	cfg.Listener = n.listen(at)
	cfg.Dial = n.dial
	cfg.Self = ServerID(name, incarnation)
	cfg.Life = NewLife(1)
	cfg.Superseded = func(err *SupersededError) { t.Errorf("%s is to end: %v", name, err) }
	cfg.Advertise = at
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Hello = func(_ context.Context, asked HelloMessage) (HelloMessage, error) {
		return HelloMessage{Self: Member{Name: name, Incarnation: incarnation, PeerAddress: at}, Shards: asked.Shards}, nil
	}
	if change != nil {
		change(&cfg)
	}
	p, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func refusal(t *testing.T, err error) *RefusedError {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return refused
}

// A dial that fails names the address and the reason, each once.
func TestAFailedDialIsSaidOnce(t *testing.T) {
	a := open(t, newNetwork(), "n1", incarnationA, "a:1", func(cfg *Config) {
		cfg.Dial = func(context.Context, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address("b:1"), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
	})
	_, err := a.Hello(t.Context(), "b:1", HelloMessage{})
	if !errors.Is(err, syscall.ECONNREFUSED) || err.Error() != "peer: dial b:1: connect: connection refused" {
		t.Errorf("got %v", err)
	}
}

// Invariant 1.
func TestOnlyTheServerThatIsMeantIsReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		la := a.Layer(3)

		_, err := la.Dial(Address(b.Self(), "b:1"), time.Second)
		if err == nil {
			t.Fatal("dialed without a cluster")
		}
		a.JoinCluster("c1")
		_, err = la.Dial(Address(b.Self(), "b:1"), time.Second)
		if r := refusal(t, err); r.Status != StatusWrongCluster || !strings.Contains(r.Reason, "of no cluster yet") {
			t.Errorf("no cluster: %v", r)
		}
		b.JoinCluster("c1")
		_, err = la.Dial(Address(b.Self(), "b:1"), time.Second)
		if r := refusal(t, err); r.Status != StatusNotServed {
			t.Errorf("shard not open: %v", r)
		}
		lb := b.Layer(3)
		_, err = la.Dial(Address(ServerID("n2", incarnationA), "b:1"), time.Second)
		if r := refusal(t, err); r.Status != StatusWrongTarget || !strings.Contains(r.Reason, "this is n2/"+incarnationB) {
			t.Errorf("another incarnation: %v", r)
		}
		if _, err = la.Dial("b:1", time.Second); err == nil || !strings.Contains(err.Error(), "whom to expect") {
			t.Errorf("without an id: %v", err)
		}

		go func() {
			conn, err := lb.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
		}()
		conn, err := la.Dial(Address(b.Self(), "b:1"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // no deadline of the handshake is left behind
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAnotherClusterIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		a.JoinCluster("c1")
		b.JoinCluster("c2")
		_, err := a.CallDial(t.Context(), b.Self(), "b:1")
		if r := refusal(t, err); r.Status != StatusWrongCluster || !strings.Contains(r.Reason, "of cluster c2") {
			t.Errorf("%v", r)
		}
	})
}

// Invariant 2.
func TestStrangersAreDropped(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":    "",
		"http":       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"tls":        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("r", 500),
		"slow magic": headerMagic,
		"too long":   headerMagic + "\x02\x01\xff\xff" + strings.Repeat("\xff", 1000),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				open(t, n, "n1", incarnationA, "a:1", nil)
				conn, err := n.dial(t.Context(), "a:1")
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = io.WriteString(conn, text) }()
				begun := time.Now()
				answer, _ := io.ReadAll(conn)
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("held for %s", took)
				}
				if len(answer) > 3+reasonBytesMax {
					t.Errorf("answered %d bytes", len(answer))
				}
				_ = conn.Close()
			})
		})
	}
}

// Invariant 2.
func TestSilentConnectionsDoNotKeepAPeerOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", func(c *Config) { c.HalfOpenMax = 4 })
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		var silent []net.Conn
		for range 20 {
			conn, err := n.dial(t.Context(), "a:1")
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, conn)
		}
		synctest.Wait()
		if len := a.halfOpen.Len(); len > 4 {
			t.Errorf("%d half-open connections", len)
		}
		answer, err := b.Hello(t.Context(), "a:1", HelloMessage{Self: Member{Name: "n2", Incarnation: incarnationB}, Shards: 6})
		if err != nil || answer.Self.Name != "n1" || answer.Shards != 6 {
			t.Errorf("got %+v, %v", answer, err)
		}
		for _, conn := range silent {
			_ = conn.Close()
		}
	})
}

// A connection that was let in is no silent one, however long nobody takes it over.
func TestWhatWasLetInIsNotHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", func(c *Config) { c.HalfOpenMax = 1 })
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		waits, err := a.CallDial(t.Context(), b.Self(), "b:1") // nobody accepts yet
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Hello(t.Context(), "b:1", HelloMessage{Self: Member{Name: "n1", Incarnation: incarnationA}, Shards: 6}); err != nil {
			t.Fatal(err)
		}
		accepting(b.CallListener())
		synctest.Wait()
		if err := waits.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := waits.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it was closed: %v", err)
		}
	})
}

func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", func(c *Config) { c.ConnectionsMax = 2 })
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		accepting(b.CallListener())
		var conns []net.Conn
		for range 2 {
			conn, err := a.CallDial(t.Context(), b.Self(), "b:1")
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		_, err := a.CallDial(t.Context(), b.Self(), "b:1")
		if r := refusal(t, err); r.Status != StatusBusy {
			t.Errorf("%v", r)
		}
		_ = conns[0].Close()
		synctest.Wait()
		if _, err := a.CallDial(t.Context(), b.Self(), "b:1"); err != nil {
			t.Errorf("after one was closed: %v", err)
		}
	})
}

// accepting accepts and reads until each connection ends.
func accepting(l net.Listener) {
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
}

// Invariant 3.
func TestClosingALayerClosesItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		la, lb, other := a.Layer(0), b.Layer(0), b.Layer(1)
		accepting(lb)
		accepting(other)
		dialed, err := la.Dial(Address(b.Self(), "b:1"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		la1 := a.Layer(1)
		stays, err := la1.Dial(Address(b.Self(), "b:1"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = lb.Close()
		if _, err := dialed.Read(make([]byte, 1)); err == nil {
			t.Error("the far end did not close")
		}
		if _, err := stays.Write([]byte("x")); err != nil {
			t.Errorf("another shard's connection: %v", err)
		}
		_, err = la.Dial(Address(b.Self(), "b:1"), time.Second)
		if r := refusal(t, err); r.Status != StatusNotServed {
			t.Errorf("%v", r)
		}
		lb = b.Layer(0) // may be opened again
		accepting(lb)
		dialed, err = la.Dial(Address(b.Self(), "b:1"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = la.Close()
		if _, err := dialed.Write([]byte("x")); err == nil {
			t.Error("the near end did not close")
		}
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.accepted != 1 {
			t.Errorf("%d connections are counted, 1 is open", b.accepted)
		}
	})
}

func TestClosingTheCallListenerLetsCallsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		accepting(b.CallListener())
		conn, err := a.CallDial(t.Context(), b.Self(), string(Address(b.Self(), "b:1")))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until it is accepted
		_ = b.CallListener().Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Errorf("an open call: %v", err)
		}
		_, err = a.CallDial(t.Context(), b.Self(), "b:1")
		if r := refusal(t, err); r.Status != StatusNotServed {
			t.Errorf("%v", r)
		}
		_ = b.Close()
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("a closed port left a call open")
		}
	})
}

func TestHelloThatNobodyAnswersEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", func(c *Config) {
			c.Hello = func(ctx context.Context, _ HelloMessage) (HelloMessage, error) {
				<-ctx.Done()
				return HelloMessage{}, ctx.Err()
			}
		})
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		begun := time.Now()
		_, err := b.Hello(t.Context(), "a:1", HelloMessage{Self: Member{Name: "n2", Incarnation: incarnationB}})
		if err == nil {
			t.Error("answered")
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
		// A listener that takes connections and says nothing.
		n.listen("silent:1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Hello(ctx, "silent:1", HelloMessage{Self: Member{Name: "n1", Incarnation: incarnationA}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestMovedServersAreDialedWhereTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		b := open(t, n, "n2", incarnationB, "b:2", nil)
		a := open(t, n, "n1", incarnationA, "a:1", func(c *Config) {
			c.AddressOf = func(id raft.ServerID) (string, bool) { return "b:2", id == b.Self() }
		})
		got, err := a.Addresses().ServerAddr(b.Self())
		if err != nil || got != Address(b.Self(), "b:2") {
			t.Errorf("got %q, %v", got, err)
		}
		if got, err = a.Addresses().ServerAddr(a.Self()); err != nil || got != Address(a.Self(), "a:1") {
			t.Errorf("itself: got %q, %v", got, err)
		}
		if _, err = a.Addresses().ServerAddr(ServerID("n3", incarnationB)); err == nil {
			t.Error("an unknown server has an address")
		}
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		accepting(b.CallListener())
		if _, err := a.CallDial(t.Context(), b.Self(), "b:1"); err != nil {
			t.Errorf("moved: %v", err)
		}
	})
}

// failingListener fails a few times before it works.
type failingListener struct {
	*pipeListener
	left int
}

func (f *failingListener) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, errors.New("too many open files")
	}
	return f.pipeListener.Accept()
}

func TestAcceptIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		open(t, n, "n1", incarnationA, "a:1", func(c *Config) {
			pipes, ok := c.Listener.(*pipeListener)
			if !ok {
				t.Fatal("another listener")
			}
			c.Listener = &failingListener{pipeListener: pipes, left: 5}
		})
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		if _, err := b.Hello(t.Context(), "a:1", HelloMessage{Self: Member{Name: "n2", Incarnation: incarnationB}}); err != nil {
			t.Error(err)
		}
	})
}

// Raft's own transport over the layers: a message goes there and back.
func TestRaftTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := open(t, n, "n1", incarnationA, "a:1", nil)
		b := open(t, n, "n2", incarnationB, "b:1", nil)
		a.JoinCluster("c1")
		b.JoinCluster("c1")
		transport := func(p *Port) *raft.NetworkTransport {
			return raft.NewNetworkTransport(p.Layer(0), 2, time.Second, io.Discard)
		}
		ta, tb := transport(a), transport(b)
		if got := ta.LocalAddr(); got != Address(a.Self(), "a:1") {
			t.Errorf("local address %q", got)
		}
		go func() {
			rpc := <-tb.Consumer()
			rpc.Respond(&raft.RequestVoteResponse{Term: 7, Granted: true}, nil)
		}()
		var answer raft.RequestVoteResponse
		if err := ta.RequestVote(b.Self(), Address(b.Self(), "b:1"), &raft.RequestVoteRequest{Term: 7}, &answer); err != nil || answer.Term != 7 {
			t.Errorf("got %+v, %v", answer, err)
		}
		_ = ta.Close()
		_ = tb.Close()
	})
}
