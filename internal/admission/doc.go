// Package admission holds the rules: who may go ahead, who may not, and what
// becomes of a record. It is the whole contract as pure functions.
//
//	Decide(view, instant, command) → Decision
//
// A view is what the shard knows of one identity, an instant is the moment the
// command is applied on the shard's logical clock, and a decision is an answer
// and, where something changes, the record as it is afterwards. Nothing here
// reads a clock, draws a random number, starts a goroutine, performs I/O or
// ranges over a map; the same view, instant and command give the same decision
// on every replica, today and at every later replay of the log.
//
// # Time
//
// [Time] is nanoseconds on the shard's logical clock, which only moves forward.
// A window that began at t and lasts d is over when the clock reads t+d: at
// the deadline itself it is over. A lapse is a function of the clock and not an
// event: [Record.At] shows what a stored record is at an instant, and every rule
// looks at a record through it. An alarm that comes by later writes down what
// has been true since the deadline; it changes what is stored, and nothing that
// anybody can observe.
//
// # Invariants
//
// The tests name them.
//
//  1. Admit once: between a grant and the end of its window, a record grants no
//     other attempt unless the first was released, settled as not applied,
//     purged by force, or lapsed with [Reopen].
//  2. Hold: a record that lapsed with [Hold] grants nobody until it is committed,
//     released, settled or purged.
//  3. Fences grow: the shard's counter never decreases, and a grant's fence is
//     larger than every number given out before it in the shard, whether or not
//     the records that carried those numbers still exist.
//  4. Revisions are unique: every change of a record takes a number of the same
//     counter; grant and Extend take two, and the second is the revision from the
//     deadline on. A call that changes nothing takes none.
//  5. An attempt ends once: while its id is remembered it is granted nothing.
//  6. The first response stands: a committed response is never replaced.
//  7. A refusal changes nothing, and leaves nothing behind.
//  8. A deadline never moves backwards while its owner holds the record.
//  9. Only the owner's token moves a record that is held; it is in no answer
//     but the owner's.
//
// # Failures
//
// What the caller got wrong is a [Reason] in the answer; there are no errors in
// this package, because nothing in it can fail. A panic means that an invariant
// is broken, and the node must stop.
package admission
