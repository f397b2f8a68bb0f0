package raftfsm

import (
	"sync"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// logIndex is the WAL's own index. It remembers a write that has failed, which the WAL only
// logs where it begins a segment.
type logIndex struct {
	metadb.BoltMetaDB

	mu    sync.Mutex
	wrong error
}

// CommitState implements [types.MetaStore].
func (x *logIndex) CommitState(state types.PersistentState) error {
	err := x.BoltMetaDB.CommitState(state)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = err
	return err
}

// failure returns why the latest change of the index failed, or nil.
func (x *logIndex) failure() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wrong
}
