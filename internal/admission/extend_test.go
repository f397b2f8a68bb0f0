package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestExtendLimits(t *testing.T) {
	d := newDesk(t)
	ttl := func(ttl time.Duration) admission.Extend { return admission.Extend{Identity: d.id, PendingTTL: ttl} }
	checkLimits(t, []limit{
		{"pending_ttl the record's", ttl(0), ""},
		{"pending_ttl least", ttl(100 * time.Millisecond), ""},
		{"pending_ttl under", ttl(100*time.Millisecond - 1), "pending_ttl"},
		{"pending_ttl negative", ttl(-1), "pending_ttl"},
		{"pending_ttl most", ttl(24 * time.Hour), ""},
		{"pending_ttl over", ttl(24*time.Hour + 1), "pending_ttl"},
	})
}

// Invariant 8: never backwards; and what moves nothing takes no number.
func TestExtendThatChangesNothing(t *testing.T) {
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	before := d.see(admission.StatePending)
	for _, ttl := range []time.Duration{time.Minute, admission.PendingTTLDefault, 0} {
		if a := d.do(d.extend(token, ttl), admission.None); a.Deadline != before.PendingDeadline {
			t.Errorf("by %v: the deadline moved to %v", ttl, a.Deadline)
		}
	}
	if r := d.see(admission.StatePending); r.Revision != before.Revision || d.k.counter != 2 {
		t.Errorf("revision %d, counter %d", r.Revision, d.k.counter)
	}
	d.after(1)
	if a := d.do(d.extend(token, 0), admission.None); a.Deadline != before.PendingDeadline+1 {
		t.Errorf("the deadline is %v", a.Deadline)
	}
	if r := d.see(admission.StatePending); r.Revision != 3 || d.k.counter != 4 {
		t.Errorf("revision %d, counter %d", r.Revision, d.k.counter)
	}
	d.after(admission.PendingTTLDefault)
	if r := d.see(admission.StateLapsed); r.Revision != 4 {
		t.Errorf("lapsed with revision %d", r.Revision)
	}
}

// An absent pending_ttl is the granted attempt's, whatever Extends asked for since.
func TestExtendByTheRecordsOwn(t *testing.T) {
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	d.do(d.extend(token, time.Hour), admission.None)
	d.after(time.Hour)
	if a := d.do(d.extend(token, 0), admission.None); a.Deadline != d.now.Add(admission.PendingTTLDefault) {
		t.Errorf("the deadline is %v after now", a.Deadline.Sub(d.now))
	}
	d.see(admission.StatePending)
}

// The span ends what Extend can do: with a rest it gives the rest, while pending it
// leaves what is, and once lapsed with nothing left it refuses.
func TestExtendSpan(t *testing.T) {
	d := newDesk(t)
	c := d.reserve("a")
	c.PendingTTL = 24 * time.Hour
	token := d.grant(c)
	for range 7 {
		d.after(24*time.Hour - 1)
		d.do(d.extend(token, 24*time.Hour), admission.None)
	}
	end := admission.Time(admission.ExtendSpanDefault)
	if r := d.see(admission.StatePending); r.PendingDeadline != end {
		t.Fatalf("the deadline is %v", time.Duration(r.PendingDeadline))
	}
	before := d.see(admission.StatePending).Revision
	if a := d.do(d.extend(token, 24*time.Hour), admission.None); a.Deadline != end {
		t.Errorf("past the span: %v", a.Deadline)
	}
	if r := d.see(admission.StatePending); r.Revision != before {
		t.Error("an Extend past the span changed the record")
	}
	d.now = end
	d.do(d.extend(token, time.Hour), admission.ReservationLapsed)
	d.see(admission.StateLapsed)

	// A lapsed attempt with time left in its span gets no more than that.
	d = newDesk(t)
	token = d.grant(d.reserve("a"))
	d.after(admission.PendingTTLDefault + time.Hour)
	x := d.extend(token, time.Hour)
	x.Span = admission.PendingTTLDefault + time.Hour + time.Second
	if a := d.do(x, admission.None); a.Deadline != d.now.Add(time.Second) {
		t.Errorf("got %v", a.Deadline.Sub(d.now))
	}
	// A span that was set shorter since takes nothing away.
	x.Span = 0
	if a := d.do(x, admission.None); a.Deadline != d.now.Add(time.Second) {
		t.Errorf("a shorter span: %v", a.Deadline.Sub(d.now))
	}
}

// In doubt somebody may be settling it by now.
func TestExtendInDoubt(t *testing.T) {
	d := newDesk(t)
	c := d.reserve("a")
	c.OnLapse = admission.Hold
	token := d.grant(c)
	d.after(admission.PendingTTLDefault - 1)
	d.do(d.extend(token, 0), admission.None)
	d.after(admission.PendingTTLDefault)
	d.see(admission.StateInDoubt)
	d.do(d.extend(token, 0), admission.ReservationLapsed)
	d.do(d.commit(token, 1), admission.None)
	d.do(d.extend(token, 0), admission.AlreadyCommitted)
}

// Who extends a lapsed record holds it again, and its end is forgotten.
func TestExtendBringsTheHolderBack(t *testing.T) {
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	d.after(admission.PendingTTLDefault)
	d.refused("a", admission.AttemptEnded)
	lapsed := d.see(admission.StateLapsed).Revision
	d.do(d.extend(token, 0), admission.None)
	if a := d.do(d.reserve("a"), admission.None); !a.Repeated || a.Token != token {
		t.Errorf("%+v", a)
	}
	if r := d.see(admission.StatePending); r.Revision <= lapsed || len(r.Ended) != 0 {
		t.Errorf("revision %d after %d, ended %v", r.Revision, lapsed, r.Ended)
	}
}
