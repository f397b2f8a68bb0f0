// Package peer is a node's peer port: the one TCP port over which the nodes of a
// cluster talk to each other. It carries Raft (one stream layer a shard), calls
// that are forwarded to another node, and Hello, by which nodes find each other
// before there is a cluster and tell each other their addresses afterwards.
//
// Raft itself never checks whom a message was meant for, and an empty node grants
// any vote. So every connection opens with a [Header] that names the cluster, the
// shard and the very server it is meant for: a node's name and its incarnation,
// which is drawn when its data directory is created. The receiver compares and
// answers with one status byte; unless that is OK it adds a short reason and
// closes. A node that lost its disk and came back under its old name and address is
// another incarnation, and no vote and no entry meant for the old one reaches it.
//
// # Addresses
//
// A Raft configuration holds each server's address as "id@host:port" ([Address]),
// so that whoever dials it says whom it expects there, whatever else may have moved
// to that address. [Port.Addresses] replaces the part behind the @ when a server
// is known to have moved.
//
// # Invariants
//
//  1. A connection reaches a stream layer or the call listener only if its header
//     names this cluster and this server; nothing reaches either while the node
//     belongs to no cluster.
//  2. What is not a peer costs little: before its header is accepted a connection
//     may send [HeaderBytesMax] bytes, and a Hello [HelloBytesMax] more, within
//     [Config].HandshakeTimeout; at most HalfOpenMax connections are in that state,
//     and the oldest is dropped for a new one.
//  3. Closing a layer closes every connection it accepted or dialed; closing the port
//     closes everything and returns once its goroutines have ended.
//  4. No input panics.
//
// # Failures
//
// A dialer hears of a refusal at once, as a [RefusedError]. A receiver logs what it
// refused, at most one line in five seconds. An Accept that fails for want of files
// is tried again, and logged in the same way.
//
// # Goroutines
//
// One accepts; each half-open connection has one, which ends when the connection
// is handed over, answered or dropped. [Port.Close] waits for all of them.
package peer
