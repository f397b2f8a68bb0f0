package raftlog

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"

	"github.com/atmostonce/coordinator/internal/disk"
)

// walIndex is the WAL's own index. It remembers a write that has failed, which the WAL only
// logs where it begins a segment, and makes an error of what is a panic, in whatever
// goroutine: the index is a bbolt file, which is read where it is mapped.
type walIndex struct {
	metadb.BoltMetaDB

	mu    sync.Mutex
	wrong error // of the latest change
	left  error // of a call that broke off: bbolt was left in the middle of it, and may keep its locks
}

// errNonsense is wrapped where files are so damaged that what reads them panics.
var errNonsense = errors.New("what reads it makes no sense of it")

// guard makes a call that reads files of the log, and turns its panics and faults into an
// error that names what is damaged. bbolt panics over a page that makes no sense, and the WAL
// over some entries; a page that the disk cannot read, or that was cut off, is a fault.
func guard(what string, call func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recovered := recover(); recovered != nil {
			if fault, is := recovered.(runtime.Error); is { // or an index that a page made up
				err = fmt.Errorf("%s is damaged: %w", what, disk.Unreadable{Cause: errors.Join(errNonsense, fault)})
				return
			}
			err = fmt.Errorf("%s is damaged: %w (%v)", what, errNonsense, recovered)
		}
	}()
	return call()
}

// call makes one call of bbolt, and none after one that broke off, which would wait for ever.
func (x *walIndex) call(do func() error) error {
	if left := x.brokenOff(); left != nil {
		return left
	}
	err := guard(metadb.FileName, do)
	if errors.Is(err, errNonsense) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.left = err
	}
	return err
}

// brokenOff returns why a call broke off, or nil.
func (x *walIndex) brokenOff() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.left
}

// Load implements [types.MetaStore].
func (x *walIndex) Load(dir string) (state types.PersistentState, err error) {
	err = x.call(func() error {
		state, err = x.BoltMetaDB.Load(dir)
		return err
	})
	return state, err
}

// CommitState implements [types.MetaStore].
func (x *walIndex) CommitState(state types.PersistentState) error {
	err := x.call(func() error { return x.BoltMetaDB.CommitState(state) })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrong = err
	return err
}

// GetStable implements [types.MetaStore].
func (x *walIndex) GetStable(key []byte) (value []byte, err error) {
	err = x.call(func() error {
		value, err = x.BoltMetaDB.GetStable(key)
		return err
	})
	return value, err
}

// SetStable implements [types.MetaStore].
func (x *walIndex) SetStable(key, value []byte) error {
	return x.call(func() error { return x.BoltMetaDB.SetStable(key, value) })
}

// Close implements [io.Closer]. A file that bbolt was left in stays open until the process
// ends, which it is about to.
func (x *walIndex) Close() error {
	if x.brokenOff() == nil {
		return x.BoltMetaDB.Close()
	}
	return nil
}

// failure returns why the latest change of the index failed, or nil.
func (x *walIndex) failure() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wrong
}
