package node

import (
	"log/slog"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A client that has vanished is found out by what it does not acknowledge, as gRPC would see to.
func TestWhoAcknowledgesNothingIsFoundOut(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &clientListener{Listener: raw, most: 1, logger: slog.New(slog.DiscardHandler)}
	defer l.Close()
	near, err := net.Dial("tcp", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	tcp, err := accepted.(*clientConn).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := tcp.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err != nil || got != int(pingWithin.Milliseconds()) {
			t.Errorf("%d ms, want %v (%v)", got, pingWithin, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
