package linearizability

import (
	"fmt"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// phase is where a record stands.
type phase uint8

const (
	none phase = iota
	pending
	lapsed
	inDoubt
	committed
	released
)

var phaseNames = [...]string{"none", "pending", "lapsed", "in doubt", "committed", "released"}

// settlement is how a record was settled.
type settlement uint8

const (
	unsettled settlement = iota
	asApplied
	asNotApplied
)

// window is when something ends: not before low, at high at the latest but for the
// lateness that is allowed. Its beginning is in from, as the lateness depends on it.
type window struct{ from, low, high time.Duration }

// never is the window of what does not end, or not within the history.
var never = window{low: forever, high: forever}

// state is what is known of one identity at one place of an order. It is a value: nothing
// that it points to is ever changed.
type state struct {
	// at: whatever comes next takes effect then at the earliest.
	at time.Duration
	// clock is the shard's own time, at the earliest. It may be behind: a call that waits in
	// a leader that stands still has the time at which it was received, and so has all that
	// begins with it. Answers that change nothing do not move it.
	clock time.Duration
	phase phase

	holder attempt // the attempt of the record; nobody if there is no record
	number uint32
	terms  terms
	// granted is when the holder was, at the earliest.
	granted time.Duration
	// deadline is the holder's. pending.
	deadline window
	// over is when the record is gone. All but none, in doubt; while pending it is reckoned from
	// the deadline.
	over     window
	response history.Digest // committed
	note     string         // released
	// endedAt is when the holder's attempt ended, at the earliest. lapsed, committed, released.
	endedAt time.Duration

	// fence is 0 while nobody has seen it; it is then fenceLow or larger.
	fence, fenceLow uint64
	// revision is 0 while nobody has seen it; it is then revisionLow or larger.
	revision, revisionLow uint64
	// used is the highest number of the shard that is known to be used.
	used uint64
	// grants counts the known grants.
	grants int

	settled     settlement
	settledFrom uint64

	// ended are the attempts that ended and may ask again; ends counts all that ended,
	// lives the records that are gone.
	ended *ended
	ends  int
	lives int

	done     progress
	turns    []int // of each pool of anonymous attempts, how many took effect
	finished bool
}

// ended is an attempt that has ended.
type ended struct {
	attempt attempt
	at      time.Duration // at the earliest
	ends    int           // how many had ended before
	lives   int
	before  *ended
}

// covers reports whether all that may follow on o may follow on e, as far as it asks for
// attempts that have ended: the sooner they had, the sooner they may be forgotten.
func (e *ended) covers(o *ended) bool {
	for e != o {
		if e == nil || o == nil || e.attempt != o.attempt || e.at > o.at || e.ends != o.ends || e.lives != o.lives {
			return false
		}
		e, o = e.before, o.before
	}
	return true
}

// same reports whether two states differ in moments and in numbers that nobody has seen at
// most.
func (s *state) same(o *state) bool {
	return s.phase == o.phase && s.holder == o.holder && s.number == o.number && s.terms == o.terms &&
		s.response == o.response && s.note == o.note && s.fence == o.fence && s.revision == o.revision &&
		s.settled == o.settled && s.settledFrom == o.settledFrom && s.grants == o.grants && s.ends == o.ends && s.lives == o.lives &&
		s.finished == o.finished && slices.Equal(s.turns, o.turns)
}

// covers reports whether all that may follow on o may follow on s.
func (s *state) covers(o *state) bool {
	return s == o || s.at <= o.at && s.clock <= o.clock && s.granted <= o.granted && s.endedAt <= o.endedAt &&
		s.fenceLow <= o.fenceLow && s.revisionLow <= o.revisionLow && s.used <= o.used &&
		s.deadline.covers(o.deadline) && s.over.covers(o.over) && s.same(o) && s.ended.covers(o.ended)
}

func (s *state) equal(o *state) bool { return s.covers(o) && o.covers(s) }

func (w window) covers(o window) bool { return w.low <= o.low && w.high >= o.high && w.from <= o.from }

// hash is equal for equal states.
func (s *state) hash() uint64 {
	h := uint64(s.at)
	for _, v := range [...]uint64{uint64(s.phase), uint64(s.holder + 3), uint64(s.number), s.fence, s.revision, uint64(s.ends), uint64(s.deadline.low)} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

func (s *state) String() string {
	text := fmt.Sprintf("%s at %v", phaseNames[s.phase], s.at)
	if s.phase != none {
		text += fmt.Sprintf(" number %d fence %d", s.number, s.fence)
	}
	if s.phase == pending {
		text += fmt.Sprintf(" until %v", s.deadline.low)
	}
	return text
}
