// Package overload puts more callers on three real nodes than they can serve, and checks
// what that may cost: time, and named refusals, and nothing else.
//
// A run finds out first how many callers saturate the cluster, and the most work that they
// get done: the peak. Then ten times as many come for a while. Each wants to reserve a
// key and commit it within two seconds, and asks no more of a key than that; what was not
// done by then is of no use to it.
//
// # Invariants
//
//  1. Goodput, the keys that were reserved and committed in time, stays near the peak.
//  2. A refusal has a name of the contract that says what it means: nothing is Internal,
//     Unknown or without a reason, but the end of a caller's own patience.
//  3. A node's memory stays below a bound that does not depend on how many callers
//     there are, nor on how long they stay.
//  4. Soon after they have gone one caller is served as fast as before they came.
//  5. Everything that was acknowledged holds: the histories are judged by package
//     linearizability, and keys that were committed are asked for again.
//
// # Failures
//
// A test that fails says what was measured. Everything is bounded in number and time.
package overload
