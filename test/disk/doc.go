// Package disk proves what becomes of acknowledged records when the disk, or the power,
// lets a node down. It records with strace every change and every sync of every file of
// real processes under load, rebuilds what a power failure at any moment may have left
// of them, and opens that with the program's own code.
//
// # What a power failure leaves
//
// [Files] is made of the traces. A write, a length or a name is durable once a sync of
// that file, or of that directory, was called after it had returned, and has returned
// itself: nothing else is, however a certain file system may behave. All else is there
// or not, by the [Mode]; a write may be there in part, by sectors of 512 bytes. A
// process that was killed takes nothing along: what it had written is still in the
// page cache, and goes when the power does.
//
// A call counts as acknowledged at a moment if its answer had arrived before that, by
// the clock that strace stamps the trace with: the answer is stamped later than
// it was sent, so that nothing is asked of a node that it did not have to know.
//
// # Invariants
//
//  1. Nothing is left out: a system call on a file of the directory that the model does
//     not know is an error, and after each life the model is compared with what is
//     really there, byte for byte.
//  2. The same seed draws the same failures of the same recording.
//
// # Failures
//
// Without strace, or where it may not trace, the tests that need it are skipped and say
// what has not been tried.
package disk
