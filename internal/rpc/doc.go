// Package rpc serves the coordinator's gRPC services. It turns what came over the
// wire into a request to one shard, finds the replica that leads the shard, and turns
// the reply, or what went wrong, into what the caller is told.
//
// # Invariants
//
//  1. Arguments are checked here, before anything is asked or forwarded: whatever a
//     caller sends, the answer is an outcome or a reason of the table in package
//     reason, and never Internal, Unknown or a panic.
//  2. One hop: a call that carries the forwarded mark is never forwarded again. The
//     mark proves nothing about who set it. A caller that sets it itself only
//     gives up the hop: it gets NO_LEADER where this node does not lead.
//  3. Unknown is never flattened: a forwarded call of which it is not certain that
//     it was never sent ends as OUTCOME_UNKNOWN, unless it only reads.
//  4. One attempt: an attempt id that the caller left out is drawn at the first node
//     and goes with the forwarded call.
//  5. The leader resolves: defaults and limits that a node's settings decide are
//     filled in where the shard is led, from the call as its caller sent it.
//  6. A stored response is given back byte for byte or not at all: it carries the
//     hash it was committed under, which is checked again on the way out.
//  7. A token and an attempt id are in no answer but a grant's.
//  8. Every answer to a call about one record carries the metadata headers
//     coordinator-shards, coordinator-shard and, where the leader is known,
//     coordinator-leader; errors included, once the identity was decoded.
//  9. A call of a session is carried out and answered as one that is made by itself.
//  10. A client that does not read costs no more than [Settings].UnsentBytesMax of
//     answers, and keeps others from theirs for 10 s, or for 30 s where it takes some all the
//     time. What is refused for that has not been carried out.
//  11. A call that is for another cluster is refused before anything is asked
//     (expected.go).
//  12. Sessions cost no more than [Settings].SessionBytesMax: they, their messages and their
//     calls are counted at what they take, and what waits is kept as it was sent. A message
//     that is still coming in is gRPC's, and counted nowhere.
//  13. No more than [Settings].CallsMax calls are under way on a port, from when they begin, and
//     one that is no stream ends within two minutes or so, whether or not its message comes
//     (bounded.go). Whoever begins them and sends none keeps others out for some seconds,
//     over however many connections; who goes on for it, for a second at a time (awaited.go).
//     The same holds for services that only show something, which have places of their own
//     ([Looks]).
//
// # Who may do what
//
// Whoever is let in to the port may resolve and purge, and so is shown fences and
// revisions: what a node listens on, and whose certificates it believes, is the only protection.
//
// # Failures
//
// All failures go to the caller, as a status with a reason. What a caller cannot
// cause and cannot help (a stored response that does not decode, an error of a
// replica that has no name) is logged too.
//
// What gRPC itself refuses before any of this runs has gRPC's code and no reason: a
// message of more than twice [MessageBytesMax] is RESOURCE_EXHAUSTED, an unknown method
// or compression UNIMPLEMENTED, and frames that are no gRPC call end as gRPC sees fit.
// None of these was applied.
//
// # Goroutines
//
// A forwarded call has one beside it, which ends with the call: it abandons the call
// once another node leads. ListShards asks several leaders at once and returns after
// the last has answered. A session has one that sends, which ends before its handler
// returns, and one that receives, which ends with the stream. Each call of a session that is
// under way has one; some of those wait for the next call, of whichever session, until the last
// session has ended ([workers]). There are no others.
package rpc
