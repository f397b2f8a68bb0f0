package raftfsm

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// terms keeps a replica's term from going back. Raft sets it in two goroutines: its main loop
// raises it, and the handler of heartbeats, beside that, sets the heartbeat's where it finds a
// candidate in place of a follower. A follower that becomes one just then, and votes in the
// next term, would be back in the term before when the handler comes to set it, and go on
// acknowledging entries of a leader that it has voted out.
//
// So two things hold:
//
//  1. While a heartbeat passes, the term that was noted is the heartbeat's: it is not raised
//     meanwhile (during, raise).
//  2. No term is noted below one that was.
type terms struct {
	passing sync.RWMutex  // held for reading while a heartbeat passes, for writing while the term is raised
	noted   atomic.Uint64 // the term that is in the log's stable store
}

// during calls pass where the noted term is the given one, and returns what it says, or false.
func (t *terms) during(term uint64, pass func() bool) bool {
	t.passing.RLock()
	defer t.passing.RUnlock()
	return t.noted.Load() == term && pass()
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
