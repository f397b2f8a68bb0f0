package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestReleaseLimits(t *testing.T) {
	d := newDesk(t)
	reason := func(reason string) admission.Release {
		return admission.Release{Identity: d.id, Reason: reason}
	}
	checkLimits(t, []limit{
		{"reason none", reason(""), ""},
		{"reason most", reason(text(1024)), ""},
		{"reason over", reason(text(1025)), "reason"},
		{"reason not UTF-8", reason("a\x80"), "reason"},
	})
}

// A released record is there for its retention, and for ten minutes at least.
func TestReleaseRetention(t *testing.T) {
	for retention, stays := range map[time.Duration]time.Duration{
		time.Second:      10 * time.Minute,
		10 * time.Minute: 10 * time.Minute,
		time.Hour:        time.Hour,
	} {
		d := newDesk(t)
		c := d.reserve("a")
		c.Retention = retention
		token := d.grant(c)
		d.after(time.Minute)
		d.do(d.release(token), admission.None)
		d.after(stays - 1)
		d.see(admission.StateReleased)
		d.do(d.release(token), admission.None) // starts nothing anew
		d.after(1)
		d.see(admission.StateNone)
		d.do(d.release(token), admission.ReservationNotFound)
	}
}

// Nothing changes by releasing again: not the reason, not the revision.
func TestReleaseAgain(t *testing.T) {
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	d.do(d.release(token), admission.None)
	first := d.see(admission.StateReleased)
	again := d.release(token)
	again.Reason = "another"
	if a := d.do(again, admission.None); !a.Repeated || a.Late {
		t.Errorf("%+v", a)
	}
	if r := d.see(admission.StateReleased); r.Revision != first.Revision || r.ReleaseReason != "r" {
		t.Errorf("%+v", r)
	}
	d.do(d.extend(token, 0), admission.AlreadyReleased)
	d.do(d.commit(token, 1), admission.AlreadyReleased)
	d.refused("a", admission.AttemptEnded)
	d.grant(d.reserve("b"))
	d.do(d.release(token), admission.ReservationLost)
}

// The reason of the last release is a part of the record, whatever comes after it.
func TestTheLastReleaseReasonStays(t *testing.T) {
	d := newDesk(t)
	d.do(d.release(d.grant(d.reserve("a"))), admission.None)
	token := d.grant(d.reserve("b"))
	if r := d.see(admission.StatePending); r.ReleaseReason != "r" {
		t.Errorf("while the next attempt holds it: %q", r.ReleaseReason)
	}
	d.do(d.commit(token, 1), admission.None)
	if r := d.see(admission.StateCommitted); r.ReleaseReason != "r" {
		t.Errorf("once that has committed: %q", r.ReleaseReason)
	}
}
