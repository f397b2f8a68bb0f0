package raftfsm

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/histogram"
)

// Numbers is what a replica counts, from when it was opened on.
type Numbers struct {
	// LogEntries is how many entries the log holds now; 0 once it is closed.
	LogEntries uint64
	// LeaderChanges counts the leaders that this replica has heard of, itself included.
	LeaderChanges uint64
	// Reclaimed counts the due records that entries have written down here. What is
	// applied again after a restart counts again.
	Reclaimed uint64
	// LogAppend is how long appends to the log took, each with its sync.
	LogAppend histogram.Counts
	// StateFlush is how long commits of the state file took, each with its syncs.
	StateFlush histogram.Counts
}

// Numbers returns them. It waits for no call that is under way, and may be called while
// the group is closed and after that.
func (g *Group) Numbers() Numbers {
	return Numbers{
		LogEntries:    g.log.entries(),
		LeaderChanges: g.leaders.heard.Load(),
		Reclaimed:     g.fsm.reclaimed.Load(),
		LogAppend:     g.log.appends.Counts(),
		StateFlush:    g.flushes.took.Counts(),
	}
}

// entries counts the entries of the log. It does not wait behind a log that is being
// closed, which may wait for a disk.
func (l *logStore) entries() uint64 {
	if !l.open.TryRLock() {
		return 0
	}
	defer l.open.RUnlock()
	if l.closed {
		return 0
	}
	first, firstErr := l.log.FirstIndex()
	last, lastErr := l.log.LastIndex()
	if firstErr != nil || lastErr != nil || first == 0 || last < first {
		return 0
	}
	return last - first + 1
}

// flushes times the commits of the state. There is one at a time.
type flushes struct {
	began time.Time
	took  histogram.Durations
}

// beforeCommit and afterCommit are the store's commit observer.
func (g *Group) beforeCommit() {
	g.flushes.began = time.Now()
	g.watchdog.beforeCommit()
}

func (g *Group) afterCommit() {
	g.watchdog.afterCommit()
	g.flushes.took.Observe(time.Since(g.flushes.began))
}

// leaders counts those that were heard of. note is called by one goroutine.
type leaders struct {
	heard atomic.Uint64
	last  raft.ServerID
	term  uint64
}

// note counts the present leader unless it is the one that was counted last. One that was
// elected again is another.
func (l *leaders) note(id raft.ServerID, term uint64) {
	if id == "" || id == l.last && term == l.term {
		return
	}
	l.last, l.term = id, term
	l.heard.Add(1)
}
