package node

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged has a connection end whose far end acknowledges nothing for so long of what was
// sent. gRPC does so by itself for a connection that it knows for one of TCP.
func boundUnacknowledged(conn net.Conn, within time.Duration) error {
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(within/time.Millisecond))
	})
	return errors.Join(err, set)
}
