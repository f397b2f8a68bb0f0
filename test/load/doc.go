// Package load calls real nodes (package process) as many clients would, for tests that
// measure: many callers that each go straight to their shard's leader, a probe that
// asks at fixed times whatever happens, and what /proc says of the processes.
//
// Everything is bounded in number and time, and goes to the loopback interface.
package load
