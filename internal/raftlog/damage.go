package raftlog

import (
	"errors"
	"io/fs"

	"github.com/hashicorp/raft-wal/types"

	"github.com/atmostonce/coordinator/internal/store"
)

// Damaged reports whether an error says that a file of a log is not as it was written: not that
// the disk failed to do what it was asked, nor that the file is of a newer version.
func Damaged(err error) bool {
	for _, damage := range []error{errDamaged, errLength, errLink, errNonsense, types.ErrCorrupt, store.ErrCorrupt} {
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

// DamagedAtStart is [Damaged] for an error of [Open], which finds as well that files are lost, or
// were put back: nobody but who opens the log has touched them.
func DamagedAtStart(err error) bool {
	return Damaged(err) || errors.Is(err, ErrDiverged) || errors.Is(err, fs.ErrNotExist)
}
