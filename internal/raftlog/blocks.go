package raftlog

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/atmostonce/coordinator/internal/disk"
)

// blockBytes is what a write begins and ends at a multiple of, in the file and in memory:
// no less than the blocks of disks and the pages of memory.
const blockBytes = 4 << 10

// zeroBytes is how far ahead zeros are written: a write that comes to where the file has
// not been written yet goes on with zeros up to the next multiple. A write over what has
// been written changes nothing but data; the first one of a block changes the file's
// extents as well, which costs the file system's journal a write of its own.
const zeroBytes = 128 << 10

// blockBufferMax is the largest buffer that is kept from one write to the next.
const blockBufferMax = 2 * zeroBytes

// blockWriter appends to a log's segments, to one at a time. A write is durable when it
// returns. It goes past the page cache in whole blocks, the first of which begins with
// what was there before; behind the end there are zeros. Where the file system does not
// take that, it goes through the page cache.
//
// A block that is written again has the same bytes up to where the file ended before: as
// long as a disk writes sectors as a whole, nothing that was durable is at risk. Readers
// go through the page cache, from which the kernel drops what is written past it.
type blockWriter struct {
	open   func(path string, direct bool) (*os.File, error) // openBlocks, but for tests
	logger *slog.Logger

	mu     sync.Mutex
	path   string   // of the segment that was written last; "" for none
	file   *os.File // to write to it
	cached bool     // the file system does not take writes past the page cache
	buffer []byte   // begins at a block of memory
	end    int64    // of the latest write; the bytes of its block before it are in buffer
	zeroed int64    // up to here, the file has been written
}

// unknownEnd is an end at which no write begins.
const unknownEnd = -1

func newBlockWriter(logger *slog.Logger) *blockWriter {
	return &blockWriter{open: openBlocks, logger: logger, end: unknownEnd}
}

// writeAt makes src durable in a segment, and returns up to where it has written. Unless
// the latest write ended at the offset, it reads what the first block begins with.
func (w *blockWriter) writeAt(segment *os.File, src []byte, offset int64) (until int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until, err = w.write(segment, src, offset)
	if w.cached || !isUnsupported(err) {
		return until, err
	}
	w.cached = true // nothing will ever be written in the other way
	w.logger.Info("writing the log through the page cache, since the file system takes no writes past it", "path", segment.Name(), "error", err)
	if err := w.release(); err != nil {
		return 0, err
	}
	return w.write(segment, src, offset)
}

// write is [blockWriter.writeAt] in the way that has not been refused so far. w.mu is held.
func (w *blockWriter) write(segment *os.File, src []byte, offset int64) (until int64, err error) {
	if err := w.turnTo(segment); err != nil {
		return 0, err
	}
	begin := floor(offset, blockBytes)
	known := w.end == offset
	w.end = unknownEnd // until the write has succeeded
	if !known {
		w.zeroed = 0
		w.fit(int(offset-begin), 0)
		if n, err := segment.ReadAt(w.buffer[:offset-begin], begin); n < int(offset-begin) {
			return 0, err
		}
	}
	end := offset + int64(len(src))
	until = ceil(end, blockBytes)
	if until > w.zeroed {
		until = ceil(end, zeroBytes)
	}
	w.fit(int(until-begin), int(offset-begin))
	copy(w.buffer[offset-begin:], src)
	clear(w.buffer[end-begin : until-begin])
	if err := writeBlocks(w.file, w.buffer[:until-begin], begin); err != nil {
		return 0, err
	}
	w.zeroed = max(w.zeroed, until)
	last := floor(end, blockBytes)
	copy(w.buffer, w.buffer[last-begin:end-begin])
	w.end = end
	if len(w.buffer) > blockBufferMax {
		w.fit(zeroBytes, int(end-last))
	}
	return until, nil
}

// turnTo opens a segment to write to it, unless it is that which was written last.
func (w *blockWriter) turnTo(segment *os.File) error {
	path := segment.Name()
	if w.path == path {
		return nil
	}
	if err := w.release(); err != nil {
		return err
	}
	file, err := w.open(path, !w.cached)
	if err != nil {
		return err
	}
	at, err := disk.Of(segment)
	if err == nil {
		err = at.Check()
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	w.path, w.file = path, file
	return nil
}

// fit makes the buffer large enough for size bytes, and no larger than blockBufferMax
// where it need not be. It keeps the first kept bytes; the others are anything.
func (w *blockWriter) fit(size, kept int) {
	if size <= len(w.buffer) && (len(w.buffer) <= blockBufferMax || size > blockBufferMax) {
		return
	}
	buffer := blocksInMemory(int(ceil(int64(max(size, 1)), zeroBytes)))
	copy(buffer, w.buffer[:kept])
	w.buffer = buffer
}

// close ends writing to a segment, if that was written last.
func (w *blockWriter) close(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.path != path {
		return nil
	}
	return w.release()
}

func (w *blockWriter) release() error {
	file := w.file
	w.path, w.file, w.end = "", nil, unknownEnd
	if file == nil {
		return nil
	}
	return file.Close()
}

// blocksInMemory returns size bytes that begin at a block of memory.
func blocksInMemory(size int) []byte {
	whole := make([]byte, size+blockBytes)
	skip := int(-uintptr(unsafe.Pointer(&whole[0])) & (blockBytes - 1))
	return whole[skip : skip+size : skip+size]
}

func floor(n, unit int64) int64 { return n - n%unit }

func ceil(n, unit int64) int64 { return floor(n+unit-1, unit) }

// isUnsupported reports whether a file system has refused the way of writing, not what
// was to be written.
func isUnsupported(err error) bool {
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}
