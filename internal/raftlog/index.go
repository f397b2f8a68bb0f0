package raftlog

import (
	"sync"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// walIndex is the WAL's own index. It remembers a write that has failed, which the WAL only
// logs where it begins a segment.
type walIndex struct {
	metadb.BoltMetaDB

	mu    sync.Mutex
	wrong error
}

// CommitState implements [types.MetaStore].
func (x *walIndex) CommitState(state types.PersistentState) error {
	err := x.BoltMetaDB.CommitState(state)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = err
	return err
}

// failure returns why the latest change of the index failed, or nil.
func (x *walIndex) failure() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wrong
}
