package raftfsm

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// Keys of raft's stable store that are read here.
var keyCurrentTerm = []byte("CurrentTerm")

// ErrDiverged says that log and state do not belong together. It is wrapped with the
// directory and what was found.
var ErrDiverged = raftlog.ErrDiverged

// ErrStateDiffers says that this replica's state is not the leader's, although both have
// applied the same entries. It is wrapped with what was found.
var ErrStateDiffers = errors.New("the state is not the leader's")

// reconcile makes log and state fit before raft sees them.
//
// Entries are applied only after they are durable in the log of a majority, and not
// necessarily in this one; but this replica does not hear of a commit before it has
// them itself. So the log holds what the state has applied, or is cut before it. The
// exception is a state that was installed: its log is of before, and raft was about
// to empty it when the process ended.
func reconcile(dir string, log *logStore, state *store.Store, logger *slog.Logger) error {
	first, err := log.FirstIndex()
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	last, err := log.LastIndex()
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	applied := state.Applied()
	if err := checkTerm(dir, log, last, applied.Term); err != nil {
		return err
	}
	if first > applied.Index+1 {
		return fmt.Errorf("%s: %w: the log begins at %d, and the state has applied no more than %d", dir, ErrDiverged, first, applied.Index)
	}
	wrong, err := lacks(log, first, last, applied)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if wrong == "" {
		return readable(dir, log, max(first, applied.Index+1), last)
	}
	if state.InstalledAt() != applied.Index {
		return fmt.Errorf("%s: %w: %s; a file was lost or put back", dir, ErrDiverged, wrong)
	}
	if last == 0 {
		return nil
	}
	logger.Info("emptying the log of before the state was installed", "dir", dir, "first", first, "last", last, "applied", applied.Index)
	if err := log.DeleteRange(first, last); err != nil {
		return fmt.Errorf("%s: emptying the log: %w", dir, err)
	}
	return nil
}

// lacks says how a log that goes from first to last does not hold what the state has applied;
// "" where it does, or was cut behind it.
func lacks(log *logStore, first, last uint64, applied store.Position) (wrong string, err error) {
	switch {
	case last < applied.Index:
		return fmt.Sprintf("the log ends at %d, and the state has applied %d", last, applied.Index), nil
	case applied.Index == 0 || first > applied.Index:
		return "", nil
	}
	var entry raft.Log
	if err := log.GetLog(applied.Index, &entry); err != nil {
		return "", fmt.Errorf("log entry %d: %w", applied.Index, err)
	}
	if entry.Term != applied.Term {
		return fmt.Sprintf("entry %d is of term %d in the log, and of term %d in the state", applied.Index, entry.Term, applied.Term), nil
	}
	return "", nil
}

// readable sees that the entries that are to be applied can be: better now, with
// a name, than in the middle of serving.
func readable(dir string, log *logStore, first, last uint64) error {
	var entry raft.Log
	for index := first; index <= last; index++ {
		if err := log.GetLog(index, &entry); err != nil {
			return fmt.Errorf("%s: log entry %d: %w", dir, index, err)
		}
	}
	return nil
}

// checkTerm sees that the term was not lost. Raft notes a term, and its vote in it, before
// it stores anything of it; a replica that has forgotten them could vote again.
func checkTerm(dir string, log *logStore, last, applied uint64) error {
	term, err := log.GetUint64(keyCurrentTerm)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	newest := applied
	if last > 0 {
		var entry raft.Log
		if err := log.GetLog(last, &entry); err != nil {
			return fmt.Errorf("%s: log entry %d: %w", dir, last, err)
		}
		newest = max(newest, entry.Term)
	}
	if term < newest {
		return fmt.Errorf("%s: %w: the latest term that the log knows of is %d, and there are entries of term %d; a file was lost or put back",
			dir, ErrDiverged, term, newest)
	}
	return nil
}

// bootstrap writes the configuration of a new group as its first entry, unless there
// is something already. Raft's own leaves a server for good without a configuration
// if it ends between its two writes, of the term and of the entry; this one takes it
// up again. Term 1 is nobody else's: the first leader's is 2.
func (g *Group) bootstrap() error {
	if g.cfg.Bootstrap == nil {
		return nil
	}
	last, err := g.log.LastIndex()
	if err != nil {
		return fmt.Errorf("%s: %w", g.cfg.Dir, err)
	}
	term, err := g.log.GetUint64(keyCurrentTerm)
	if err != nil {
		return fmt.Errorf("%s: %w", g.cfg.Dir, err)
	}
	if last > 0 || term > 1 || g.store.Applied().Index > 0 {
		return nil
	}
	if err := g.log.SetUint64(keyCurrentTerm, 1); err != nil {
		return fmt.Errorf("%s: %w", g.cfg.Dir, err)
	}
	entry := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(*g.cfg.Bootstrap)}
	if err := g.log.StoreLog(entry); err != nil {
		return fmt.Errorf("%s: %w", g.cfg.Dir, err)
	}
	return nil
}
