package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestCommitLimits(t *testing.T) {
	d := newDesk(t)
	retention := func(window time.Duration) admission.Commit {
		return admission.Commit{Identity: d.id, Retention: window}
	}
	size := func(bytes uint32) admission.Commit {
		return admission.Commit{Identity: d.id, Response: admission.Response{Bytes: bytes}}
	}
	checkLimits(t, []limit{
		{"retention the record's", retention(0), ""},
		{"retention least", retention(time.Second), ""},
		{"retention under", retention(time.Second - 1), "retention"},
		{"retention negative", retention(-1), "retention"},
		{"retention most", retention(30 * 24 * time.Hour), ""},
		{"retention over", retention(30*24*time.Hour + 1), "retention"},
		{"response most", size(1 << 20), ""},
		{"response over", size(1<<20 + 1), "response"},
	})
	if v := size(1<<20 + 1).Validate(); v.Reason != admission.ResponseTooLarge {
		t.Errorf("a response that is too large is %s", v.Reason)
	}
}

// From the commit on its own retention counts, and at its end it is over.
func TestCommitRetention(t *testing.T) {
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	d.after(time.Minute)
	c := d.commit(token, 1)
	c.Retention = time.Hour
	if a := d.do(c, admission.None); a.Deadline != d.now.Add(time.Hour) || a.Late || a.Repeated {
		t.Errorf("%+v", a)
	}
	d.after(30 * time.Minute)
	c.Retention = 10 * time.Hour
	if a := d.do(c, admission.None); a.Deadline != d.now.Add(30*time.Minute) || !a.Repeated || a.Late {
		t.Errorf("again: %+v", a)
	}
	d.do(d.commit(token, 2), admission.CommitConflict)
	d.after(30*time.Minute - 1)
	answer := d.do(d.reserve("b"), admission.None)
	if answer.Outcome != admission.OutcomeCommitted || answer.Response.Hash != responseOf(1).Hash || answer.Deadline != d.now+1 || answer.Since != admission.Time(time.Minute) {
		t.Errorf("%+v", answer)
	}
	d.after(1)
	d.do(c, admission.ReservationNotFound)
	d.grant(d.reserve("b"))
}

// A late commit counts while nobody took over and the record is there; its window
// starts at the commit, and a repetition tells again that it was late.
func TestCommitLate(t *testing.T) {
	for name, onLapse := range map[string]admission.OnLapse{"lapsed": admission.Reopen, "in doubt": admission.Hold} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			c := d.reserve("a")
			c.OnLapse, c.Retention = onLapse, time.Hour
			token := d.grant(c)
			d.after(admission.PendingTTLDefault + time.Hour - 1)
			if a := d.do(d.commit(token, 1), admission.None); !a.Late || a.Deadline != d.now.Add(time.Hour) {
				t.Errorf("%+v", a)
			}
			d.after(time.Hour - 1)
			if a := d.do(d.commit(token, 1), admission.None); !a.Late || !a.Repeated || a.Deadline != d.now+1 {
				t.Errorf("again: %+v", a)
			}
			d.after(1)
			d.see(admission.StateNone)
		})
	}
	t.Run("too late", func(t *testing.T) {
		d := newDesk(t)
		c := d.reserve("a")
		c.Retention = time.Hour
		token := d.grant(c)
		d.after(admission.PendingTTLDefault + time.Hour)
		d.do(d.commit(token, 1), admission.ReservationNotFound)
	})
	t.Run("at the deadline", func(t *testing.T) {
		d := newDesk(t)
		token := d.grant(d.reserve("a"))
		d.after(admission.PendingTTLDefault)
		if a := d.do(d.commit(token, 1), admission.None); !a.Late {
			t.Error("a commit at the deadline itself is late")
		}
	})
	t.Run("after an extend it is not", func(t *testing.T) {
		d := newDesk(t)
		token := d.grant(d.reserve("a"))
		d.after(admission.PendingTTLDefault)
		d.do(d.extend(token, time.Minute), admission.None)
		if a := d.do(d.commit(token, 1), admission.None); a.Late {
			t.Error("the attempt held it again")
		}
	})
}

// Fence and attempt are one proof: half of it is none.
func TestCommitWithHalfAToken(t *testing.T) {
	d := newDesk(t)
	d.do(d.commit(admission.Token{Fence: 1, Attempt: attempt("a")}, 1), admission.ReservationNotFound)
	token := d.grant(d.reserve("a"))
	d.do(d.commit(admission.Token{Fence: token.Fence, Attempt: attempt("b")}, 1), admission.ReservationLost)
	d.do(d.commit(admission.Token{Fence: token.Fence + 1, Attempt: token.Attempt}, 1), admission.ReservationLost)
	d.do(d.release(admission.Token{}), admission.ReservationLost)
	d.do(d.commit(token, 1), admission.None)
	d.do(d.commit(admission.Token{Fence: token.Fence + 1, Attempt: token.Attempt}, 1), admission.ReservationLost)
}
