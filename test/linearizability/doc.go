// Package linearizability judges the histories that callers of a coordinator recorded: is
// there an order of their calls in which the contract allows everything that they were told?
//
// The model is written from the contract's text alone and shares no code with the product. It
// knows one identity; identities have nothing to do with each other, but for what the rules
// beside it look at. porcupine looks for the order.
//
// # What is nondeterministic
//
// Nobody sees the moment at which a call takes effect, a deadline passes or a record is gone.
// The model holds for each deadline the earliest moment, on the observer's clock and less
// what clocks may differ by, and lets a step find the record as it was, or past the
// deadline, or gone, as far as the time of that step allows. A call without an answer may
// take effect at any time after it was sent, or never; so may each try of a call before
// the one that was answered, where more than one may have been delivered.
//
// # Why the search ends
//
// Porcupine tries calls that overlap in every order, which is exponential in how many there are.
// Four things keep that small, none of which allows more than the contract:
//
//   - Of answers that say the same, only those are put in order that say something new: a
//     hundred callers who were told to wait for one holder are two.
//   - A call without an answer takes part only where it changes something. After the last
//     answer comes an end, and behind it stands whatever never happened.
//   - An attempt of which nothing is known but that it was sent is like any other such one:
//     they are tried in the order of their times, not in every order. (Of those that are
//     known only for having been told to wait, 4 an identity are told apart; from
//     there on one of them may be taken for its own predecessor.)
//   - A number that is known to be granted to one attempt is not tried with others.
//
// The search of one identity is bounded in steps and time. One that was given up is
// reported as [Undecided].
//
// # Invariants
//
//  1. A violation is reported only where the contract allows no explanation. What was
//     not recorded is held against nobody.
//  2. What could not be decided is a violation.
//  3. The answer depends on the events alone, not on their order, unless time runs out.
//
// # Failures
//
// A drawing that cannot be written is said in the violation's text. Nothing else can
// fail.
package linearizability
