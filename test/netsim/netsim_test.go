package netsim_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/atmostonce/coordinator/test/netsim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test with a network of hosts a and b, in virtual time.
func bubble(t *testing.T, test func(t *testing.T, network *netsim.Network, a, b *netsim.Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := netsim.New()
		test(t, network, network.Host("a"), network.Host("b"))
	})
}

// pair returns both ends of a connection from a to b.
func pair(t *testing.T, a, b *netsim.Host) (near, far net.Conn) {
	t.Helper()
	listener := listen(t, b)
	near = dial(t, a, listener.Addr().String())
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func listen(t *testing.T, h *netsim.Host) net.Listener {
	t.Helper()
	listener, err := h.Listen("tcp", h.Name()+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

func dial(t *testing.T, h *netsim.Host, address string) net.Conn {
	t.Helper()
	conn, err := h.Dial(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if n, err := c.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d: %v", n, err)
	}
}

// read wants a text, within a second.
func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
	_ = c.SetReadDeadline(time.Time{})
}

// silent wants nothing to be read for a second.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d, %v, want silence", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

func TestBothWays(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		write(t, near, "hello")
		write(t, near, " there")
		read(t, far, "hello there")
		write(t, far, "and back")
		read(t, near, "and back")
		if near.RemoteAddr().String() != far.LocalAddr().String() || near.LocalAddr().String() != far.RemoteAddr().String() {
			t.Error("the ends disagree on their addresses")
		}
		if network.Connections() != 1 {
			t.Errorf("%d connections", network.Connections())
		}
		near.Close()
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after a close: %v", err)
		}
		if _, err := far.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("writing to who has gone: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("reading what is closed: %v", err)
		}
		if err := near.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closing again: %v", err)
		}
		far.Close()
		if network.Connections() != 0 {
			t.Errorf("%d connections are left", network.Connections())
		}
	})
}

// What was sent in time arrives, and what was held arrives after the link is healed;
// the other way goes on meanwhile.
func TestCutOneWay(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		network.Cut("a", "b")
		write(t, near, "held")
		silent(t, far)
		write(t, far, "passes")
		read(t, near, "passes")
		near.Close()
		silent(t, far) // not even the end
		network.Heal("a", "b")
		read(t, far, "held")
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	})
}

// Who writes to an end that has gone hears of it by a reset, which ends the reading as
// well, at once; and by nothing while the way back is cut.
func TestResetEndsBothDirections(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		network.Latency("b", "a", time.Minute)
		near, far := pair(t, a, b)
		network.Cut("b", "a")
		far.Close()
		write(t, near, "is anybody there?")
		silent(t, near)
		network.Heal("b", "a")
		if _, err := near.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("writing: %v", err)
		}
		began := time.Now()
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || time.Since(began) != 0 {
			t.Errorf("reading: %v after %v", err, time.Since(began))
		}
	})
}

func TestHealWakesAReader(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		network.Partition([]string{"a"}, []string{"b"})
		write(t, near, "x")
		began := time.Now()
		time.AfterFunc(time.Hour, network.HealAll)
		if _, err := far.Read(make([]byte, 1)); err != nil || time.Since(began) != time.Hour {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestDial(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		if _, err := a.Dial(t.Context(), "nonsense"); err == nil {
			t.Error("an address without a port")
		}
		listener := listen(t, b)
		address := listener.Addr().String()
		for _, cut := range [][2]string{{"a", "b"}, {"b", "a"}} {
			network.Cut(cut[0], cut[1])
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			if _, err := a.Dial(ctx, address); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
				t.Errorf("%v cut: %v after %v", cut, err, time.Since(began))
			}
			cancel()
			time.AfterFunc(time.Minute, network.HealAll)
			began = time.Now()
			conn := dial(t, a, address)
			if time.Since(began) != time.Minute {
				t.Errorf("connected after %v", time.Since(began))
			}
			conn.Close()
		}
		network.Isolate("b")
		conn := dial(t, b, address) // a host always reaches itself
		conn.Close()
		network.HealAll()
		listener.Close()
		if _, err := a.Dial(t.Context(), address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after the close: %v", err)
		}
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accepting after the close: %v", err)
		}
	})
}

func TestListen(t *testing.T) {
	bubble(t, func(t *testing.T, _ *netsim.Network, a, b *netsim.Host) {
		listener, err := a.Listen("tcp", ":7000")
		if err != nil || listener.Addr().String() != "a:7000" {
			t.Fatal(err)
		}
		if _, err := a.Listen("tcp", "a:7000"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("twice: %v", err)
		}
		if _, err := a.Listen("tcp", "b:7000"); err == nil {
			t.Error("another's address")
		}
		if _, err := a.Listen("tcp", "7000"); err == nil {
			t.Error("an address without a port")
		}
		other, err := b.Listen("tcp", ":7000")
		if err != nil {
			t.Error(err)
		}
		other.Close()
		listener.Close()
		if listener.Close() == nil {
			t.Error("closed twice")
		}
		again, err := a.Listen("tcp", "a:7000")
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	})
}

func TestLatency(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		network.Latency("a", "b", 30*time.Millisecond)
		network.Latency("b", "a", 50*time.Millisecond)
		began := time.Now()
		near, far := pair(t, a, b)
		if took := time.Since(began); took != 80*time.Millisecond {
			t.Errorf("a dial takes a round trip: %v", took)
		}
		began = time.Now()
		write(t, near, "1")
		network.Latency("a", "b", 0)
		write(t, near, "2") // does not overtake
		near.Close()
		read(t, far, "12")
		if took := time.Since(began); took != 30*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

func TestSever(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		own, other := pair(t, a, a)
		write(t, near, "lost")
		network.Sever("b", "a")
		for _, c := range []net.Conn{near, far} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("write: %v", err)
			}
		}
		write(t, own, "still there")
		read(t, other, "still there")
	})
}

// What goes over one connection keeps its order, however uneven the delays, and overtakes
// what goes over another. The same seed gives the same delays.
func TestJitter(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		const each = 50
		network.Latency("a", "b", time.Millisecond)
		arrivals := func(seed uint64) (all []time.Duration, overtaken bool) {
			first, firstFar := pair(t, a, b)
			second, secondFar := pair(t, a, b)
			network.Seed(seed)
			network.Jitter("a", "b", 100*time.Millisecond)
			defer network.Jitter("a", "b", 0)
			for i := range each {
				began := time.Now()
				write(t, first, string(rune('0'+i)))
				write(t, second, string(rune('0'+i)))
				var came [2]time.Duration
				var reading sync.WaitGroup
				for j, far := range []net.Conn{firstFar, secondFar} {
					reading.Go(func() {
						read(t, far, string(rune('0'+i)))
						came[j] = time.Since(began)
					})
				}
				reading.Wait()
				all = append(all, came[:]...)
				overtaken = overtaken || came[1] < came[0]
			}
			return all, overtaken
		}
		one, overtaken := arrivals(7)
		if slices.Min(one) < time.Millisecond || slices.Max(one) >= 101*time.Millisecond || slices.Max(one) < 50*time.Millisecond {
			t.Errorf("delays from %v to %v", slices.Min(one), slices.Max(one))
		}
		if !overtaken {
			t.Error("nothing has overtaken anything")
		}
		if again, _ := arrivals(7); !slices.Equal(again, one) {
			t.Error("the same seed, other delays")
		}
		if other, _ := arrivals(8); slices.Equal(other, one) {
			t.Error("another seed, the same delays")
		}
		near, far := pair(t, a, b)
		network.Jitter("a", "b", time.Second)
		for i := range each {
			write(t, near, string(rune('0'+i)))
		}
		for i := range each {
			read(t, far, string(rune('0'+i)))
		}
	})
}

func TestSeverOne(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		network.SeverOne("a", "b", 5) // there is none
		first, firstFar := pair(t, a, b)
		second, secondFar := pair(t, b, a)
		third, thirdFar := pair(t, a, b)
		network.SeverOne("b", "a", 4) // the second of three
		for _, conn := range []net.Conn{second, secondFar} {
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the severed one: %v", err)
			}
		}
		for _, pair := range [][2]net.Conn{{first, firstFar}, {third, thirdFar}} {
			write(t, pair[0], "still")
			read(t, pair[1], "still")
		}
	})
}

func TestRejoin(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		network.Host("c")
		network.Isolate("b")
		network.Cut("a", "c")
		write(t, near, "held")
		silent(t, far)
		network.Rejoin("b")
		read(t, far, "held")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Dial(ctx, "c:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a link of other hosts was healed too: %v", err)
		}
	})
}

func TestCrash(t *testing.T) {
	bubble(t, func(t *testing.T, _ *netsim.Network, a, b *netsim.Host) {
		listener := listen(t, b)
		conn := dial(t, a, listener.Addr().String()) // never accepted
		defer conn.Close()
		near, _ := pair(t, a, b)
		b.Crash()
		for _, c := range []net.Conn{conn, near} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v", err)
			}
		}
		if _, err := a.Dial(t.Context(), listener.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v", err)
		}
		back, err := b.Listen("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		again := dial(t, a, back.Addr().String())
		again.Close()
		back.Close()
	})
}

// A writer waits for a reader, in order, up to its deadline.
func TestBackpressure(t *testing.T) {
	bubble(t, func(t *testing.T, _ *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		sent, err := near.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || sent == 0 || sent == 1<<20 {
			t.Fatalf("%d, %v", sent, err)
		}
		_ = near.SetDeadline(time.Time{})
		if n, err := io.ReadFull(far, make([]byte, sent)); err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			_, _ = near.Write(slices.Clone(want))
			near.Close()
		}()
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// A deadline that is set while somebody waits is honoured too, and so is a close.
func TestInterrupts(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		near, far := pair(t, a, b)
		network.Cut("b", "a")
		time.AfterFunc(time.Second, func() { _ = near.SetReadDeadline(time.Now()) })
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { far.Close() })
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := far.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// gRPC works on it: it connects again after a partition, in virtual time.
func TestGRPC(t *testing.T) {
	bubble(t, func(t *testing.T, network *netsim.Network, a, b *netsim.Host) {
		listener, err := b.Listen("tcp", "b:7420")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		healthv1.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///b:7420", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(a.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		check := func(timeout time.Duration, options ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, options...)
			return err
		}
		if err := check(time.Second); err != nil {
			t.Fatal(err)
		}
		network.Cut("b", "a")
		if err := check(time.Second); err == nil {
			t.Error("an answer came over a cut link")
		}
		network.Sever("a", "b")
		network.HealAll()
		synctest.Wait() // until the client has noticed: what it has sent is not sent again
		if err := check(time.Minute, grpc.WaitForReady(true)); err != nil {
			t.Error(err)
		}
	})
}
