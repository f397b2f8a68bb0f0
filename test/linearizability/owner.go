package linearizability

import (
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// stranger returns why the token is not the record's, or "".
func stranger(s *state, o *operation) string {
	switch {
	case s.phase == none:
		return "RESERVATION_NOT_FOUND"
	case s.holder != o.attempt, !s.matches(o.event.Fence):
		return "RESERVATION_LOST"
	default:
		return ""
	}
}

// timely reports whether the answer said late exactly if it was.
func timely(s *state, o *operation) bool { return !o.told || o.late == (s.phase != pending) }

func (m *model) commit(s state, o *operation) (state, bool) {
	if reason := stranger(&s, o); reason != "" {
		return s, o.refused(reason)
	}
	e := o.event
	switch {
	case s.phase == released:
		return s, o.refused("ALREADY_RELEASED")
	case s.phase == committed && s.response != e.Response:
		return s, o.refused("COMMIT_CONFLICT")
	case s.phase == committed:
		return s, o.is(history.Committed) && !o.fresh
	case o.repeat || !o.acknowledged() || !timely(&s, o):
		return s, false
	}
	s = moves(s, o)
	over := m.kept(&s, o, s.terms.retention)
	if e.Retention > 0 {
		over = m.lasts(s.clock, o, e.Retention)
	}
	return m.settle(s, o, committed, over), true
}

func (m *model) release(s state, o *operation) (state, bool) {
	if reason := stranger(&s, o); reason != "" {
		return s, o.refused(reason)
	}
	switch {
	case s.phase == committed:
		return s, o.refused("ALREADY_COMMITTED")
	case s.phase == released:
		return s, o.is(history.Released) && !o.fresh
	case o.repeat || !o.acknowledged() || !timely(&s, o):
		return s, false
	}
	s = moves(s, o)
	return m.settle(s, o, released, m.freed(&s, o)), true
}

// freed is how long a released record stays.
func (m *model) freed(s *state, o *operation) window {
	if s.terms.retention == 0 {
		return never
	}
	return m.kept(s, o, max(s.terms.retention, releasedRetention))
}

// kept is how long a settled record stays by the terms of its attempt.
func (m *model) kept(s *state, o *operation, retention time.Duration) window {
	w := m.lasts(s.clock, o, retention)
	if s.terms.loose {
		w.high = forever
	}
	return w
}

// settle ends the holder's attempt for good.
func (m *model) settle(s state, o *operation, to phase, over window) state {
	if s.phase == pending {
		s.endedAt = s.clock
	}
	s.phase, s.deadline, s.over = to, window{}, over
	s.response, s.note = history.Digest{}, ""
	if to == committed {
		s.response = o.event.Response
	} else {
		s.note = o.event.Note
	}
	return changed(s)
}

func (m *model) extend(s state, o *operation) (state, bool) {
	if reason := stranger(&s, o); reason != "" {
		return s, o.refused(reason)
	}
	switch s.phase {
	case committed:
		return s, o.refused("ALREADY_COMMITTED")
	case released:
		return s, o.refused("ALREADY_RELEASED")
	case inDoubt:
		return s, o.refused("RESERVATION_LAPSED")
	}
	span := plus(s.granted, least(extendsEndAfter))
	if o.refused("RESERVATION_LAPSED") {
		return s, o.answered >= span
	}
	if !o.acknowledged() {
		return s, false
	}
	if o.hidden {
		// Nobody was promised anything. All that may come of it is that the deadline is
		// later than it would have been.
		if s.phase == pending && s.deadline.high == forever {
			return s, false
		}
		s = moves(s, o)
		w := window{from: s.clock, low: s.clock, high: forever}
		if s.phase == pending {
			w = window{from: s.deadline.from, low: s.deadline.low, high: forever}
		}
		was := s.phase
		s.phase, s.endedAt = pending, 0
		s = m.until(s, w)
		if was == lapsed {
			s = changed(s)
		}
		return s, true
	}
	s = moves(s, o)
	w := m.promised(&s, o, span)
	if s.phase == pending { // never backwards, and then the record is as it was
		w = window{from: s.deadline.from, low: max(w.low, s.deadline.low), high: max(w.high, s.deadline.high)}
		if s.revision != 0 {
			s.revision, s.revisionLow = 0, s.revision
		}
		return m.until(s, w), true
	}
	s.phase, s.endedAt = pending, 0
	return changed(m.until(s, w)), true
}
