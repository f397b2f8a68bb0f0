// Package reason is the one table of what can go wrong with a call, and what that
// means to whoever made it.
//
// A failed call carries a gRPC status with google.rpc.ErrorInfo{reason, domain
// "coordinator"}. The reason is the stable name; code, HTTP status and exit code are
// columns of its row in [Table], so that server, client, middleware and command line
// cannot disagree. [Error] makes such a status, [Of] reads one back.
//
// # Invariants
//
//  1. Every reason that the rules or the server can give has exactly one row, and no
//     other reason ever leaves a server of ours.
//  2. What is not known to have been refused is "maybe applied": a status without a
//     reason of ours is only [No] where gRPC itself cannot have delivered the call.
//  3. Reading never fails: an error of any origin has a [Failure].
//
// Nothing here can fail, and nothing here is a server's: a client may import it
// without linking one.
package reason
