package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/atmostonce/coordinator/internal/disk"
)

// A crash leaves the last segment of a log in one of two states that the WAL opens and
// then cannot go on with:
//
//   - It was sealed, and the metadata do not say so yet. The WAL takes it for the one to
//     append to, and refuses every append. settleTail writes what the WAL was about to.
//   - Behind its last whole batch lies a part of another one. The WAL writes the next batch
//     over it, perhaps a shorter one, and what is left behind that looks like more of
//     the log at the next start; an index in it has the first effect. settleTail wipes it.
//
// What the file of the end says was synced is never wiped: there the log is damaged, and
// is refused as it is.

// The WAL's format: frames behind a header, each a type, three zeros, four bytes of length
// or, of a commit, of a CRC-32C over everything since the one before; padded to eight.
const (
	segmentHeaderBytes = 32
	frameHeaderBytes   = 8
)

// segmentTail is where a segment's whole batches end.
type segmentTail struct {
	end     int64 // behind the last commit
	entries uint64
	index   uint64 // where the index begins within it; 0: it is not sealed
	dirty   int64  // behind the last byte that is not zero
}

// scanTail finds what the WAL takes for the end of a segment, by the WAL's own rules.
func scanTail(content []byte) segmentTail {
	var now, final, before segmentTail
	began, finalBegan, finalSum := int64(0), int64(0), uint32(0)
	for at := int64(segmentHeaderBytes); at+frameHeaderBytes <= int64(len(content)); {
		length := int64(binary.LittleEndian.Uint32(content[at+4:]))
		switch content[at] {
		case segment.FrameEntry:
			now.entries++
		case segment.FrameIndex:
			now.index = uint64(at) + frameHeaderBytes
		case segment.FrameCommit:
			before, finalBegan, finalSum = final, began, uint32(length)
			length = 0
			now.end = at + frameHeaderBytes
			final, began = now, now.end
		default:
			at = int64(len(content))
			continue
		}
		at += frameHeaderBytes + (length+7)&^7
	}
	switch {
	case final.end == 0, now.entries > final.entries: // what follows a batch was written after it was whole
	case crc32.Checksum(content[finalBegan:final.end-frameHeaderBytes], castagnoli) != finalSum:
		final = before
	}
	for final.dirty = int64(len(content)); final.dirty > final.end && content[final.dirty-1] == 0; {
		final.dirty--
	}
	return final
}

// settleTail prepares the log for the WAL.
func settleTail(dir string, meta *walIndex) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	last := &state.Segments[len(state.Segments)-1]
	if err := checkOrder(state.Segments); err != nil {
		return err
	}
	if !last.SealTime.IsZero() {
		return nil
	}
	path := filepath.Join(dir, segment.FileName(*last))
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the WAL makes it
	}
	if err != nil {
		return err
	}
	tail := scanTail(content)
	if noted, readable := notedEnd(dir); !readable || noted >= last.BaseIndex+tail.entries {
		return nil // it is refused, as it is, by whoever reads the end
	}
	if tail.dirty > tail.end {
		if err := wipe(path, tail.end, tail.dirty); err != nil {
			return err
		}
	}
	if tail.index == 0 {
		return nil
	}
	last.SealTime = time.Now()
	last.MaxIndex = last.BaseIndex + tail.entries - 1
	last.IndexStart = tail.index
	next := types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: last.MaxIndex + 1, MinIndex: last.MaxIndex + 1,
		SizeLimit: SegmentBytes, Codec: last.Codec, CreateTime: time.Now(),
	}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	return meta.CommitState(state)
}

// checkOrder sees that only the last segment may be appended to, which the WAL would refuse
// without a word of what to do.
func checkOrder(segments []types.SegmentInfo) error {
	for i, info := range segments[:len(segments)-1] {
		if info.SealTime.IsZero() {
			return fmt.Errorf("its index has %s, which is not sealed, before %s: an older version of this program could leave it so "+
				"where the log's end was cut off just as a segment had become full, and what the log held is not known any more: "+
				disk.Advice, segment.FileName(info), segment.FileName(segments[i+1]))
		}
	}
	return nil
}

// notedEnd returns the last entry that the file of the end knows of, 0 where there is no
// such file yet, and whether that could be read.
func notedEnd(dir string) (index uint64, readable bool) {
	file, err := os.Open(filepath.Join(dir, endName))
	if err != nil {
		return 0, errors.Is(err, fs.ErrNotExist)
	}
	end, err := readEnd(file)
	return end.index, errors.Join(err, file.Close()) == nil
}

func wipe(path string, from, to int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(make([]byte, to-from), from); err != nil {
		return errors.Join(fmt.Errorf("wiping what a crash left: %w", err), file.Close())
	}
	return errors.Join(syncData(file), file.Close())
}
