package linearizability

import (
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// The contract's figures that no event holds.
const (
	extendsEndAfter   = 7 * 24 * time.Hour
	rememberedFor     = 10 * time.Minute
	rememberedMin     = 8  // as long as the record
	rememberedMax     = 64 // however recent
	releasedRetention = 10 * time.Minute
)

// model is the contract for one identity: what may be answered, and what it leads to.
type model struct {
	shard    int
	lateness func(shard int, from, until time.Duration) time.Duration // nil: any
	end      time.Duration                                            // everything was answered by then

	answers []time.Duration // of all that was answered, in order
	// granted are the numbers whose attempts are known; nil where numbers may begin anew.
	granted map[uint32]bool
	// highest is the highest number that anybody was shown; forever high where it may have been any.
	// What is granted beyond it nobody saw, so that one more explains as much as two.
	highest uint32
	// ranks are the places of the known grants in the order of their fences.
	ranks map[uint64]int
	// followed are the fences that a known grant names as that of the attempt before it: no
	// other was granted in between.
	followed map[uint64]bool
	// extends is when each attempt first sent an Extend of which a delivery is not known.
	extends map[attempt]time.Duration
	// fingerprints: somebody recorded one.
	fingerprints bool
	pools        int
}

func (m *model) start() *state {
	return &state{holder: nobody, over: never, revisionLow: 1, fenceLow: 1, turns: make([]int, m.pools)}
}

// step returns every state that an operation may lead to. A hidden one must change something:
// one that does not is put behind finish, where it is nobody's concern. That spares the
// search all orders of what has no effect.
func (m *model) step(s *state, o *operation) []*state {
	if o.what == finish {
		next := *s
		next.finished = true
		return []*state{&next}
	}
	if s.finished {
		return []*state{s} // only hidden ones are left
	}
	var after []*state
	done := s.done
	if !o.hidden {
		done = done.with(o.answer)
	}
	passages, count := m.passages(s, o, m.due(done))
	for _, now := range passages[:count] {
		if o.hidden && o.what == extend && now.phase != s.phase && passages[0].phase == s.phase {
			continue // before the lapse it allows as much
		}
		if next, ok := m.decide(now, o); ok {
			next.done = done
			after = append(after, &next)
		}
	}
	return after
}

// passages returns how the record may stand when the operation takes effect: as before,
// past the deadline, gone. Whatever else was answered by due has to follow; it was not
// answered before now, as porcupine keeps to the order of the times.
func (m *model) passages(s *state, o *operation, due time.Duration) (all [3]state, count int) {
	earliest, latest := max(s.at, o.call), min(o.answered, due)
	ends := s.over
	if s.phase == pending {
		ends = s.deadline
	}
	if s.phase == none || m.open(ends, earliest) {
		all[count] = *s
		all[count].at = earliest
		count++
	}
	if s.phase == pending {
		if at := max(earliest, s.deadline.low); at <= latest {
			all[count] = lapse(*s, at)
			count++
		}
	}
	if gone := s.over; s.phase != none && gone.low != forever {
		if at := max(earliest, gone.low); at <= latest {
			now := *s
			if s.phase == pending {
				now = lapse(now, at)
			}
			now.at, now.clock = at, max(now.clock, gone.low)
			all[count] = forget(now)
			count++
		}
	}
	return all, count
}

// open reports whether what ends in the window may still go on.
func (m *model) open(w window, at time.Duration) bool {
	return w.high == forever || at < plus(w.high, m.lateness(m.shard, w.from, at))
}

// lapse is the deadline that passed without a word.
func lapse(s state, at time.Duration) state {
	s.at, s.clock, s.phase, s.endedAt = at, max(s.clock, s.deadline.low), lapsed, s.deadline.low
	if s.terms.hold {
		s.phase, s.over = inDoubt, never
	}
	s.deadline = window{}
	return changed(s)
}

// forget is the end of a record. Its attempt stays used.
func forget(s state) state {
	s = ends(s)
	s.phase, s.holder, s.number, s.terms = none, nobody, 0, terms{}
	s.granted, s.deadline, s.over, s.endedAt = 0, window{}, never, 0
	s.response, s.note, s.settled, s.settledFrom = history.Digest{}, "", unsettled, 0
	s.fence, s.fenceLow = 0, 1
	s.lives++
	return changed(s)
}

// ends notes that the holder's attempt is one that has ended.
func ends(s state) state {
	if s.holder >= 0 {
		s.ended = &ended{attempt: s.holder, at: s.endedAt, ends: s.ends, lives: s.lives, before: s.ended}
	}
	s.ends++
	return s
}

// changed gives the record a revision that nobody has seen.
func changed(s state) state {
	s.used = max(s.used, s.revision)
	s.revision, s.revisionLow = 0, s.used+1
	return s
}

// moves sets the shard's time to that of a call that changes something.
func moves(s state, o *operation) state {
	s.clock = max(s.clock, o.call)
	return s
}

// lasts is the window of an interval that began between at, on the shard's clock, and answered.
func (m *model) lasts(at time.Duration, o *operation, interval time.Duration) window {
	switch {
	case interval == 0:
		return never // not recorded
	case o.hidden || m.lateness == nil:
		return window{from: at, low: plus(at, least(interval)), high: forever}
	default:
		return window{from: at, low: plus(at, least(interval)), high: plus(o.answered, most(interval))}
	}
}

// until sets the pending deadline, and when the record is gone if nothing is said.
func (m *model) until(s state, w window) state {
	s.deadline, s.over = w, never
	if s.terms.retention > 0 && !s.terms.hold {
		s.over = window{from: w.from, low: plus(w.low, least(s.terms.retention)), high: plus(w.high, most(s.terms.retention))}
		if s.terms.loose {
			s.over.high = forever
		}
	}
	return s
}

func (m *model) decide(s state, o *operation) (state, bool) {
	switch o.what {
	case reserve:
		return m.reserve(s, o)
	case commit:
		return m.commit(s, o)
	case release:
		return m.release(s, o)
	case extend:
		return m.extend(s, o)
	case resolve:
		return m.resolve(s, o)
	case purge:
		return m.purge(s, o)
	default:
		return m.get(s, o)
	}
}

// is reports whether the operation was answered like that.
func (o *operation) is(kind history.Kind) bool { return !o.hidden && o.event.Kind == kind }

// refused reports whether the operation was refused for that reason.
func (o *operation) refused(reason string) bool {
	return !o.hidden && o.event.Kind == history.Refused && o.event.Reason == reason
}

// acknowledged reports whether the operation may have done what it was for.
func (o *operation) acknowledged() bool { return o.hidden || o.event.Kind != history.Refused }
