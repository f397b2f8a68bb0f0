// Package e2e tests the programs as their users run them: real coordinator processes on
// loopback ports, called over gRPC and looked at with coordctl, while they are killed,
// paused, wiped and damaged.
//
// The callers behave as the contract asks of them: a call keeps its attempt id or
// token over its retries, and is retried until its answer is the truth. What they
// were told goes into a history (package history), which is checked in the end: no
// key granted to two, no fence twice, nothing acknowledged forgotten, every replay
// byte for byte.
//
// What is random is drawn from a seed that the test logs; E2E_SEED repeats it. The
// scheduling of processes is not repeated with it.
//
// # Failures
//
// They fail the test, with the end of every node's output.
package e2e
