package raftfsm

import (
	"errors"

	"github.com/hashicorp/raft"
)

// trim keeps the log's bytes bounded. Raft counts entries only, and an entry may be
// of any size up to about 1 MiB. It looks whenever the log has grown by a
// segment, so that an idle group costs nothing.
func (g *Group) trim() {
	lowered := false
	atSnapshot := int64(0)
	for {
		select {
		case <-g.rotated:
		case <-g.closing:
			return
		}
		total, appended := g.log.bytes(), g.log.appended.Load()
		full := total > g.cfg.limits.bytesMax
		switch {
		case full:
			lowered = true
			g.setTrailing(g.trailing(total))
		case lowered && total <= g.cfg.limits.bytesMax/2:
			lowered = false
			g.setTrailing(g.cfg.limits.trailing)
		}
		if !full && appended-atSnapshot < g.cfg.limits.snapshotBytes {
			continue
		}
		err := g.raft.Snapshot().Error()
		switch {
		case err == nil:
			atSnapshot = appended
		case errors.Is(err, raft.ErrNothingNewToSnapshot), errors.Is(err, raft.ErrRaftShutdown):
		default:
			g.cfg.Logger.Warn("cutting the log failed, trying again when it has grown", "log_bytes", total, "error", err)
		}
	}
}

// trailing returns how many entries to keep in a log that is too large, so that
// about half of what it may take is left.
func (g *Group) trailing(total int64) uint64 {
	limits := g.cfg.limits
	first, firstErr := g.log.FirstIndex()
	last, lastErr := g.log.LastIndex()
	if firstErr != nil || lastErr != nil || last < first {
		return limits.trailingMin
	}
	keep := float64(last-first+1) * float64(limits.bytesMax/2) / float64(total)
	return max(limits.trailingMin, min(limits.trailing, uint64(keep)))
}

// setTrailing changes the one setting; all others have to be given again, since raft
// takes a zero for a value.
func (g *Group) setTrailing(entries uint64) {
	reloadable := g.raft.ReloadableConfig()
	if reloadable.TrailingLogs == entries {
		return
	}
	g.cfg.Logger.Info("keeping another number of log entries for followers", "entries", entries, "before", reloadable.TrailingLogs)
	reloadable.TrailingLogs = entries
	if err := g.raft.ReloadConfig(reloadable); err != nil {
		g.cfg.Logger.Warn("raft refused its settings", "error", err)
	}
}
