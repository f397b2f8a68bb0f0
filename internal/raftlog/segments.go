package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/atmostonce/coordinator/internal/disk"
)

// segmentFiles is the file system as the WAL sees it. It differs from the WAL's own
// in four ways: it knows how many bytes the segments take, files are for their owner
// only, a write is durable when it returns (blocks.go), and a deletion is not synced,
// since a segment that comes back after a power cut is not in the metadata and is
// deleted at the next start.
type segmentFiles struct {
	// rotated is called after a segment has been created, unless it is nil. It must not block.
	rotated func()
	writer  *blockWriter

	mu    sync.Mutex
	sizes map[string]int64 // by path
	bytes int64            // their sum
	tail  disk.Place       // the segment that is written to
	wrong error            // of the latest file that could not be made
}

var _ types.VFS = (*segmentFiles)(nil)

func newSegmentFiles(rotated func(), logger *slog.Logger) *segmentFiles {
	return &segmentFiles{rotated: rotated, writer: newBlockWriter(logger), sizes: make(map[string]int64)}
}

// IsSegment reports whether a file of the log's directory is a segment, by its name. All
// others stay in their places as long as the log is open.
func IsSegment(name string) bool { return strings.HasSuffix(name, ".wal") }

// namesSegment reports whether it is the very name of a segment.
func namesSegment(name string) bool {
	var info types.SegmentInfo
	_, err := fmt.Sscanf(name, "%d-%x.wal", &info.BaseIndex, &info.ID)
	return err == nil && name == segment.FileName(info)
}

// total returns the bytes that the segments take.
func (s *segmentFiles) total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// resize notes that a file takes so many bytes; 0 is a file that is gone.
func (s *segmentFiles) resize(path string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += size - s.sizes[path]
	if size == 0 {
		delete(s.sizes, path)
		return
	}
	s.sizes[path] = size
}

// write notes the segment that is written to from now on.
func (s *segmentFiles) write(file *os.File) error {
	at, err := disk.Of(file)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail = at
	return nil
}

// forget notes that a segment is not written to any more, if it was.
func (s *segmentFiles) forget(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tail.Path() == path {
		s.tail = disk.Place{}
	}
}

// current returns the segment that is written to; the zero value where there is none.
func (s *segmentFiles) current() disk.Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tail
}

// fail notes an error, and returns it.
func (s *segmentFiles) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = err
	return err
}

// failure returns why a segment could not be made, or nil.
func (s *segmentFiles) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrong
}

// ListDir implements [types.VFS].
func (s *segmentFiles) ListDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Create implements [types.VFS].
func (s *segmentFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	path := filepath.Join(dir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, s.fail(err)
	}
	if err := allocate(file, int64(size)); err != nil {
		return nil, errors.Join(s.fail(fmt.Errorf("allocate %s: %w", path, err)), file.Close(), os.Remove(path))
	}
	if err := s.write(file); err != nil {
		return nil, errors.Join(s.fail(err), file.Close(), os.Remove(path))
	}
	s.resize(path, int64(size))
	if s.rotated != nil {
		s.rotated()
	}
	return &segmentFile{File: file, files: s, size: int64(size), dir: dir}, nil
}

// Delete implements [types.VFS].
func (s *segmentFiles) Delete(dir, name string) error {
	path := filepath.Join(dir, name)
	s.forget(path) // before it is gone
	if err := os.Remove(path); err != nil {
		return err
	}
	s.resize(path, 0)
	return nil
}

// OpenReader implements [types.VFS].
func (s *segmentFiles) OpenReader(dir, name string) (types.ReadableFile, error) {
	return s.open(dir, name, os.O_RDONLY)
}

// OpenWriter implements [types.VFS].
func (s *segmentFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	file, err := s.open(dir, name, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := s.write(file.File); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (s *segmentFiles) open(dir, name string, flag int) (*segmentFile, error) {
	path := filepath.Join(dir, name)
	file, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.resize(path, info.Size())
	return &segmentFile{File: file, files: s, size: info.Size(), dir: dir}, nil
}

// segmentFile is one segment. It is written by one goroutine at a time.
type segmentFile struct {
	*os.File
	files *segmentFiles
	size  int64
	dir   string // to be synced with the file's first sync; then empty
}

// WriteAt implements [io.WriterAt]. What was written is durable when it returns, but for
// the file's name.
func (f *segmentFile) WriteAt(src []byte, offset int64) (int, error) {
	until, err := f.files.writer.writeAt(f.File, src, offset)
	if err != nil {
		return 0, err
	}
	if until > f.size {
		f.size = until
		f.files.resize(f.Name(), until)
	}
	return len(src), nil
}

// Sync makes the file's name durable, with the first call.
func (f *segmentFile) Sync() error {
	if f.dir == "" {
		return nil
	}
	dir := f.dir
	f.dir = ""
	return disk.SyncDirectory(dir)
}

// Close implements [io.Closer].
func (f *segmentFile) Close() error {
	return errors.Join(f.files.writer.close(f.Name()), f.File.Close())
}
