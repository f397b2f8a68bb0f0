package admission

import "bytes"

// Validate implements [Command].
func (c Reserve) Validate() *Violation {
	if v := c.Identity.Validate(); v != nil {
		return v
	}
	if len(c.Fingerprint) > FingerprintBytesMax {
		return violation("fingerprint", "is %d bytes long, the limit is %d", len(c.Fingerprint), FingerprintBytesMax)
	}
	if v := CheckWindow("pending_ttl", c.PendingTTL, PendingTTLMin, PendingTTLMax); v != nil {
		return v
	}
	if v := CheckWindow("retention", c.Retention, RetentionMin, RetentionMax); v != nil {
		return v
	}
	if c.OnLapse > Hold {
		return violation("on_lapse", "is %d, which has no meaning", c.OnLapse)
	}
	return checkText("owner", c.Owner, 0, OwnerBytesMax)
}

// decide is the ladder of the contract: still wanted, fingerprint, the attempt that
// holds it, committed, in doubt, ended attempt, pending, free.
func (c Reserve) decide(view View, at Instant) Decision {
	r := view.Record
	state := StateNone
	if r != nil {
		state = r.State
	}
	fingerprinted := state != StateNone && state != StateReleased

	switch {
	case at.Now >= c.WantedUntil:
		return view.refuse(DeadlineExceeded)
	case fingerprinted && !bytes.Equal(c.Fingerprint, r.Fingerprint):
		return view.refuse(FingerprintMismatch)
	case state == StatePending && c.Attempt == r.Holder:
		return view.answer(r.granted(true))
	case state == StateCommitted:
		return view.answer(Answer{
			Outcome: OutcomeCommitted, Since: r.EndedAt, Deadline: r.Alarm(), Response: r.Response,
		})
	case state == StateInDoubt:
		return view.answer(Answer{
			Outcome: OutcomeInDoubt, Since: r.GrantedAt, Deadline: Never, Owner: r.Owner,
		})
	case r.remembers(c.Attempt, at.Now):
		return view.refuse(AttemptEnded)
	case state == StatePending:
		return view.answer(Answer{
			Outcome: OutcomePending, Since: r.GrantedAt, Deadline: r.PendingDeadline, Owner: r.Owner, Attempt: r.Attempt,
		})
	case state == StateNone && c.StorageFull:
		return view.refuse(StorageFull)
	case state == StateNone && c.RecordsMax > 0 && view.NamespaceRecords >= c.RecordsMax:
		return view.refuse(QuotaExceeded)
	default:
		granted := c.grant(&view, at)
		return view.change(granted, granted.granted(false))
	}
}

// grant makes the attempt the holder of what is free. A record that goes on keeps
// its sequence, its birth and its count of attempts; a new one begins anew, but
// for the attempts that a tombstone remembers.
func (c Reserve) grant(view *View, at Instant) *Record {
	fence := view.take(2)
	next := &Record{
		Identity:         c.Identity,
		State:            StatePending,
		Fence:            fence,
		Attempt:          1,
		Revision:         fence,
		Holder:           c.Attempt,
		Fingerprint:      c.Fingerprint,
		OnLapse:          c.OnLapse,
		PendingTTL:       c.PendingTTL,
		Retention:        c.Retention,
		Owner:            c.Owner,
		GrantedAt:        at.Now,
		PendingDeadline:  at.Now.Add(c.PendingTTL),
		CreatedWallNanos: at.WallNanos,
		StartedWallNanos: at.WallNanos,
	}
	before := view.Record
	if before == nil {
		return next
	}
	next.Sequence = before.Sequence
	if before.State == StateNone {
		next.Ended = remembered(before.Ended, at.Now)
		return next
	}
	next.Ended = append([]EndedAttempt(nil), before.Ended...)
	next.Attempt = before.Attempt + 1
	next.CreatedWallNanos = before.CreatedWallNanos
	next.ReleaseReason = before.ReleaseReason // the last one, through the record's life
	next.Previous = Previous{End: EndedLapsed, Fence: before.Fence}
	if before.State == StateReleased {
		next.Previous = Previous{End: EndedReleased, Fence: before.Fence, Reason: before.ReleaseReason}
	}
	return next
}

// granted is the answer to the owner of a pending record.
func (r *Record) granted(repeated bool) Answer {
	return Answer{
		Outcome:  OutcomeGranted,
		Repeated: repeated,
		Token:    Token{Fence: r.Fence, Attempt: r.Holder},
		Fence:    r.Fence,
		Attempt:  r.Attempt,
		Previous: r.Previous,
		Since:    r.GrantedAt,
		Deadline: r.PendingDeadline,
	}
}
