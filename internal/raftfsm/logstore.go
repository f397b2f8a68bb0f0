package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/histogram"
	"github.com/atmostonce/coordinator/internal/raftlog"
)

// durableLog is a [raftlog.Log]; for tests, one that fails.
type durableLog interface {
	raft.LogStore
	raft.StableStore
	Bytes() int64
	Tail() disk.Place
	Close() error
}

// openLog opens a log.
func openLog(dir string, options raftlog.Options) (durableLog, error) {
	opened, err := raftlog.Open(dir, options)
	if err != nil {
		return nil, err // and no interface that holds a nil
	}
	return opened, nil
}

// logStore is the log as raft uses it: watched, closed only when nobody is in a call,
// and fatal on a failed write, on an entry that cannot be read back, on a cut that would
// take back what the state has applied, and on a leader that contradicts the log.
//
// A write that has failed may have reached the disk or not, and the kernel may
// report a later sync as good; raft would go on as a follower that can never store
// anything. Only a new process that reads back what is there knows where it stands.
type logStore struct {
	log      durableLog
	watchdog *watchdog
	fatal    func(error)
	// applied returns the last index that the state has applied, and the one at which
	// it was installed.
	applied func() (index, installed uint64)
	// lacked returns the first entry that a follower needs, if one does; nil: none does.
	lacked func() (first uint64, some bool)
	// terms is what the transport's way in goes by as well.
	terms terms

	// appended counts the data bytes of the entries stored since the start.
	appended atomic.Int64
	// appends times StoreLogs, which syncs.
	appends histogram.Durations

	// open is held for reading in every call: raft reads the log's age from a
	// goroutine that it does not wait for.
	open   sync.RWMutex
	closed bool
}

var (
	_ raft.LogStore          = (*logStore)(nil)
	_ raft.MonotonicLogStore = (*logStore)(nil)
	_ raft.StableStore       = (*logStore)(nil)
)

// errLogClosed answers calls after the log has been closed.
var errLogClosed = errors.New("the log is closed")

// read makes one watched call that changes nothing.
func (l *logStore) read(name string, call func() error) error {
	l.open.RLock()
	defer l.open.RUnlock()
	if l.closed {
		return errLogClosed
	}
	watched := l.watchdog.enter(name)
	defer l.watchdog.leave(watched)
	return call()
}

// write makes one watched call whose failure ends the process.
func (l *logStore) write(name string, call func() error) error {
	err := l.read(name, call)
	if err != nil && !errors.Is(err, errLogClosed) {
		l.fatal(fmt.Errorf("%s failed: %w", name, err))
	}
	return err
}

// FirstIndex implements [raft.LogStore].
func (l *logStore) FirstIndex() (index uint64, err error) {
	err = l.read("a read of the log", func() error {
		index, err = l.log.FirstIndex()
		return err
	})
	return index, err
}

// LastIndex implements [raft.LogStore].
func (l *logStore) LastIndex() (index uint64, err error) {
	err = l.read("a read of the log", func() error {
		index, err = l.log.LastIndex()
		return err
	})
	return index, err
}

// GetLog implements [raft.LogStore].
func (l *logStore) GetLog(index uint64, log *raft.Log) error {
	err := l.read("a read of the log", func() error { return l.log.GetLog(index, log) })
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, errLogClosed) {
		return err
	}
	err = fmt.Errorf("log entry %d: %w", index, err)
	l.fatal(err)
	return err
}

// StoreLog implements [raft.LogStore].
func (l *logStore) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements [raft.LogStore]. The entries are synced when it returns.
func (l *logStore) StoreLogs(logs []*raft.Log) error {
	began := time.Now()
	err := l.write("an append to the log", func() error { return l.log.StoreLogs(logs) })
	if err != nil {
		return err
	}
	l.appends.Observe(time.Since(began))
	size := 0
	for _, log := range logs {
		size += len(log.Data)
	}
	l.appended.Add(int64(size))
	return nil
}

// DeleteRange implements [raft.LogStore]: raft cuts the beginning once it is in the state,
// the end where a leader's log says otherwise, and all of it once a state has been
// installed in its place.
func (l *logStore) DeleteRange(first, last uint64) error {
	if err := l.contradiction(first, last); err != nil {
		if errors.Is(err, ErrDiverged) {
			l.fatal(err)
		}
		return err
	}
	last, err := l.spare(first, last)
	if err != nil || last < first {
		return err
	}
	return l.write("a cut of the log", func() error { return l.log.DeleteRange(first, last) })
}

// spare returns up to where the log is cut where that is asked for up to last. Of a cut of
// its beginning, it leaves out what a follower needs.
func (l *logStore) spare(first, last uint64) (uint64, error) {
	end, err := l.LastIndex()
	if err != nil || last >= end || l.lacked == nil {
		return last, err
	}
	if needed, some := l.lacked(); some && needed <= last {
		return max(needed, first) - 1, nil
	}
	return last, nil
}

// contradiction returns an error where the end of the log is to be cut off although the
// state has applied it. What is applied was committed, so a majority had it; a leader
// that does not have it was elected by nodes that have lost it. Following that leader
// would leave this replica with a state that is not its log's, for good.
func (l *logStore) contradiction(first, last uint64) error {
	end, err := l.LastIndex()
	if err != nil {
		return err
	}
	applied, installed := l.applied()
	if last < end || first > applied || applied == installed {
		return nil
	}
	return fmt.Errorf("%w: the leader's log says otherwise from entry %d on, and the state has applied %d; "+
		"a majority has lost what it had acknowledged (was a data directory lost, or an older copy put back?)",
		ErrDiverged, first, applied)
}

// accept looks at what a leader sends before raft does. Raft takes an entry that it has
// already, by index and term, for the same one, and skips it: [raftlog.Contradicts].
func (l *logStore) accept(request *raft.AppendEntriesRequest) error {
	if len(request.Entries) == 0 {
		return nil
	}
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	for _, sent := range request.Entries {
		if err := raftlog.CheckLink(sent); err != nil {
			return fmt.Errorf("entry %d of term %d: %w", sent.Index, sent.Term, err)
		}
		if sent.Index < first || sent.Index > last {
			continue
		}
		var stored raft.Log
		switch err := l.GetLog(sent.Index, &stored); {
		case errors.Is(err, raft.ErrLogNotFound): // cut meanwhile
			continue
		case err != nil:
			return err
		}
		if err := raftlog.Contradicts(sent, &stored); err != nil {
			err = fmt.Errorf("entry %d of term %d: %w", sent.Index, sent.Term, err)
			l.fatal(err)
			return err
		}
	}
	return nil
}

// IsMonotonic implements [raft.MonotonicLogStore]: there are no gaps, so raft empties
// the log when it has installed a snapshot.
func (l *logStore) IsMonotonic() bool { return true }

// Set implements [raft.StableStore].
func (l *logStore) Set(key, value []byte) error {
	return l.write("a write of the vote", func() error { return l.log.Set(key, value) })
}

// Get implements [raft.StableStore].
func (l *logStore) Get(key []byte) (value []byte, err error) {
	err = l.read("a read of the vote", func() error {
		value, err = l.log.Get(key)
		return err
	})
	return value, err
}

// SetUint64 implements [raft.StableStore]. A term that goes back is refused.
func (l *logStore) SetUint64(key []byte, value uint64) error {
	write := func() error {
		return l.write("a write of the term", func() error { return l.log.SetUint64(key, value) })
	}
	if !bytes.Equal(key, keyCurrentTerm) {
		return write()
	}
	err := l.terms.note(value, write)
	if err != nil && !errors.Is(err, errLogClosed) {
		l.fatal(err)
	}
	return err
}

// noteTerm reads the term that raft begins with.
func (l *logStore) noteTerm() error {
	term, err := l.GetUint64(keyCurrentTerm)
	l.terms.noted.Store(term)
	return err
}

// GetUint64 implements [raft.StableStore].
func (l *logStore) GetUint64(key []byte) (value uint64, err error) {
	err = l.read("a read of the term", func() error {
		value, err = l.log.GetUint64(key)
		return err
	})
	return value, err
}

// bytes returns how many bytes the log's files take. It waits for no call.
func (l *logStore) bytes() int64 { return l.log.Bytes() }

// tail returns where the segment is that is written to. It waits for no call.
func (l *logStore) tail() disk.Place { return l.log.Tail() }

// close waits for the calls that are under way.
func (l *logStore) close() error {
	l.open.Lock()
	defer l.open.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.log.Close()
}
