package admission

// Validate implements [Command].
func (c Purge) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	switch {
	case c.Revision == 0 && c.Fence == 0:
		return violation("revision", "is 0, it must be the one that was looked at, 1 or more")
	case c.Revision != 0 && c.Fence != 0:
		return violation("fence", "must not be given together with a revision")
	case c.Fence != 0 && !c.Force:
		return violation("fence", "names a record for a purge by force only")
	}
	return nil
}

func (c Purge) decide(view View, at Instant) Decision {
	r := view.Record
	if !r.exists() {
		return view.answer(Answer{Repeated: true})
	}
	held := r.State == StatePending || r.State == StateInDoubt
	named := r.Revision == c.Revision || r.State == StatePending && r.Fence == c.Fence
	switch {
	case !named:
		return view.refuse(RevisionMismatch)
	case held && !c.Force:
		return view.refuse(NotPurgeable)
	}
	return view.change(r.purged(at.Now), Answer{})
}

// purged returns the tombstone of a record that is forgotten before its time. Its
// attempts stay used: whatever was remembered is remembered as if it ended now.
func (r *Record) purged(now Time) *Record {
	next := r.Clone()
	next.Ended = next.Ended[:0]
	for i, ended := range r.Ended {
		if r.keeps(i, now) {
			next.Ended = append(next.Ended, EndedAttempt{ID: ended.ID, EndedAt: now})
		}
	}
	next.end(now)
	return next.tombstone(now)
}
