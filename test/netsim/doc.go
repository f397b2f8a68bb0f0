// Package netsim is a network in memory: hosts that listen and dial, links that can
// be cut in one direction, slowed down and severed. It is for tests of several
// nodes in one testing/synctest bubble, where time is virtual.
//
//	network := netsim.New()
//	a, b := network.Host("a"), network.Host("b")
//	listener, err := b.Listen("tcp", "b:7000")
//	conn, err := a.Dial(ctx, "b:7000")
//	network.Cut("a", "b") // what a sends does not arrive; what b sends does
//
// # Links
//
// A link is the way from one host to another; there are two between each pair, and
// each is cut, healed and slowed by itself. A cut link loses nothing that a
// connection has in flight, as TCP does not: it is held, and arrives after the link
// is healed, unless either end has given up by then. A dial over a cut link hangs
// until its context ends. What a host sends to itself always arrives.
//
// What goes over a link takes its latency, and up to its jitter more, drawn for each
// write from what [Network.Seed] says.
//
// [Network.Sever] breaks the connections between two hosts at both ends, as a
// rebooting firewall does, and [Network.SeverOne] a single one of them; [Host.Crash] breaks all of one host's and closes its
// listeners, as a machine does whose power fails and comes back.
//
// # Invariants
//
//  1. Bytes arrive in order, each once, or not at all; never changed.
//  2. Nothing arrives over a link that is cut, the end of a stream included.
//  3. Nothing waits on anything but mutexes that are held for a moment, condition
//     variables, channels and timers, so a bubble with an idle network is idle.
//  4. A connection has at most bufferBytes in flight each way; then writes wait.
//
// # Failures
//
// Errors are those of package net: [net.ErrClosed], [os.ErrDeadlineExceeded], and
// [net.OpError] with [syscall.ECONNREFUSED], [syscall.ECONNRESET] or
// [syscall.EADDRINUSE].
package netsim
