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
// What a call begins runs from when the shard received it, which may be long before it took
// effect: a call that waits in a leader that stands still is granted with the time at
// which it came.
//
// # Why the search ends
//
// Porcupine tries calls that overlap in every order, which is exponential in how many there are.
// These keep that small, and none allows what the contract does not:
//
//   - Of answers that say the same, only those are put in order that say something new: a
//     hundred callers who were told to wait for one holder are two.
//   - A call without an answer takes part only where it changes something. After the last
//     answer comes an end, and behind it stands whatever never happened.
//   - An attempt of which nothing is known but that it was sent is like any other such one:
//     they are tried in the order of their times, not in every order.
//   - A number that is known to be granted to one attempt is not tried with others, nor is
//     anything put between a grant and the one that names it as the one before.
//   - No step moves time past an answer that is still to be explained.
//   - Of what the record may be at one place, only that is kept that nothing else covers.
//
// These allow a little more than the contract, where telling it apart costs too much: of
// attempts that are known only for having been told to wait, 4 an identity are told apart, and
// one beyond them may be taken for its own predecessor; of attempts without an answer 2
// kinds of windows, more of them are all taken for the shortest.
//
// And one thing allows a little less: an Extend of which it is not known how often it was
// delivered made a lapsed attempt the holder again at most 4 times.
//
// The search of one identity is bounded in steps and time. One that was given up is
// reported as [Undecided]. It is rare where recorders say how often each call was delivered
// and what was asked for; where they say neither, and windows end, nearly anything may be so.
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
