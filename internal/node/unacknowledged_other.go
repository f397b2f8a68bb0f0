//go:build !linux

package node

import (
	"net"
	"time"
)

// boundUnacknowledged does nothing where there is no such option: gRPC's pings find out later.
func boundUnacknowledged(net.Conn, time.Duration) error { return nil }
