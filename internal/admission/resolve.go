package admission

// Validate implements [Command].
func (c Resolve) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	if c.Revision == 0 {
		return violation("revision", "is 0, it must be the one that was looked at, 1 or more")
	}
	if v := c.Response.validate("applied"); v != nil {
		return v
	}
	return checkText("note", c.Note, 0, NoteBytesMax)
}

func (c Resolve) decide(view View, at Instant) Decision {
	r := view.Record
	switch {
	case !r.exists():
		return view.refuse(ReservationNotFound)
	case r.SettledFrom == c.Revision:
		if !c.same(r) {
			return view.refuse(NotInDoubt)
		}
		return view.answer(Answer{Repeated: true, Deadline: r.Alarm()})
	case r.Revision != c.Revision:
		return view.refuse(RevisionMismatch)
	case r.State != StateInDoubt && r.State != StateLapsed:
		return view.refuse(NotInDoubt)
	}
	var settled *Record
	if c.Applied {
		settled = r.committed(c.Response, at)
	} else {
		settled = r.released(c.Note, at)
	}
	settled.SettledFrom = r.Revision
	settled.Revision = view.take(1)
	return view.change(settled, Answer{Late: settled.Late, Deadline: settled.Alarm()})
}

// same reports whether the record was settled in just this way. Notes are not
// compared.
func (c Resolve) same(r *Record) bool {
	if c.Applied {
		return r.State == StateCommitted && r.Response.Hash == c.Response.Hash
	}
	return r.State == StateReleased
}
