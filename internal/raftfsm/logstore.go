package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/atmostonce/coordinator/internal/histogram"
	"github.com/atmostonce/coordinator/internal/store"
)

// segmentBytes is what a segment of the log is allocated with.
const segmentBytes = 8 << 20

// durableLog is what a log store must do here: raft's log and raft's few values.
type durableLog interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// logOpening is what an opened log needs of its group.
type logOpening struct {
	logger  *slogAdapter
	rotated func() // a segment has been created; it must not block
	there   bool   // there was a log before, so it must still be there
	// ahead is told of entries that this replica makes as the leader, before they are
	// written, and of the entry that they follow. It must not block. nil: nobody is.
	ahead func(before store.Position, entries []*raft.Log)
}

// openWAL opens the log in the directory, which exists. The returned files know how
// many bytes it takes.
func openWAL(dir string, open logOpening) (opened durableLog, files *segmentFiles, err error) {
	if err := checkIndex(dir, open.there); err != nil {
		return nil, nil, err
	}
	// A page that the disk cannot read is a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		// bbolt's way to say that a page is damaged.
		if recovered := recover(); recovered != nil {
			opened, files, err = nil, nil, fmt.Errorf("log %s is damaged: what reads it makes no sense of it (%v)", dir, recovered)
		}
	}()
	files = newSegmentFiles(open.rotated, open.logger.logger)
	meta := &logIndex{}
	if err := settleTail(dir, meta); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), meta.Close())
	}
	log, err := wal.Open(dir,
		wal.WithSegmentSize(segmentBytes),
		wal.WithMetaStore(meta),
		wal.WithSegmentFiler(segmentFiler{segment.NewFiler(dir, files)}),
		wal.WithLogger(open.logger),
	)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), meta.Close())
	}
	chained, err := chain(dir, log, meta, files, open)
	if err != nil {
		return nil, nil, errors.Join(err, log.Close(), meta.Close())
	}
	return chained, files, nil
}

// checkIndex looks at the WAL's own index before the WAL does, which makes it anew
// where it is missing or empty. With it, term and vote would be gone: the replica could
// vote a second time in a term. The WAL never leaves it empty itself: it is made under
// another name first.
func checkIndex(dir string, there bool) error {
	path := filepath.Join(dir, metadb.FileName)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !there {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if err := errors.Join(store.CheckPages(file), file.Close()); err != nil {
		return fmt.Errorf("log: %s %w", path, err)
	}
	return nil
}

// walLog is a WAL whose entries are linked and sealed, whose end is remembered, and that
// closes its metadata with it, which the WAL itself leaves open and locked.
type walLog struct {
	*wal.WAL
	meta    *logIndex
	files   *segmentFiles
	endFile *endFile
	ahead   func(before store.Position, entries []*raft.Log)

	// mu is held by whoever changes the log, until all of it has been done. Raft appends and
	// cuts the end off in one goroutine; it cuts the beginning in another.
	mu     sync.Mutex
	end    chainEnd // the log's
	term   uint64   // of the end; 0 where that is not known
	recent recentEntries

	// cuts is held for reading by whoever reads an entry: a cut closes segments.
	cuts sync.RWMutex
}

// chain takes up an opened WAL where it ends. It returns an error where that is not
// where it ended when it was written last.
func chain(dir string, log *wal.WAL, meta *logIndex, files *segmentFiles, open logOpening) (*walLog, error) {
	last, err := log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	file, noted, err := openEnd(dir, !open.there && last == 0)
	if err != nil {
		return nil, err
	}
	l := &walLog{WAL: log, meta: meta, files: files, endFile: file, ahead: open.ahead}
	if err := l.takeUp(last, noted); err != nil {
		return nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), file.close())
	}
	return l, nil
}

// takeUp finds the end, and compares what the log holds with the end that was noted.
func (l *walLog) takeUp(last uint64, noted chainEnd) error {
	if last < noted.index {
		return fmt.Errorf("%w: it ends at entry %d, and entry %d had been synced; "+
			"its end is damaged, or a file was lost or put back", ErrDiverged, last, noted.index)
	}
	if last == 0 {
		return nil
	}
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if noted.index >= first {
		at, err := l.linkAt(noted.index)
		if err != nil {
			return err
		}
		if at.hash != noted.hash {
			return fmt.Errorf("%w: entry %d is not the one that had been synced; a file was put back", ErrDiverged, noted.index)
		}
	}
	at, err := l.linkAt(last)
	if err != nil {
		return err
	}
	l.end = chainEnd{index: last, hash: at.hash}
	return nil
}

// linkAt returns the link of an entry of the log.
func (l *walLog) linkAt(index uint64) (link, error) {
	var entry raft.Log
	if err := l.GetLog(index, &entry); err != nil {
		return link{}, fmt.Errorf("entry %d: %w", index, err)
	}
	return decodeLink(entry.Extensions)
}

// StoreLog implements raft.LogStore.
func (l *walLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. An error that wraps errContradiction or errLink is
// about the entries; nothing has been stored.
func (l *walLog) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, linked, stored := l.end, make([]*raft.Log, len(logs)), make([]*raft.Log, len(logs))
	for i, log := range logs {
		next, to, err := end.after(log)
		if err != nil {
			return fmt.Errorf("entry %d of term %d: %w", log.Index, log.Term, err)
		}
		end = next
		linked[i], stored[i] = seal(log, to)
	}
	if l.ahead != nil && len(logs[0].Extensions) == 0 {
		l.ahead(store.Position{Index: l.end.index, Term: l.term}, linked)
	}
	if err := l.WAL.StoreLogs(stored); err != nil {
		return err
	}
	l.end, l.term = end, logs[len(logs)-1].Term
	l.recent.add(linked)
	return errors.Join(l.endFile.write(end), l.rotation())
}

// rotation waits until the next segment has been begun, where the latest append has sealed
// the one before, and returns why that failed. The WAL begins it in a goroutine of its own,
// for which only its next append waits, and only logs what goes wrong there.
//
// A cut in between would begin a segment as well, which would then, empty as it is, be sealed
// in place of the full one: a log that takes no more entries, and is not opened again.
func (l *walLog) rotation() error {
	_ = l.WAL.StoreLog(&raft.Log{}) // it waits, and is refused: no log goes on with entry 0
	return errors.Join(l.meta.failure(), l.files.failure())
}

// DeleteRange implements raft.LogStore.
func (l *walLog) DeleteRange(first, last uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last >= end {
		if err := l.cutBack(first); err != nil {
			return err
		}
	}
	l.recent.clear()
	l.cuts.Lock()
	defer l.cuts.Unlock()
	return l.WAL.DeleteRange(first, last)
}

// cutBack notes the end that the log will have without the entries from one on. l.mu is
// held.
func (l *walLog) cutBack(from uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	left := chainEnd{}
	if from > first {
		at, err := l.linkAt(from - 1)
		if err != nil {
			return err
		}
		left = chainEnd{index: from - 1, hash: at.hash}
	}
	l.end, l.term = left, 0
	return l.endFile.lower(left)
}

// GetLog implements raft.LogStore.
func (l *walLog) GetLog(index uint64, log *raft.Log) error {
	if l.recent.get(index, log) {
		return nil
	}
	l.cuts.RLock()
	defer l.cuts.RUnlock()
	if err := l.WAL.GetLog(index, log); err != nil {
		return err
	}
	if log.Index != index { // a length before it is damaged: the WAL counts what it finds
		return errDamaged
	}
	return unseal(log)
}

// Set implements raft.StableStore.
func (l *walLog) Set(key, value []byte) error { return l.WAL.Set(key, sealValue(key, value)) }

// Get implements raft.StableStore.
func (l *walLog) Get(key []byte) ([]byte, error) {
	sealed, err := l.WAL.Get(key)
	if err != nil {
		return nil, err
	}
	value, err := unsealValue(key, sealed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return value, nil
}

// SetUint64 implements raft.StableStore.
func (l *walLog) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (l *walLog) GetUint64(key []byte) (uint64, error) {
	value, err := l.Get(key)
	switch {
	case err != nil || len(value) == 0:
		return 0, err
	case len(value) != 8:
		return 0, fmt.Errorf("%s: %w", key, errDamaged)
	}
	return binary.BigEndian.Uint64(value), nil
}

// Close closes log, metadata and the file that remembers the end.
func (l *walLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.WAL.Close(), l.meta.Close(), l.endFile.close())
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
	return l.write("a cut of the log", func() error { return l.log.DeleteRange(first, last) })
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
// already, by index and term, for the same one, and skips it: [contradicts].
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
		if _, err := decodeLink(sent.Extensions); err != nil {
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
		if err := contradicts(sent, &stored); err != nil {
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

// SetUint64 implements [raft.StableStore].
func (l *logStore) SetUint64(key []byte, value uint64) error {
	return l.write("a write of the term", func() error { return l.log.SetUint64(key, value) })
}

// GetUint64 implements [raft.StableStore].
func (l *logStore) GetUint64(key []byte) (value uint64, err error) {
	err = l.read("a read of the term", func() error {
		value, err = l.log.GetUint64(key)
		return err
	})
	return value, err
}

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
