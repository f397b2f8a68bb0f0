// Package metrics shows what a node counts in the text format of Prometheus.
//
// The packages below count by themselves, in plain numbers: atomics, and what they keep
// track of anyway. Here those numbers are read when somebody asks, and given names. So no
// other package knows of Prometheus, and a number that nobody asks for costs nothing but
// an addition.
//
// # Invariants
//
//  1. Every series has a bounded number of label values: shards, members, methods,
//     outcomes, and what this package names itself. No label holds what a caller sent.
//  2. Asking takes [Config].ReadWithin and a little at most, whatever hangs. A shard that
//     does not answer in that time is shown as not up, and nothing else of it is.
//  3. A shard is read by one goroutine at a time, however often is asked.
//  4. What a shard is asked makes its actor wait for nothing.
//  5. docs/metrics.md has every metric. It is written from the same table.
//
// There is a registry for each [Metrics], and nothing is registered anywhere else.
//
// # Goroutines
//
// One for each shard while somebody asks, which ends when it has read the shard. One whose
// shard hangs stays until that goes on; [Metrics.Wait] waits for it.
package metrics
