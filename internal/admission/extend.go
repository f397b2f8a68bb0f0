package admission

// Validate implements [Command].
func (c Extend) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	return checkOptionalWindow("pending_ttl", c.PendingTTL, PendingTTLMin, PendingTTLMax)
}

func (c Extend) decide(view View, at Instant) Decision {
	if reason := view.owned(c.Token); reason != None {
		return view.refuse(reason)
	}
	r := view.Record
	switch r.State {
	case StateCommitted:
		return view.refuse(AlreadyCommitted)
	case StateReleased:
		return view.refuse(AlreadyReleased)
	case StateInDoubt:
		return view.refuse(ReservationLapsed)
	}
	deadline := c.deadline(r, at.Now)
	if deadline <= at.Now {
		return view.refuse(ReservationLapsed)
	}
	if deadline == r.PendingDeadline {
		return view.answer(Answer{Repeated: true, Deadline: deadline})
	}
	extended := r.Clone()
	extended.State = StatePending
	extended.PendingDeadline = deadline
	extended.Revision = view.take(2)
	extended.unend()
	return view.change(extended, Answer{Deadline: deadline})
}

// deadline is where the call moves the record's to: as far as asked, not past the
// span that began at the grant, and never backwards.
func (c Extend) deadline(r *Record, now Time) Time {
	ttl := c.PendingTTL
	if ttl == 0 {
		ttl = r.PendingTTL
	}
	return max(r.PendingDeadline, min(now.Add(ttl), r.GrantedAt.Add(c.Span)))
}
