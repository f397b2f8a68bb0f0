package raftfsm

import (
	"errors"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// advise says behind an error what is to be done, where it is one of damaged files. What a majority
// has lost, and what other nodes find, is none: there the files of this one are what is left.
func advise(err error) error {
	if errors.Is(err, store.ErrCorrupt) || raftlog.Damaged(err) {
		return disk.Advise(err)
	}
	return err
}

// adviseAtStart is [advise] for an error of [Open]: a file that is lost, is another shard's or is
// something else has been damaged as well, but for one of a newer version.
func adviseAtStart(err error) error {
	lost := raftlog.DamagedAtStart(err) || errors.Is(err, store.ErrIdentification) || errors.Is(err, store.ErrForeign)
	if lost && !errors.Is(err, store.ErrVersion) {
		return disk.Advise(err)
	}
	return advise(err)
}
