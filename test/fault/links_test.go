package fault

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/peer"
)

const patience = 10 * time.Second

// pair is one connection of a dialer through a proxy, and its other end.
type pair struct {
	t           *testing.T
	dialer, end net.Conn
}

// send sends a line one way, and reports whether it arrives within a time.
func (p *pair) send(from, to net.Conn, line string, within time.Duration) bool {
	p.t.Helper()
	if _, err := fmt.Fprintln(from, line); err != nil {
		p.t.Fatal(err)
	}
	return p.arrives(to, line, within)
}

func (p *pair) arrives(to net.Conn, line string, within time.Duration) bool {
	p.t.Helper()
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		p.t.Fatal(err)
	}
	got := make([]byte, len(line)+1)
	n, err := to.Read(got)
	if err != nil {
		return false
	}
	if string(got[:n]) != line+"\n" {
		p.t.Fatalf("%q arrived, not %q", got[:n], line)
	}
	return true
}

// joined connects n1 to n2 through the proxy of n2.
func joined(t *testing.T, l *links) *pair {
	t.Helper()
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Close() })
	address, err := l.listen("n2", target.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialer.Close() })
	header := peer.Header{
		Kind: peer.KindRaft, Cluster: "c", Target: stranger(), Life: peer.NewLife(1),
		Sender: peer.ServerID("n1", "00000000000000000000000000000001"),
	}
	encoded, err := header.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialer.Write(encoded); err != nil {
		t.Fatal(err)
	}
	end, err := target.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end.Close() })
	if got, err := peer.ReadHeader(bufio.NewReaderSize(end, len(encoded))); err != nil || got != header {
		t.Fatalf("the header arrived as %+v, %v", got, err)
	}
	return &pair{t, dialer, end}
}

// TestLinksCutEachDirection: what is cut arrives when it heals, and not before; the other
// direction goes on.
func TestLinksCutEachDirection(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l := newLinks()
	defer l.close()
	p := joined(t, l)
	if !p.send(p.dialer, p.end, "there", patience) || !p.send(p.end, p.dialer, "back", patience) {
		t.Fatal("nothing passes although nothing is cut")
	}
	l.cut(direction{"n1", "n2"})
	if p.send(p.dialer, p.end, "held back", 100*time.Millisecond) {
		t.Error("it passes where it is cut")
	}
	if !p.send(p.end, p.dialer, "back again", patience) {
		t.Error("it does not pass in the other direction")
	}
	if l.held.Load() == 0 {
		t.Error("nothing was held back")
	}
	l.heal()
	if !p.arrives(p.end, "held back", patience) {
		t.Error("what was held back does not arrive")
	}
	l.cut(both("n1", "n3")...)
	if !p.send(p.dialer, p.end, "to n2", patience) {
		t.Error("it does not pass where others are cut")
	}
}

// TestLinksSlowAndSever: a slow direction takes its time, and what is broken off is seen at
// both ends.
func TestLinksSlowAndSever(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l := newLinks()
	defer l.close()
	p := joined(t, l)
	l.slow(300*time.Millisecond, direction{"n2", "n1"})
	began := time.Now()
	if !p.send(p.end, p.dialer, "slowly", patience) || time.Since(began) < 290*time.Millisecond {
		t.Errorf("it took %v, not 300ms", time.Since(began))
	}
	if severed := l.sever(func(j *joint) bool { return j.dialer == "n1" && j.accepter == "n2" }); severed != 1 {
		t.Errorf("%d connections were broken off, not 1", severed)
	}
	for _, conn := range []net.Conn{p.dialer, p.end} {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes are read from what is broken off", n)
		}
	}
}
