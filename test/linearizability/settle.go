package linearizability

import "github.com/atmostonce/coordinator/test/history"

// revised says whether the revision that was named is the record's. Where nobody has seen
// the record's, it may be, unless it is too low. While it is pending an Extend of which
// nobody knows may have changed it again.
func (m *model) revised(s *state, o *operation, named uint64) (may, must bool) {
	if s.revision == 0 {
		return named >= s.revisionLow, false
	}
	if from, ok := m.extends[s.holder]; ok && s.phase == pending && from <= o.answered {
		return named >= s.revision, false
	}
	return named == s.revision, named == s.revision
}

// saw notes that the record's revision was seen.
func (s *state) saw(revision uint64) {
	s.revision, s.used = revision, max(s.used, revision)
}

// resolve: checked are none, settled from this revision, revision, state.
func (m *model) resolve(s state, o *operation) (state, bool) {
	e := o.event
	if s.phase == none {
		return s, o.refused("RESERVATION_NOT_FOUND")
	}
	as := asNotApplied
	if e.Applied {
		as = asApplied
	}
	if s.settled != unsettled && s.settledFrom == e.Revision {
		if s.settled != as || as == asApplied && s.response != e.Response {
			return s, o.refused("NOT_IN_DOUBT")
		}
		return s, o.is(history.Resolved)
	}
	may, must := m.revised(&s, o, e.Revision)
	if o.refused("REVISION_MISMATCH") {
		return s, !must
	}
	if !may {
		return s, false
	}
	s.saw(e.Revision)
	if s.phase != inDoubt && s.phase != lapsed {
		return s, o.refused("NOT_IN_DOUBT")
	}
	if !o.acknowledged() {
		return s, false
	}
	s = moves(s, o)
	to, over := released, m.freed(&s, o)
	if e.Applied {
		to, over = committed, m.kept(&s, o, s.terms.retention)
	}
	s = m.settle(s, o, to, over)
	s.settled, s.settledFrom = as, e.Revision
	return s, true
}

// purge: checked are gone, revision, state.
func (m *model) purge(s state, o *operation) (state, bool) {
	e := o.event
	if s.phase == none {
		return s, o.is(history.Purged)
	}
	may, must := m.revised(&s, o, e.Revision)
	if e.Fence != 0 { // by force, and only while pending
		may = s.matches(e.Fence) && s.phase == pending
		must = may && s.fence != 0
	}
	switch {
	case o.refused("REVISION_MISMATCH"):
		return s, !must
	case o.refused("NOT_PURGEABLE") && e.Fence != 0:
		return s, s.matches(e.Fence) && (s.phase != pending || !e.Force)
	case !may:
		return s, false
	}
	if e.Fence == 0 {
		s.saw(e.Revision)
	} else {
		s.sees(e.Fence)
	}
	if !e.Force && (s.phase == pending || s.phase == inDoubt) {
		return s, o.refused("NOT_PURGEABLE")
	}
	if !o.acknowledged() {
		return s, false
	}
	if s.phase == pending {
		s.endedAt = max(s.clock, o.call)
	}
	return forget(s), true
}

// get shows the record.
func (m *model) get(s state, o *operation) (state, bool) {
	e := o.event
	so := false
	switch e.Kind {
	case history.Missing:
		return s, s.phase == none
	case history.Pending:
		so = s.phase == pending
	case history.InDoubt:
		so = s.phase == inDoubt
	case history.Replayed:
		so = s.phase == committed && (e.Response == history.Digest{} || e.Response == s.response)
	case history.Free:
		so = s.phase == lapsed && (e.State == history.StateLapsed || e.State == history.StateUnrecorded) ||
			s.phase == released && (e.State == history.StateReleased || e.State == history.StateUnrecorded)
	}
	if s.phase != released && e.Fingerprint != "" && e.Fingerprint != s.terms.fingerprint {
		return s, false
	}
	if !so || !shown(&s, e) || !s.sees(e.Fence) {
		return s, false
	}
	if e.Revision != 0 {
		if may, _ := m.revised(&s, o, e.Revision); !may {
			return s, false
		}
		s.saw(e.Revision)
	}
	return s, true
}
