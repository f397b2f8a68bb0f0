package raftfsm

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// GroupConfig says what a group is made of. [Open] fills in what is zero in Timing,
// Logger and Store.
type GroupConfig struct {
	// Dir is the shard's directory: state.db, log/ and snapshots/ lie in it.
	Dir string
	// Identification is written into the state file, and compared with it.
	store.Identification
	// Create makes what is missing in Dir. Without it, a replica whose state or log
	// is gone does not start.
	Create bool

	// Self is this replica's id in the group.
	Self raft.ServerID
	// Layer carries the group's connections. Its address is the one that others
	// should dial. The group closes it, also where Open fails, and the layer then closes
	// its connections.
	Layer raft.StreamLayer
	// Addresses says where a server is dialed; nil, or an error of it, stands for
	// the address in the group's configuration.
	Addresses raft.ServerAddressProvider
	// Bootstrap is the configuration that a new group begins with, on one of its
	// servers only. It does nothing where there is a log or a state. Nil means that
	// the replica waits for a leader to find it.
	Bootstrap *raft.Configuration

	Timing Timing
	Logger *slog.Logger
	// Fatal is called once, when the replica can neither go on nor say so by
	// itself: an entry that cannot be read, a disk that fails or hangs. It should
	// end the process; the group applies nothing more. It may be called from any
	// goroutine and must not call the group. Required.
	Fatal func(error)
	// Store holds the bounds of the state's write-behind, and its space. Path, Create,
	// Identification, Logger, Fatal and CommitObserver are the group's to fill in.
	Store store.Config

	limits  logLimits
	openLog func(dir string, options raftlog.Options) (durableLog, error)
}

// logLimits bound the log. Tests set lower ones.
type logLimits struct {
	snapshotBytes   int64  // data appended that makes a snapshot due
	snapshotEntries uint64 // or so many entries
	bytesMax        int64  // size of the log that lowers trailing
	trailing        uint64 // entries that are kept for followers that are behind
	trailingMin     uint64
}

func defaultLimits() logLimits {
	return logLimits{
		snapshotBytes:   256 << 20,
		snapshotEntries: 8192,
		bytesMax:        512 << 20,
		trailing:        10_240,
		trailingMin:     64,
	}
}

func (c GroupConfig) withDefaults() GroupConfig {
	c.Timing = c.Timing.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.limits == (logLimits{}) {
		c.limits = defaultLimits()
	}
	if c.openLog == nil {
		c.openLog = openLog
	}
	return c
}

// Validate returns what is missing or out of range, in one line that names the
// field.
func (c GroupConfig) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("raftfsm: Dir is empty")
	case c.Self == "":
		return errors.New("raftfsm: Self is empty")
	case c.Layer == nil:
		return errors.New("raftfsm: Layer is nil")
	case c.Fatal == nil:
		return errors.New("raftfsm: Fatal is nil")
	}
	if c.Bootstrap != nil {
		if err := checkConfiguration(c.Bootstrap); err != nil {
			return fmt.Errorf("raftfsm: Bootstrap: %w", err)
		}
	}
	return c.Timing.WithDefaults().Validate()
}
