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
// # Two processes of one server
//
// A copy of a data directory has the same identity. If the copy is started while the
// original runs, two processes vote and acknowledge as one, and a majority is none any
// more. So both ends also say which process they are ([Life]): how often their data
// directory had been started, which is on disk before a port is used, and a random
// boot id. Every port remembers the newest life of each server that it met in its
// cluster, whoever dialed, and:
//
//   - takes and opens connections with the newest only: one that was started less often, or
//     equally often but is another, is refused ([StatusSuperseded]);
//   - closes the connections with what the newest replaces.
//
// A process that is refused so ends, and its data directory is not used again
// ([Config].Superseded): what it has stored may lack what the other acknowledged, and
// started once more it would be the newer one. A node that was merely started again was
// started more often than before, and is taken at once. Of two copies that were started
// equally often the first one met is kept; where two nodes met different ones first,
// both end.
//
// Why it holds: what one node sends to and believes of a server is, from the moment on
// at which it has met both, that of one process. Every node dials each other member
// every few seconds (package membership), and replicas dial those that they vote with,
// so two processes that both reach some third node are told apart within that time, and
// the older one ends.
//
// What this cannot detect:
//
//   - Two processes that never touch the same third node: each then finds its majority, if it
//     does, with nodes that do not hear from the other's. In a cluster of three that takes a
//     partition with one process on each side.
//   - What was counted before both were met: votes and acknowledgements of the few seconds in
//     between, and of the whole life of the older one, stand.
//   - A copy that is started when nothing else runs under its identity, or that is newer
//     than what does: it looks like a restart. Only a copy that was started less often
//     than the life that is remembered, in memory, is noticed.
//   - Forgery: nobody is asked yet who they are.
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
//  5. Once a port has met two processes of one server, it neither has nor opens nor accepts
//     a connection with the older one. Each time that the older one dials it, that one
//     is told so, through [Config].Superseded.
//
// # Failures
//
// A dialer hears of a refusal at once, as a [RefusedError], and one that must end through
// [Config].Superseded. A receiver logs what it
// refused, at most one line in five seconds. An Accept that fails for want of files
// is tried again, and logged in the same way.
//
// # Goroutines
//
// One accepts; each half-open connection has one, which ends when the connection
// is handed over, answered or dropped. [Port.Close] waits for all of them.
package peer
