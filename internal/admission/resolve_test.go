package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func (d *desk) resolve(revision uint64, response byte) admission.Resolve {
	c := admission.Resolve{Identity: d.id, Revision: revision}
	if response != 0 {
		c.Applied, c.Response = true, responseOf(response)
	}
	return c
}

func TestResolveLimits(t *testing.T) {
	d := newDesk(t)
	with := func(change func(*admission.Resolve)) admission.Resolve {
		c := admission.Resolve{Identity: d.id, Revision: 1}
		change(&c)
		return c
	}
	checkLimits(t, []limit{
		{"revision none", with(func(c *admission.Resolve) { c.Revision = 0 }), "revision"},
		{"revision least", with(func(*admission.Resolve) {}), ""},
		{"note most", with(func(c *admission.Resolve) { c.Note = text(1024) }), ""},
		{"note over", with(func(c *admission.Resolve) { c.Note = text(1025) }), "note"},
		{"note not UTF-8", with(func(c *admission.Resolve) { c.Note = "\xc3" }), "note"},
		{"response most", with(func(c *admission.Resolve) { c.Applied, c.Response.Bytes = true, 1<<20 }), ""},
		{"response over", with(func(c *admission.Resolve) { c.Applied, c.Response.Bytes = true, 1<<20+1 }), "applied"},
	})
}

// Checked: none, settled from this revision, revision, state.
func TestResolveLadder(t *testing.T) {
	d := newDesk(t)
	d.do(d.resolve(1, 0), admission.ReservationNotFound)
	c := d.reserve("a")
	c.OnLapse = admission.Hold
	token := d.grant(c)
	d.do(d.resolve(1, 0), admission.NotInDoubt)
	d.do(d.resolve(2, 0), admission.RevisionMismatch) // that of a lapse that has not come
	d.after(admission.PendingTTLDefault)
	d.do(d.resolve(1, 0), admission.RevisionMismatch)
	d.do(d.resolve(2, 7), admission.None)
	if r := d.see(admission.StateCommitted); r.SettledFrom != 2 || r.Revision != 3 {
		t.Errorf("%+v", r)
	}
	if a := d.do(d.resolve(2, 7), admission.None); !a.Repeated {
		t.Errorf("%+v", a)
	}
	d.do(d.resolve(2, 8), admission.NotInDoubt)
	d.do(d.resolve(2, 0), admission.NotInDoubt)
	d.do(d.resolve(3, 7), admission.NotInDoubt) // the settled record is in no doubt
	d.do(d.resolve(9, 7), admission.RevisionMismatch)

	// The owner finds its outcome told.
	d.do(d.commit(token, 7), admission.None)
	d.do(d.commit(token, 8), admission.CommitConflict)
	d.do(d.release(token), admission.AlreadyCommitted)
	if r := d.see(admission.StateCommitted); r.Revision != 3 || r.Retention != admission.RetentionDefault {
		t.Errorf("%+v", r)
	}
	d.after(admission.RetentionDefault)
	d.do(d.resolve(2, 7), admission.ReservationNotFound)
}

// Not applied frees the key; what was settled is remembered until the next grant.
func TestResolveAsNotApplied(t *testing.T) {
	d := newDesk(t)
	c := d.reserve("a")
	c.Fingerprint = []byte("f")
	token := d.grant(c)
	d.after(admission.PendingTTLDefault)
	settle := d.resolve(d.see(admission.StateLapsed).Revision, 0)
	settle.Note = "nothing there"
	d.do(settle, admission.None)
	settle.Note = "still nothing" // is not compared, and does not replace the first
	if a := d.do(settle, admission.None); !a.Repeated {
		t.Errorf("%+v", a)
	}
	if r := d.see(admission.StateReleased); r.ReleaseReason != "nothing there" || r.Fingerprint != nil {
		t.Errorf("%+v", r)
	}
	d.do(d.release(token), admission.None)
	d.do(d.commit(token, 1), admission.AlreadyReleased)
	d.do(d.extend(token, 0), admission.AlreadyReleased)
	d.refused("a", admission.AttemptEnded)
	answer := d.do(d.reserve("b"), admission.None)
	if answer.Previous != (admission.Previous{End: admission.EndedReleased, Reason: "nothing there", Fence: token.Fence}) {
		t.Errorf("%+v", answer.Previous)
	}
	if r := d.see(admission.StatePending); r.SettledFrom != 0 {
		t.Errorf("still settled from %d", r.SettledFrom)
	}
	d.do(settle, admission.RevisionMismatch)
}

// What was settled is not settled by the way when its owner speaks up first.
func TestResolveAfterTheOwner(t *testing.T) {
	d := newDesk(t)
	c := d.reserve("a")
	c.OnLapse = admission.Hold
	token := d.grant(c)
	d.after(time.Hour)
	seen := d.see(admission.StateInDoubt).Revision
	d.do(d.commit(token, 1), admission.None)
	d.do(d.resolve(seen, 1), admission.RevisionMismatch)
	d.do(d.resolve(d.see(admission.StateCommitted).Revision, 1), admission.NotInDoubt)
}
