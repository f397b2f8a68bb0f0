package raftlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segmentFiler is the WAL's own but for two things: it reads segments that were cut off, and
// keeps a writer for the last segment only.
//
// A follower whose last entries a new leader overrules cuts them off. The WAL then
// declares the segment that they were in sealed, yet writes no index into it, without
// which nothing in a sealed segment can be read once it has been opened again: not by
// the replica that starts, and not for a follower that lacks it. The entries are all
// there, so such a segment is read through, as the last one is after a crash. What lies
// behind the cut is kept from readers by the WAL's metadata.
//
// The WAL begins one segment at a time, and the first while it is opened.
type segmentFiler struct {
	*segment.Filer
	files *segmentFiles
	tail  *tailSegment // which is appended to; nil where there is none yet
}

func newSegmentFiler(dir string, files *segmentFiles) *segmentFiler {
	return &segmentFiler{Filer: segment.NewFiler(dir, files), files: files}
}

// Create implements [types.SegmentFiler]. Nothing is appended any more to the segment before.
func (f *segmentFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	if f.tail != nil {
		if err := f.tail.end(); err != nil {
			return nil, f.files.fail(err)
		}
	}
	return f.appendTo(info, f.Filer.Create)
}

// RecoverTail implements [types.SegmentFiler].
func (f *segmentFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	return f.appendTo(info, f.Filer.RecoverTail)
}

func (f *segmentFiler) appendTo(
	info types.SegmentInfo, open func(types.SegmentInfo) (types.SegmentWriter, error),
) (types.SegmentWriter, error) {
	writer, err := open(info)
	if err != nil {
		return nil, named(info, err)
	}
	f.tail = &tailSegment{filer: f, info: info, writer: writer, reader: writer}
	return f.tail, nil
}

// Open implements [types.SegmentFiler].
func (f *segmentFiler) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart != 0 {
		sealed, err := f.Filer.Open(info)
		return sealed, named(info, err)
	}
	cut, err := f.Filer.RecoverTail(info)
	if err != nil {
		return nil, named(info, err)
	}
	if last := cut.LastIndex(); last < info.MaxIndex {
		return nil, errors.Join(
			fmt.Errorf("%w: %s ends at entry %d, and should hold those up to %d", types.ErrCorrupt, segment.FileName(info), last, info.MaxIndex),
			cut.Close())
	}
	return cut, nil
}

// named names the segment that an error is about, which not all of the WAL's own do.
func named(info types.SegmentInfo, err error) error {
	if err == nil || strings.Contains(err.Error(), segment.FileName(info)) {
		return err
	}
	return fmt.Errorf("%s: %w", segment.FileName(info), err)
}

// tailSegment is the segment that is appended to, and goes on being read when it is not any
// more. The WAL would go on reading it through its writer, which keeps a buffer of twice its
// largest append, and where each entry lies: a log of large entries took more memory than
// disk. So it is opened again then, as it is after a restart.
type tailSegment struct {
	filer *segmentFiler
	info  types.SegmentInfo

	// mu is held for reading by whoever reads: the writer's file closes with it.
	mu     sync.RWMutex
	writer types.SegmentWriter // nil once nothing is appended any more
	reader types.SegmentReader // the writer, as long as there is one
	last   uint64              // what the writer's last entry was
}

// end lets the writer go. Nothing is appended meanwhile.
func (s *tailSegment) end() error {
	writer, info := s.writer, s.info
	if writer == nil {
		return nil
	}
	full, index, err := writer.Sealed()
	if err != nil {
		return err
	}
	last := writer.LastIndex()
	if full {
		info.IndexStart, info.MaxIndex = index, last
	}
	reader, err := s.filer.Open(info)
	if err != nil {
		return fmt.Errorf("opening %s to read it: %w", segment.FileName(info), err)
	}
	s.mu.Lock()
	s.writer, s.reader, s.last = nil, reader, last
	s.mu.Unlock()
	return writer.Close()
}

// Append implements [types.SegmentWriter].
func (s *tailSegment) Append(entries []types.LogEntry) error {
	if s.writer == nil {
		return types.ErrSealed
	}
	return s.writer.Append(entries)
}

// Sealed implements [types.SegmentWriter]. The WAL asks behind an append.
func (s *tailSegment) Sealed() (full bool, index uint64, err error) { return s.writer.Sealed() }

// LastIndex implements [types.SegmentWriter].
func (s *tailSegment) LastIndex() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.writer == nil {
		return s.last
	}
	return s.writer.LastIndex()
}

// GetLog implements [types.SegmentReader].
func (s *tailSegment) GetLog(index uint64) (*types.PooledBuffer, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.reader.GetLog(index)
}

// Close implements [io.Closer].
func (s *tailSegment) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.Close()
}
