package admission

// At returns the record as it is at the given time: lapsed once its pending
// deadline has passed, a tombstone once its window is over, nil once there is
// nothing left to remember. Where nothing has changed it returns r itself, else a
// new record; r is never written to. At composes: looking twice on the way shows
// the same as looking once.
func (r *Record) At(now Time) *Record {
	for r != nil {
		alarm := r.Alarm()
		if now < alarm || alarm == Never { // what has no end has none at the end of time either
			break
		}
		r = r.next()
	}
	return r
}

// Alarm returns when the stored record is out of date: the next moment at which
// time alone changes it, or [Never].
func (r *Record) Alarm() Time {
	switch r.State {
	case StatePending:
		return r.PendingDeadline
	case StateLapsed:
		return r.PendingDeadline.Add(r.Retention)
	case StateCommitted:
		return r.EndedAt.Add(r.Retention)
	case StateReleased:
		return r.EndedAt.Add(max(r.Retention, ReleasedRetentionMin))
	case StateNone:
		return r.Ended[len(r.Ended)-1].EndedAt.Add(AttemptMemory)
	default: // StateInDoubt has no end
		return Never
	}
}

// next is the one step that time takes a record whose alarm is due.
func (r *Record) next() *Record {
	switch r.State {
	case StatePending:
		lapsed := r.Clone()
		lapsed.State = StateLapsed
		if r.OnLapse == Hold {
			lapsed.State = StateInDoubt
		}
		lapsed.Revision++ // the second number that the grant or Extend took
		lapsed.end(r.PendingDeadline)
		return lapsed
	case StateNone:
		return nil
	default:
		return r.tombstone(r.Alarm())
	}
}

// tombstone is what is left of a record that is over: the attempts that must not
// be granted, as far as they are still remembered.
func (r *Record) tombstone(now Time) *Record {
	remembered := remembered(r.Ended, now)
	if len(remembered) == 0 {
		return nil
	}
	return &Record{Identity: r.Identity, Ended: remembered, Sequence: r.Sequence}
}

// remembered returns a copy of the attempts that ended less than [AttemptMemory] ago.
func remembered(ended []EndedAttempt, now Time) []EndedAttempt {
	first := 0
	for first < len(ended) && now >= ended[first].EndedAt.Add(AttemptMemory) {
		first++
	}
	return append([]EndedAttempt(nil), ended[first:]...)
}

// end notes that the holder's attempt ended at the given time. An attempt that had
// ended before (it lapsed, and was committed late) ends again: it is kept longer.
// One attempt more is kept than has to be remembered, because a holder that lapsed
// may come back by Extend, and must not have pushed anybody out by then.
func (r *Record) end(at Time) {
	r.unend()
	r.Ended = append(r.Ended, EndedAttempt{ID: r.Holder, EndedAt: at})
	for len(r.Ended) > EndedAttemptsStored ||
		len(r.Ended) > EndedAttemptsKept+1 && at >= r.Ended[0].EndedAt.Add(AttemptMemory) {
		r.Ended = r.Ended[1:]
	}
}

// unend takes the holder out of the ended attempts.
func (r *Record) unend() {
	for i, ended := range r.Ended {
		if ended.ID == r.Holder {
			r.Ended = append(r.Ended[:i:i], r.Ended[i+1:]...)
			return
		}
	}
}

// remembers reports whether the attempt has ended and must not be granted.
func (r *Record) remembers(attempt AttemptID, now Time) bool {
	if r == nil {
		return false
	}
	for i, ended := range r.Ended {
		if ended.ID == attempt {
			return r.keeps(i, now)
		}
	}
	return false
}

// keeps reports whether the i-th ended attempt must still be known.
func (r *Record) keeps(i int, now Time) bool {
	last := r.State != StateNone && len(r.Ended)-i <= EndedAttemptsKept
	return last || now < r.Ended[i].EndedAt.Add(AttemptMemory)
}

// exists reports whether there is a record, for everybody to see.
func (r *Record) exists() bool { return r != nil && r.State != StateNone }
