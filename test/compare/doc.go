// Package compare measures this coordinator beside what could be used in its place: etcd,
// Redis and PostgreSQL, at the same job, on the same machine, in the same run.
//
//	make bench-compare
//
// The job is a pair: Reserve with a TTL of its own on a new random key, then Commit with a
// response of 100 bytes, both durable before they are answered. What each system is asked
// for it stands in the file of its name, and what it promises beside in docs/benchmarks.md.
//
// # How it is measured
//
// All servers are processes of their own on loopback ports, their data on one file system,
// with default settings but where it says so. The callers are one more process. Each waits
// for its answer before it sends the next call. All that stand in a table take their turns
// round after round, each round in another order, so that what else the machine does
// befalls them alike; a ratio is of two turns of the same round. Numbers of two runs, or of
// two machines, say nothing about each other.
//
// A server that is not installed is left out, and the output says so.
//
// # Bounds
//
// A turn ends with its time, and a call that hangs after [callWithin]. What was started is
// ended by its process id when the test ends.
package compare
