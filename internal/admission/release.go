package admission

// Validate implements [Command].
func (c Release) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	return checkText("reason", c.Reason, 0, NoteBytesMax)
}

func (c Release) decide(view View, at Instant) Decision {
	if reason := view.owned(c.Token); reason != None {
		return view.refuse(reason)
	}
	r := view.Record
	switch r.State {
	case StateCommitted:
		return view.refuse(AlreadyCommitted)
	case StateReleased:
		return view.answer(Answer{Repeated: true, Late: r.Late, Deadline: r.Alarm()})
	}
	released := r.released(c.Reason, at)
	released.Revision = view.take(1)
	return view.change(released, Answer{Late: released.Late, Deadline: released.Alarm()})
}

// released returns the record with its attempt ended by nothing having happened.
// The fingerprint dies with it.
func (r *Record) released(reason string, at Instant) *Record {
	next := r.Clone()
	next.Late = r.State != StatePending
	next.State = StateReleased
	next.EndedAt = at.Now
	next.ReleaseReason = reason
	next.Fingerprint = nil
	next.end(at.Now)
	return next
}
