package raftlog

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segmentFiler is the WAL's own but for one thing: it reads segments that were cut off.
//
// A follower whose last entries a new leader overrules cuts them off. The WAL then
// declares the segment that they were in sealed, yet writes no index into it, without
// which nothing in a sealed segment can be read once it has been opened again: not by
// the replica that starts, and not for a follower that lacks it. The entries are all
// there, so such a segment is read through, as the last one is after a crash. What lies
// behind the cut is kept from readers by the WAL's metadata.
type segmentFiler struct{ *segment.Filer }

// Open implements [types.SegmentFiler].
func (f segmentFiler) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart != 0 {
		return f.Filer.Open(info)
	}
	cut, err := f.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	if last := cut.LastIndex(); last < info.MaxIndex {
		return nil, errors.Join(
			fmt.Errorf("%w: %s ends at entry %d, and should hold those up to %d", types.ErrCorrupt, segment.FileName(info), last, info.MaxIndex),
			cut.Close())
	}
	return cut, nil
}
