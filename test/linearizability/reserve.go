package linearizability

import (
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// reserve: checked are the fingerprint, the attempt that holds it, committed, in doubt,
// ended attempt, pending, free, in this order.
func (m *model) reserve(s state, o *operation) (state, bool) {
	e := o.event
	compared := s.phase != none && s.phase != released
	mismatch := compared && s.terms.fingerprint != e.Fingerprint
	if o.refused("FINGERPRINT_MISMATCH") {
		return s, mismatch || compared && !m.fingerprints
	}
	if mismatch {
		return s, false
	}
	if s.phase == pending && s.holder == o.attempt && o.attempt != anonymous {
		return m.repeated(s, o)
	}
	if o.repeat {
		return s, false
	}
	switch s.phase {
	case committed:
		return s, o.is(history.Replayed) && shown(&s, e) && s.response == e.Response
	case inDoubt:
		return s, o.is(history.InDoubt) && shown(&s, e)
	}
	known, mayBeForgotten := recall(&s, o)
	if o.is(history.Ended) {
		return s, known
	}
	if known && !mayBeForgotten {
		return s, false
	}
	if s.phase == pending {
		return s, o.is(history.Pending) && shown(&s, e)
	}
	if !o.hidden && e.Kind != history.Granted {
		return s, false
	}
	return m.grant(s, o)
}

// repeated is the answer to the holder.
func (m *model) repeated(s state, o *operation) (state, bool) {
	e := o.event
	if !o.is(history.Granted) || o.fresh || e.Number != 0 && e.Number != s.number {
		return s, false
	}
	if e.Deadline > s.deadline.low {
		s.deadline.low = e.Deadline // so long it was promised
	}
	return s, s.sees(e.Fence)
}

// recall says whether the attempt is one that has ended, and whether its id may be
// forgotten by now.
func recall(s *state, o *operation) (known, mayBeForgotten bool) {
	if o.attempt < 0 {
		return false, false
	}
	if s.holder == o.attempt && (s.phase == lapsed || s.phase == released) {
		return true, false
	}
	latest := o.answered
	for e := s.ended; e != nil; e = e.before {
		if e.attempt != o.attempt {
			continue
		}
		since := s.ends - e.ends // itself included
		if s.phase == lapsed || s.phase == released {
			since++ // the holder's attempt has ended too
		}
		old := latest >= plus(e.at, least(rememberedFor)) && (since > rememberedMin || e.lives != s.lives)
		return true, since > rememberedMax || old
	}
	return false, false
}

// grant admits the attempt.
func (m *model) grant(s state, o *operation) (state, bool) {
	e := o.event
	number := s.number + 1 // 1 if there is no record
	if o.hidden {
		if m.granted[number] || s.phase != none && m.followed[s.fence] || number-1 > m.highest && !o.ended {
			return s, false
		}
		if o.attempt == anonymous {
			if s.turns[o.pool] != o.turn {
				return s, false
			}
			s.turns = slices.Clone(s.turns)
			s.turns[o.pool]++
		}
	} else if e.Number != 0 && e.Number != number || !told(&s, o) || e.Fence != 0 && e.Fence <= s.used {
		return s, false
	}
	s = moves(s, o)
	if s.phase != none {
		s = ends(s)
	}
	s.phase, s.holder, s.number, s.terms = pending, o.attempt, number, o.terms
	s.granted, s.endedAt = s.clock, 0
	s.response, s.note, s.settled, s.settledFrom = history.Digest{}, "", unsettled, 0
	s = changed(s)
	s.fence, s.fenceLow = 0, s.used+1
	s.used++
	if !o.hidden && e.Fence != 0 {
		if m.ranks[e.Fence] != s.grants {
			return s, false // one with a lower fence could not follow any more
		}
		s.grants++
		s.fence, s.fenceLow, s.used = e.Fence, e.Fence, e.Fence
	}
	s.revisionLow = s.fenceLow
	return m.until(s, m.promised(&s, o, 0)), true
}

// told reports whether a grant says of the attempt before what is so.
func told(s *state, o *operation) bool {
	e := o.event
	if o.unseen && e.Previous == history.EndNone {
		return true // that is told with the grant; here it is only repeated
	}
	end := history.EndNone
	switch s.phase {
	case released:
		end = history.EndReleased
	case lapsed:
		end = history.EndLapsed
	}
	if e.Previous != end || end == history.EndNone && e.PreviousFence != 0 {
		return false
	}
	if e.Note != "" && e.Note != s.note {
		return false
	}
	return (e.Fence == 0 || e.PreviousFence < e.Fence) && s.matches(e.PreviousFence)
}

// promised is the deadline of a grant or an Extend that takes effect now: no earlier than
// what was asked for, and than what was told. The time for which it was asked is cut
// at latest, if that is not 0.
func (m *model) promised(s *state, o *operation, latest time.Duration) window {
	e, ttl := o.event, o.terms.ttl
	w := window{from: s.clock, low: s.clock, high: forever}
	if ttl > 0 {
		w = m.lasts(s.clock, o, ttl)
	}
	if latest > 0 {
		w.low = min(w.low, latest)
	}
	switch {
	case o.hidden:
	case ttl > 0 && o.what == reserve && !o.fresh:
		// What it was told may be the deadline after an Extend.
		w.low = max(w.low, min(e.Deadline, plus(o.answered, ttl)))
	default:
		w.low = max(w.low, e.Deadline)
	}
	return w
}

// shown reports whether the answer describes the record.
func shown(s *state, e *history.Event) bool {
	return (e.Number == 0 || e.Number == s.number) && (e.Holder == "" || s.terms.owner == "" || e.Holder == s.terms.owner)
}

// matches reports whether the fence may be the record's. 0 was not recorded.
func (s *state) matches(fence uint64) bool {
	return fence == 0 || fence == s.fence || s.fence == 0 && fence >= s.fenceLow
}

// sees notes the record's fence.
func (s *state) sees(fence uint64) bool {
	if !s.matches(fence) {
		return false
	}
	if fence != 0 && s.fence == 0 {
		s.fence, s.fenceLow, s.used = fence, fence, max(s.used, fence)
	}
	return true
}
