package admission

import (
	"math"
	"time"
)

// Time is a moment on a shard's logical clock, in nanoseconds since the shard was
// created. It has nothing to do with any wall clock.
type Time int64

// Never is later than every deadline: the deadline of what has no end.
const Never Time = math.MaxInt64

// Add returns t+d, or [Never] where that would overflow.
func (t Time) Add(d time.Duration) Time {
	if d > 0 && int64(t) > math.MaxInt64-int64(d) {
		return Never
	}
	return t + Time(d)
}

// Sub returns the time from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Instant is the moment at which a command is applied.
type Instant struct {
	// Now is the shard's logical clock. Everything that is decided is decided by it.
	Now Time
	// WallNanos is the leader's wall clock, in nanoseconds since 1970 UTC. It is
	// shown to people and decides nothing.
	WallNanos int64
}

// Windows and their limits. A limit that a node's settings may change is resolved
// by the leader before it proposes; these bound what settings may ask for.
const (
	PendingTTLDefault = 5 * time.Minute
	PendingTTLMin     = 100 * time.Millisecond
	PendingTTLMax     = 24 * time.Hour

	RetentionDefault = 24 * time.Hour
	RetentionMin     = time.Second
	RetentionMax     = 30 * 24 * time.Hour

	// ReleasedRetentionMin is the least time that a released record is kept.
	ReleasedRetentionMin = 10 * time.Minute

	// ExtendSpanDefault is how long after its grant an attempt may still move its
	// deadline to.
	ExtendSpanDefault = 7 * 24 * time.Hour

	// AttemptMemory is the least time for which the id of an ended attempt is
	// remembered, up to [EndedAttemptsMax] of them.
	AttemptMemory = 10 * time.Minute

	// WaitMax bounds how long a Reserve may wait for another attempt to end.
	WaitMax = 60 * time.Second
)
