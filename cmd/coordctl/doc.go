// Command coordctl is the coordinator at the command line: for scripts that want to
// be admitted once, and for operators.
//
// Results go to stdout and everything else to stderr, so that a script can read one
// without the other. The exit code says what happened; `coordctl --help` lists them.
//
// Invariants:
//
//  1. A call that is sent more than once is the same call: coordctl draws the attempt
//     id of a Reserve itself, and everything else names a token or a revision.
//  2. If any delivery of a call may have been applied and no later one told the
//     truth, the error says so, whatever the last delivery said.
//  3. Listings hold one page in memory.
//  4. `run` starts nothing without a reservation, and what it started does not outlive
//     the reservation: see [runner] and [guard].
package main
