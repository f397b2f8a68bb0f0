package admission

// Validate implements [Command].
func (c Commit) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	if v := c.Response.validate("response"); v != nil {
		return v
	}
	return checkOptionalWindow("retention", c.Retention, RetentionMin, RetentionMax)
}

func (c Commit) decide(view View, at Instant) Decision {
	if reason := view.owned(c.Token); reason != None {
		return view.refuse(reason)
	}
	r := view.Record
	switch r.State {
	case StateReleased:
		return view.refuse(AlreadyReleased)
	case StateCommitted:
		if c.Response.Hash != r.Response.Hash {
			return view.refuse(CommitConflict)
		}
		return view.answer(Answer{Repeated: true, Late: r.Late, Deadline: r.Alarm()})
	}
	committed := r.committed(c.Response, at)
	committed.Revision = view.take(1)
	if c.Retention > 0 {
		committed.Retention = c.Retention
	}
	return view.change(committed, Answer{Late: committed.Late, Deadline: committed.Alarm()})
}

// committed returns the record with its attempt ended by a response.
func (r *Record) committed(response Response, at Instant) *Record {
	next := r.Clone()
	next.Late = r.State != StatePending
	next.State = StateCommitted
	next.EndedAt = at.Now
	next.CommittedWallNanos = at.WallNanos
	next.Response = response
	next.end(at.Now)
	return next
}

// validate checks what can be told from the response's sizes; the edge that builds
// it checks code and header lines.
func (r Response) validate(field string) *Violation {
	if r.Bytes > ResponseBytesMax {
		v := violation(field, "is %d bytes of headers and body, the limit is %d", r.Bytes, ResponseBytesMax)
		v.Reason = ResponseTooLarge
		return v
	}
	return nil
}
