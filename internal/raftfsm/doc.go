// Package raftfsm runs one replica of a shard's Raft group: the log entry, the state
// machine that applies it to the store, the log, the snapshots and the transport.
package raftfsm
