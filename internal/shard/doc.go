// Package shard puts the parts of a shard together and finds the one that a call
// belongs to.
//
// The hash of an identity names its shard ([Router.ShardOf]); on every node a shard
// has one [Replica]: a Raft group, the actor that decides while the replica leads,
// and the state that both share. Any node takes any call; where its replica does not
// lead, the call is forwarded to the node that does, once ([Router.Call]).
//
// # Invariants
//
//  1. The number of shards and the hash never change in the life of a cluster.
//  2. A replica is closed in the order actor, group, state: what was proposed has come
//     to its end, or its callers know that its outcome is unknown, before Raft is
//     shut down.
//  3. A shard that is handed over has its clock written down first, so that no
//     deadline comes later for it than the change of leader takes.
//
// # Failures
//
// Opening fails with an error that names the shard's directory. A write or sync that
// fails later, a hung disk or an entry that cannot be read is reported once through
// [Config.Fatal], and the node is expected to stop: its other replicas are no better
// off on the same disk.
package shard
