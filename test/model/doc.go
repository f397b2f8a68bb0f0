// Package model is the second opinion: the admission contract written down a
// second time, from its text alone, and as naively as it goes. The rules under
// test are compared with it command by command.
//
// Where internal/admission keeps one record and changes it, the model keeps
// nothing but history: every change of an identity that ever happened, with its
// time. Whatever is asked is worked out from the first event on, every time. It
// has no stored lapse, no alarm, no tombstone and no bounded memory; it is slow
// and forgets nothing.
//
// The contract says "at least" in places, and leaves a few answers open. There
// [Shard.Decide] returns several verdicts, the most careful first, and the one
// that was given is adopted with [Shard.Adopt].
//
// # Invariants
//
//  1. The model shares the vocabulary of internal/admission (commands, answers,
//     limits) and none of its decisions.
//  2. Decide changes nothing; only Adopt does.
//
// # Failures
//
// None: a model that cannot answer is wrong, and panics.
package model
