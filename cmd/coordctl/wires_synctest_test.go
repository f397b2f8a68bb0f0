package main

import (
	"context"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/atmostonce/coordinator/test/netsim"
)

const (
	// stubs is the host where what stands in for a node listens.
	stubs = "stub"
	// noStub is where none does: a connection is refused there.
	noStub = stubs + ":1"
)

// wires are the network of the stubs. It is in memory, so that whoever waits for it waits in virtual
// time, where there is one.
var wires = netsim.New()

// reach connects to a stub by the wires, and to a real node by the network of this machine.
func reach(ctx context.Context, address string) (net.Conn, error) {
	if host, _, err := net.SplitHostPort(address); err == nil && host == stubs {
		return wires.Host("coordctl").Dial(ctx, address)
	}
	return overNetwork(ctx, address)
}

// listen listens on the wires.
func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := wires.Host(stubs).Listen("tcp", stubs+":0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// virtually runs a test whose time passes only while all of it waits. It starts no process: time
// stands still for as long as that runs.
func virtually(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	leakless(t)
	beginSignals()
	synctest.Test(t, test)
}

// beginSignals has package signal begin what it does for good, which is outside of every bubble.
func beginSignals() { signal.Notify(make(chan os.Signal, 1), syscall.SIGWINCH) }
