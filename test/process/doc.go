// Package process runs real nodes for tests: it builds the programs, starts
// coordinator processes on loopback ports with directories of their own, kills, pauses
// and restarts them, and keeps what they print.
//
// A test binary builds the programs once, in its TestMain, with [Build]. A test then
// starts one node or several with [Start]; everything that was started is killed when
// the test ends, and the end of each node's output is shown if it failed.
//
// # Invariants
//
//  1. Nothing listens or is dialed but on 127.0.0.1.
//  2. Only processes that this package started are signalled, each by its own id, and
//     none outlives its test.
//  3. A node keeps its ports and its directory over all its lives, unless the test
//     changes the directory while the node is down.
//  4. Every wait has a bound.
//
// # Failures
//
// [Start] and what it needs fails the test. The methods that may be called from other
// goroutines than the test's return errors instead.
package process
