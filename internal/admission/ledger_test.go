package admission_test

import (
	"github.com/atmostonce/coordinator/internal/admission"
)

// ledger knows the invariants of doc.go and nothing else. It is told what was asked
// and what was answered, and keeps the books on who was let in.
type ledger struct {
	t       failer
	books   map[admission.Identity]*book
	number  uint64                        // the largest that was ever seen
	numbers map[uint64]admission.Identity // every revision that was ever seen
}

// book is the page of one identity.
type book struct {
	open      bool // granted, and nobody has said how it ended
	hold      bool
	holder    admission.AttemptID
	fence     uint64
	deadline  admission.Time
	committed bool
	over      admission.Time // of the committed response's window
	response  [32]byte
	revision  uint64
	ended     []admission.EndedAttempt
}

func newLedger(t failer) *ledger {
	return &ledger{t: t, books: map[admission.Identity]*book{}, numbers: map[uint64]admission.Identity{}}
}

// enter books a decision. The invariants are numbered as in doc.go.
func (l *ledger) enter(c admission.Command, d admission.Decision, now admission.Time, story func() string) {
	l.t.Helper()
	fail := func(invariant int, why string) {
		l.t.Helper()
		l.t.Fatalf("%s\ninvariant %d: %s: %+v", story(), invariant, why, d.Answer)
	}
	b := l.books[c.On()]
	if b == nil {
		b = &book{}
		l.books[c.On()] = b
	}
	changes := d.Record != nil || d.Deleted
	a := d.Answer

	if a.Refusal != admission.None && changes {
		fail(7, "a refusal changed something")
	}
	if a.Refusal != admission.None && a.Outcome != admission.OutcomeNone {
		fail(7, "a refusal has an outcome")
	}
	if d.Counter < l.number {
		fail(3, "the counter fell")
	}
	if granted := a.Outcome == admission.OutcomeGranted; !granted && (a.Token != admission.Token{} || a.Fence != 0 || a.Previous != admission.Previous{}) {
		fail(9, "an answer to somebody else names the owner's token, fence or previous")
	}

	switch c := c.(type) {
	case admission.Reserve:
		l.reserve(b, c, d, now, fail)
	case admission.Commit:
		if a.Refusal != admission.None {
			break
		}
		if c.Token != (admission.Token{Fence: b.fence, Attempt: b.holder}) {
			fail(9, "committed with a token that is not the holder's")
		}
		if b.committed && b.response != c.Response.Hash {
			fail(6, "a committed response was replaced")
		}
		if changes {
			b.commit(c.Response.Hash, d, now)
		}
	case admission.Release:
		if a.Refusal != admission.None {
			break
		}
		if c.Token != (admission.Token{Fence: b.fence, Attempt: b.holder}) {
			fail(9, "released with a token that is not the holder's")
		}
		if b.committed {
			fail(6, "a committed response was released")
		}
		b.close(now)
	case admission.Extend:
		if a.Refusal != admission.None {
			break
		}
		if c.Token != (admission.Token{Fence: b.fence, Attempt: b.holder}) {
			fail(9, "extended with a token that is not the holder's")
		}
		if !b.open || b.hold && now >= b.deadline {
			fail(2, "extended what is over or in doubt")
		}
		if a.Deadline < b.deadline || a.Deadline <= now {
			fail(8, "the deadline moved backwards")
		}
		b.deadline = a.Deadline
	case admission.Resolve:
		if a.Refusal != admission.None || !changes {
			break
		}
		if !b.open || now < b.deadline {
			fail(1, "settled what nobody doubted")
		}
		if c.Applied {
			b.commit(c.Response.Hash, d, now)
		} else {
			b.close(now)
		}
	case admission.Purge:
		if a.Refusal != admission.None || !changes {
			break
		}
		if !c.Force && b.open && (now < b.deadline || b.hold) {
			fail(1, "purged a held record without force")
		}
		if b.open {
			b.close(now)
		}
		b.committed = false
	}
	if changes && d.Record != nil && d.Record.State != admission.StateNone && d.Record.Revision <= l.number {
		fail(4, "a change took a number that was given out before")
	}
	l.number = max(l.number, d.Counter)
}

func (l *ledger) reserve(b *book, c admission.Reserve, d admission.Decision, now admission.Time, fail func(int, string)) {
	a := d.Answer
	switch a.Outcome {
	case admission.OutcomeGranted:
		if a.Repeated {
			if !b.open || now >= b.deadline || c.Attempt != b.holder || a.Fence != b.fence || a.Deadline != b.deadline {
				fail(1, "repeated a grant that this attempt does not hold")
			}
			return
		}
		if b.open && now < b.deadline {
			fail(1, "admitted twice")
		}
		if b.open && b.hold {
			fail(2, "admitted while in doubt")
		}
		if b.committed && now < b.over {
			fail(1, "admitted after the commit, within its window")
		}
		if a.Fence <= l.number {
			fail(3, "the fence is not above every number before it")
		}
		if b.open {
			b.close(b.deadline)
		}
		for i, ended := range b.ended {
			if ended.ID == c.Attempt && len(b.ended)-i <= admission.EndedAttemptsMax && now < ended.EndedAt.Add(admission.AttemptMemory) {
				fail(5, "an attempt was granted again within ten minutes of its end")
			}
		}
		*b = book{open: true, hold: c.OnLapse == admission.Hold, holder: c.Attempt, fence: a.Fence, deadline: a.Deadline, ended: b.ended, revision: b.revision}
	case admission.OutcomePending:
		if !b.open || now >= b.deadline || c.Attempt == b.holder {
			fail(1, "pending, and nobody holds it")
		}
	case admission.OutcomeInDoubt:
		if !b.open || !b.hold || now < b.deadline {
			fail(2, "in doubt, and it is not")
		}
	case admission.OutcomeCommitted:
		if !b.committed || now >= b.over {
			fail(6, "committed, and it is not")
		}
		if a.Response.Hash != b.response {
			fail(6, "the response is not the first one")
		}
	}
}

func (b *book) commit(response [32]byte, d admission.Decision, now admission.Time) {
	b.close(now)
	b.committed, b.response, b.over = true, response, d.Record.Alarm()
}

// close notes that the holder's attempt has ended.
func (b *book) close(at admission.Time) {
	if b.open {
		b.ended = append(b.ended, admission.EndedAttempt{ID: b.holder, EndedAt: at})
	}
	b.open = false
}

// look checks what a Get shows: a revision that is new is new in the whole shard.
func (l *ledger) look(id admission.Identity, r *admission.Record, _ admission.Time, story func() string) {
	l.t.Helper()
	b := l.books[id]
	if r == nil || b == nil || r.Revision == b.revision {
		return
	}
	if _, used := l.numbers[r.Revision]; used {
		l.t.Fatalf("%s\ninvariant 4: revision %d of %s was seen before", story(), r.Revision, id.Key)
	}
	if r.Revision > l.number {
		l.t.Fatalf("%s\ninvariant 4: revision %d of %s was not taken from the counter", story(), r.Revision, id.Key)
	}
	l.numbers[r.Revision] = id
	b.revision = r.Revision
}
