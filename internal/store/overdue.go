package store

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// OverdueMax is the most that [Store.Overdue] counts to: counting is to hold up an update
// for less than a tenth of a millisecond.
const OverdueMax = 1000

// Overdue returns how many records are due by the shard's clock and not written down yet,
// up to [OverdueMax], and how long the first of them has been. It may be called after the
// store has failed or closed.
func (s *Store) Overdue() (records int, longest time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.head.clock.Now
	if earliest, some := s.nextAlarm(); some && earliest <= now {
		longest = now.Sub(earliest)
	}
	return s.index.heap.overdue(0, now, OverdueMax), longest
}

// overdue counts the slots whose alarm is not after now from a position down, up to most.
// It looks at no more than what it counts and the children of that: a slot is never due
// before the one above it.
func (h *deadlines) overdue(position uint64, now admission.Time, most int) (found int) {
	if most <= 0 || position >= uint64(h.length) || h.slots.at(*h.order.at(uint32(position))).alarm > now {
		return 0
	}
	found = 1
	for child := range uint64(heapWidth) {
		found += h.overdue(position*heapWidth+1+child, now, most-found)
	}
	return found
}
