package admission

// Decide applies one command to what the shard knows of its identity. The view's
// record is as stored; every rule sees it as it is at the instant.
func Decide(view View, at Instant, command Command) Decision {
	stored := view.Record
	view.Record = stored.At(at.Now)
	if stored.exists() && !view.Record.exists() && view.NamespaceRecords > 0 {
		view.NamespaceRecords-- // it is over: a key must not be in its own way
	}
	return command.decide(view, at)
}

// Look returns the record that everybody may see at the given time, or nil where
// there is none.
func Look(stored *Record, now Time) *Record {
	if r := stored.At(now); r.exists() {
		return r
	}
	return nil
}

// Reclaim writes down what time has done to the view's record. The decision has no
// answer, and neither Record nor Deleted where the alarm is not due.
func Reclaim(view View, now Time) Decision {
	switch r := view.Record.At(now); r {
	case view.Record:
		return view.answer(Answer{})
	case nil:
		return view.delete(Answer{})
	default:
		return view.change(r, Answer{})
	}
}

// refuse is the decision that changes nothing and says why.
func (v View) refuse(reason Reason) Decision {
	return v.answer(Answer{Refusal: reason})
}

// answer is the decision that changes nothing.
func (v View) answer(answer Answer) Decision {
	return Decision{Answer: answer, Counter: v.Counter}
}

// change is the decision to store a record, whose numbers have been taken from the
// counter already.
func (v View) change(record *Record, answer Answer) Decision {
	return Decision{Answer: answer, Record: record, Counter: v.Counter}
}

// delete is the decision to keep nothing of the record.
func (v View) delete(answer Answer) Decision {
	return Decision{Answer: answer, Deleted: true, Counter: v.Counter}
}

// take gives out the next n numbers of the shard's counter and returns the first.
func (v *View) take(n uint64) uint64 {
	first := v.Counter + 1
	v.Counter += n
	return first
}

// owned returns why the token does not own the view's record, or [None].
func (v View) owned(token Token) Reason {
	switch {
	case !v.Record.exists():
		return ReservationNotFound
	case !token.owns(v.Record):
		return ReservationLost
	default:
		return None
	}
}
