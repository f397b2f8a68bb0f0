package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// The bounds of what is kept in memory of a log's end.
const (
	recentMax      = 64
	recentBytesMax = 1 << 20
)

// recentEntries are the last entries of a log. Each is read again soon after it was
// written: by the leader with the one before it for each follower, by a follower when it
// is committed. At most recentMax entries are kept, and recentBytesMax of their data.
//
// They are not to be changed by whoever gets them. Any number of goroutines may use it;
// only one adds.
type recentEntries struct {
	mu      sync.RWMutex
	entries []*raft.Log // without gaps
	bytes   int
}

// add keeps entries that follow what was added before, or begins anew with them.
func (r *recentEntries) add(logs []*raft.Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, log := range logs {
		if n := len(r.entries); n > 0 && r.entries[n-1].Index+1 != log.Index {
			r.entries, r.bytes = nil, 0
		}
		r.entries = append(r.entries, log)
		r.bytes += len(log.Data)
		for len(r.entries) > recentMax || r.bytes > recentBytesMax {
			r.bytes -= len(r.entries[0].Data)
			r.entries[0] = nil
			r.entries = r.entries[1:]
			if len(r.entries) == 0 {
				break
			}
		}
	}
}

// get fills in the entry, if it is kept.
func (r *recentEntries) get(index uint64, log *raft.Log) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.entries) == 0 || index < r.entries[0].Index || index-r.entries[0].Index >= uint64(len(r.entries)) {
		return false
	}
	*log = *r.entries[index-r.entries[0].Index]
	return true
}

// clear forgets them all.
func (r *recentEntries) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.bytes = nil, 0
}
