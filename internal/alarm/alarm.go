// Package alarm says when a shard's leader must propose something although nobody
// has asked for anything: a reclaim once the earliest deadline has come, and a
// tick before the log's clock falls too far behind.
//
// The log's clock moves with the entries, and a change of leader starts from where
// the log left it: what the old leader has lived through since its last entry is
// lost, and every deadline comes later by as much. So a leader that has nothing
// else to write writes ticks, often enough that a change of leader costs no more
// than [DriftMin] or [DriftFraction] of the time to the earliest deadline,
// whichever is more.
//
// The functions are pure; the shard's actor owns the one timer.
package alarm

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// The bounds on what a change of leader may cost, beyond the time without a leader.
const (
	DriftMin = time.Second
	// DriftFraction is the part of the time to the earliest deadline: one in so many.
	DriftFraction = 100
)

// ReclaimMax bounds how many due records a log entry without commands reclaims: at a few
// microseconds each, a batch holds up what is behind it for less than a millisecond.
const ReclaimMax = 128

// Due reports whether the earliest alarm has come.
func Due(earliest, live admission.Time) bool { return live >= earliest }

// Wait returns how long after live time a shard must propose: until its earliest
// alarm is due or the drift between live and logged time is as large as it may
// get, whichever is first. It is never negative. [admission.Never] as earliest
// means that there is no alarm, and the result is then negative: no need at all.
func Wait(earliest, live, logged admission.Time) time.Duration {
	if earliest == admission.Never {
		return -1
	}
	left := max(0, earliest.Sub(live))
	drift := live.Sub(logged)
	// The drift after t is drift+t, and may be DriftMin or (left-t)/DriftFraction.
	untilMin := DriftMin - drift
	untilFraction := (left - DriftFraction*drift) / (DriftFraction + 1)
	return min(left, max(0, untilMin, untilFraction))
}
