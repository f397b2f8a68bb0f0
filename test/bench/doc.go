// Package bench measures real processes on the loopback interface:
//
//	go test -run '^$' -bench . ./test/bench
//
// Every figure of a time stands beside what the machine itself takes, measured in the
// same run and in turn with it, so that noise befalls them alike: numbers from two
// machines, or from one at two moments, say nothing about each other.
//
//   - OneCaller: one Reserve after another, against a bare sync and a bare call.
//   - Pairs: Reserve and Commit by many callers on three nodes, for several numbers of
//     shards.
//   - Idle: what three nodes cost that nobody calls.
//   - Failover: how long shards go without a leader when one is killed.
package bench
