package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/store"
)

// SegmentBytes is what a segment of the log is allocated with; one that an append of more fills takes more.
const SegmentBytes = 8 << 20

// ErrDiverged says that a log is not what its replica had acknowledged, or does not belong
// to the state beside it. It is wrapped with what was found.
var ErrDiverged = errors.New("log and state do not belong together")

// Options are what an opened log needs of its user.
type Options struct {
	// Logger is told what an operator may want to know, WALLogger what the WAL says of itself.
	Logger    *slog.Logger
	WALLogger hclog.Logger
	// Create says that there may be no log yet. Else there is one that has lost what it
	// promised where its files are missing, and that is an error.
	Create bool
	// Rotated is called when a segment has been created. It must not block. nil: nobody is told.
	Rotated func()
	// Ahead is told of entries that this replica makes as the leader, before they are
	// written, and of the entry that they follow. It must not block. nil: nobody is.
	Ahead func(before store.Position, entries []*raft.Log)
}

// Open opens the log in the directory, which exists. An error names the directory or a file.
func Open(dir string, options Options) (opened *Log, err error) {
	err = guard("log "+dir, func() (err error) {
		opened, err = open(dir, options)
		return err
	})
	return opened, err
}

func open(dir string, options Options) (*Log, error) {
	if err := checkIndex(dir, !options.Create); err != nil {
		return nil, err
	}
	if err := checkNames(dir); err != nil {
		return nil, err
	}
	files := newSegmentFiles(options.Rotated, options.Logger)
	meta := &walIndex{}
	if err := settleTail(dir, meta); err != nil {
		return nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), meta.Close())
	}
	log, err := wal.Open(dir,
		wal.WithSegmentSize(SegmentBytes),
		wal.WithMetaStore(meta),
		wal.WithSegmentFiler(newSegmentFiler(dir, files)),
		wal.WithLogger(options.WALLogger),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), meta.Close())
	}
	chained, err := chain(dir, log, meta, files, options)
	if err != nil {
		return nil, errors.Join(err, log.Close(), meta.Close())
	}
	return chained, nil
}

// checkIndex looks at the WAL's own index before the WAL does, which makes it anew
// where it is missing or empty. With it, term and vote would be gone: the replica could
// vote a second time in a term. The WAL never leaves it empty itself: it is made under
// another name first.
func checkIndex(dir string, there bool) error {
	path := filepath.Join(dir, metadb.FileName)
	file, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !there:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("log: %s %w", path, store.ErrNotExist)
	case err != nil:
		return fmt.Errorf("log: %w", err)
	}
	if err := errors.Join(store.CheckPages(file), file.Close()); err != nil {
		return fmt.Errorf("log: %s %w", path, err)
	}
	return nil
}

// checkNames refuses what ends like a segment and has no segment's name. The WAL would say that it
// is corrupt, and of which file nothing; there is nothing to lose in one that is none of its own.
func checkNames(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	for _, entry := range entries {
		if name := entry.Name(); IsSegment(name) && !namesSegment(name) {
			return fmt.Errorf("log: %s is none of its files, which the log cannot tell from one that was renamed: "+
				"move it out of the data directory if it does not belong there", filepath.Join(dir, name))
		}
	}
	return nil
}

// Log is a replica's log and raft's few values. It is a WAL whose entries are linked and
// sealed, whose end is remembered, and that closes its metadata with it, which the WAL
// itself leaves open and locked. Its methods may be called by several goroutines.
type Log struct {
	*wal.WAL
	meta    *walIndex
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
func chain(dir string, log *wal.WAL, meta *walIndex, files *segmentFiles, options Options) (*Log, error) {
	last, err := log.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	file, noted, err := openEnd(dir, options.Create && last == 0)
	if err != nil {
		return nil, err
	}
	l := &Log{WAL: log, meta: meta, files: files, endFile: file, ahead: options.Ahead}
	if err := l.takeUp(last, noted); err != nil {
		return nil, errors.Join(fmt.Errorf("log %s: %w", dir, err), file.close())
	}
	return l, nil
}

// takeUp finds the end, and compares what the log holds with the end that was noted.
func (l *Log) takeUp(last uint64, noted chainEnd) error {
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
func (l *Log) linkAt(index uint64) (link, error) {
	var entry raft.Log
	if err := l.GetLog(index, &entry); err != nil {
		return link{}, fmt.Errorf("entry %d: %w", index, err)
	}
	return decodeLink(entry.Extensions)
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// Bytes returns how many bytes the segments take, which are allocated by 8 MiB.
func (l *Log) Bytes() int64 { return l.files.total() }

// Tail returns where the segment is that is written to; the zero value where there is none.
func (l *Log) Tail() disk.Place { return l.files.current() }

// appendBytesMax bounds what is appended at a time, unless one entry takes more: a follower that
// catches up is sent 64 entries of up to 1 MiB, of which the WAL would make three more copies.
const appendBytesMax = 4 << 20

// StoreLogs implements raft.LogStore. An error that wraps errContradiction or errLink is
// about the entries; nothing has been stored. After another one, some of them may have been.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, ends := l.end, make([]chainEnd, len(logs))
	linked, stored := make([]*raft.Log, len(logs)), make([]*raft.Log, len(logs))
	for i, log := range logs {
		next, to, err := end.after(log)
		if err != nil {
			return fmt.Errorf("entry %d of term %d: %w", log.Index, log.Term, err)
		}
		end, ends[i] = next, next
		linked[i], stored[i] = seal(log, to)
	}
	if l.ahead != nil && len(logs[0].Extensions) == 0 {
		l.ahead(store.Position{Index: l.end.index, Term: l.term}, linked)
	}
	for from, to := 0, 0; from < len(logs); from = to {
		to = from + portion(stored[from:])
		if err := l.append(linked[from:to], stored[from:to], ends[to-1]); err != nil {
			return err
		}
	}
	return nil
}

// portion returns how many of the entries are appended at a time: the first, and those behind
// it that appendBytesMax has room for.
func portion(logs []*raft.Log) int {
	bytes := len(logs[0].Data)
	for i, log := range logs[1:] {
		if bytes += len(log.Data); bytes > appendBytesMax {
			return i + 1
		}
	}
	return len(logs)
}

// append makes entries durable, behind which the log ends as is said. l.mu is held.
func (l *Log) append(linked, stored []*raft.Log, end chainEnd) error {
	if err := l.WAL.StoreLogs(stored); err != nil {
		return err
	}
	l.end, l.term = end, stored[len(stored)-1].Term
	l.recent.add(linked)
	return errors.Join(l.endFile.write(end), l.rotation())
}

// rotation waits until the next segment has been begun, where the latest append has sealed
// the one before, and returns why that failed. The WAL begins it in a goroutine of its own,
// for which only its next append waits, and only logs what goes wrong there.
//
// A cut in between would begin a segment as well, which would then, empty as it is, be sealed
// in place of the full one: a log that takes no more entries, and is not opened again.
func (l *Log) rotation() error {
	_ = l.WAL.StoreLog(&raft.Log{}) // it waits, and is refused: no log goes on with entry 0
	return errors.Join(l.meta.failure(), l.files.failure())
}

// DeleteRange implements raft.LogStore.
func (l *Log) DeleteRange(first, last uint64) error {
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
func (l *Log) cutBack(from uint64) error {
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
func (l *Log) GetLog(index uint64, log *raft.Log) error {
	if l.recent.get(index, log) {
		return nil
	}
	l.cuts.RLock()
	defer l.cuts.RUnlock()
	if err := guard("it", func() error { return l.WAL.GetLog(index, log) }); err != nil {
		return err
	}
	if log.Index != index { // a length before it is damaged: the WAL counts what it finds
		return errDamaged
	}
	return unseal(log)
}

// Set implements raft.StableStore.
func (l *Log) Set(key, value []byte) error { return l.WAL.Set(key, sealValue(key, value)) }

// Get implements raft.StableStore.
func (l *Log) Get(key []byte) ([]byte, error) {
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
func (l *Log) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (l *Log) GetUint64(key []byte) (uint64, error) {
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
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.WAL.Close(), l.meta.Close(), l.endFile.close())
}
