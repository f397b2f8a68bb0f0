// Package history records what callers of a coordinator were told, and finds what must
// not be in it: a key that was granted twice, an acknowledged call that was forgotten, a
// fence that was used again, a replay of something else than was committed.
//
// It knows nothing of how the coordinator works. All times are from one monotonic
// clock, the recorder's: an event lies somewhere between the moment at which its first
// try was sent and the moment of its answer. Two events whose spans overlap may
// have happened in either order, and neither order is then held against anybody.
//
// # Invariants
//
//  1. A violation is reported only where no order of overlapping events, no lost
//     answer and no lapse can explain what was seen.
//  2. Check changes nothing and gives the same answer to the same events in any order.
//
// These are the rules that an order of the calls is not needed for. [CheckKey] is for keys
// whose retention does not end while they are recorded, and which nobody held in doubt,
// settled or purged. Package linearizability judges all histories, these rules included.
//
// # Failures
//
// None: what is wrong is returned as violations.
package history
