package raftfsm

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// terms keeps a replica's term from going back, and one that is told to stand for election
// from being made a follower again. Raft sets both in two goroutines: its main loop, and the
// handler of heartbeats, beside that, which makes a follower in the heartbeat's term of whoever
// it does not find to be one.
//
// A follower that becomes a candidate just then, and votes in the next term, would be back in
// the term before when the handler comes to set it, and go on acknowledging entries of a leader
// that it has voted out. And one that its leader has told to stand says so to the handler a
// moment after it has become a candidate. In between a heartbeat would end that, and the leader,
// which hands over, would turn proposals away until it gives up.
//
// So three things hold:
//
//  1. While a heartbeat passes, the term that was noted is the heartbeat's: it is not raised
//     meanwhile (during, raise).
//  2. No term is noted below one that was.
//  3. Once raft may have been told to stand, no heartbeat passes in the term that is noted
//     (stand): all go through the main loop, behind what it was told. It raises the term next.
type terms struct {
	passing sync.RWMutex  // held for reading while a heartbeat passes, for writing while the term is raised
	noted   atomic.Uint64 // the term that is in the log's stable store
	passes  uint64        // the first term that heartbeats pass in; guarded by passing
}

// during calls pass where the noted term is the given one, and returns what it says, or false.
func (t *terms) during(term uint64, pass func() bool) bool {
	t.passing.RLock()
	defer t.passing.RUnlock()
	return t.noted.Load() == term && term >= t.passes && pass()
}

// stand is called before raft is told to stand for election.
func (t *terms) stand() {
	t.passing.Lock()
	defer t.passing.Unlock()
	t.passes = t.noted.Load() + 1
}

// note writes a term down, unless that has been done. A heartbeat that passes may call it,
// with its own term.
func (t *terms) note(term uint64, write func() error) error {
	switch noted := t.noted.Load(); {
	case term == noted:
		return nil
	case term < noted:
		return fmt.Errorf("term %d is to be noted after term %d", term, noted)
	}
	return t.raise(term, write)
}

func (t *terms) raise(term uint64, write func() error) error {
	t.passing.Lock()
	defer t.passing.Unlock()
	if err := write(); err != nil {
		return err
	}
	t.noted.Store(term)
	return nil
}
