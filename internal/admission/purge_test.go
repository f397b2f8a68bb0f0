package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func (d *desk) purge(revision uint64, force bool) admission.Purge {
	return admission.Purge{Identity: d.id, Revision: revision, Force: force}
}

func TestPurgeLimits(t *testing.T) {
	d := newDesk(t)
	checkLimits(t, []limit{
		{"revision", admission.Purge{Identity: d.id, Revision: 1}, ""},
		{"revision and force", admission.Purge{Identity: d.id, Revision: 1, Force: true}, ""},
		{"nothing named", admission.Purge{Identity: d.id, Force: true}, "revision"},
		{"both named", admission.Purge{Identity: d.id, Revision: 1, Fence: 1, Force: true}, "fence"},
		{"fence and force", admission.Purge{Identity: d.id, Fence: 1, Force: true}, ""},
		{"fence without force", admission.Purge{Identity: d.id, Fence: 1}, "fence"},
	})
}

// Checked: gone, revision, state.
func TestPurgeLadder(t *testing.T) {
	for state, reach := range map[admission.State]struct {
		hold  bool
		reach func(*desk, admission.Token)
		force bool
	}{
		admission.StatePending:   {false, func(*desk, admission.Token) {}, true},
		admission.StateLapsed:    {false, func(d *desk, _ admission.Token) { d.after(time.Hour) }, false},
		admission.StateInDoubt:   {true, func(d *desk, _ admission.Token) { d.after(time.Hour) }, true},
		admission.StateCommitted: {false, func(d *desk, token admission.Token) { d.do(d.commit(token, 1), admission.None) }, false},
		admission.StateReleased:  {false, func(d *desk, token admission.Token) { d.do(d.release(token), admission.None) }, false},
	} {
		t.Run(state.String(), func(t *testing.T) {
			d := newDesk(t)
			if a := d.do(d.purge(1, false), admission.None); !a.Repeated {
				t.Error("purging what is gone is fine, and nothing new")
			}
			c := d.reserve("a")
			if reach.hold {
				c.OnLapse = admission.Hold
			}
			token := d.grant(c)
			reach.reach(d, token)
			revision := d.see(state).Revision
			d.do(d.purge(revision+1, true), admission.RevisionMismatch)
			if reach.force {
				d.do(d.purge(revision, false), admission.NotPurgeable)
			}
			counter := d.k.counter
			d.do(d.purge(revision, reach.force), admission.None)
			d.see(admission.StateNone)
			d.do(d.purge(revision, false), admission.None)
			d.do(d.commit(token, 1), admission.ReservationNotFound)
			d.do(d.resolve(revision, 0), admission.ReservationNotFound)
			d.refused("a", admission.AttemptEnded)
			d.after(10*time.Minute - 1)
			d.refused("a", admission.AttemptEnded)
			next := d.do(d.reserve("b"), admission.None)
			if next.Attempt != 1 || next.Previous != (admission.Previous{}) || next.Fence <= counter {
				t.Errorf("%+v", next)
			}
			d.do(d.purge(revision, true), admission.RevisionMismatch)
		})
	}
}

// The owner's Extends change the revision, not the fence.
func TestPurgeByFence(t *testing.T) {
	named := func(d *desk, token admission.Token) admission.Purge {
		return admission.Purge{Identity: d.id, Fence: token.Fence, Force: true}
	}
	d := newDesk(t)
	token := d.grant(d.reserve("a"))
	d.after(time.Minute)
	d.do(d.extend(token, 0), admission.None)
	other := token
	other.Fence++
	d.do(named(d, other), admission.RevisionMismatch)
	d.do(named(d, token), admission.None)
	d.see(admission.StateNone)
	d.do(named(d, token), admission.None)
	d.refused("a", admission.AttemptEnded)

	// Only what is pending can be named by its fence; the lapse changed what there is.
	d = newDesk(t)
	token = d.grant(d.reserve("a"))
	d.after(admission.PendingTTLDefault)
	d.do(named(d, token), admission.RevisionMismatch)
	d.do(d.commit(token, 1), admission.None)
	d.do(named(d, token), admission.RevisionMismatch)
	d.see(admission.StateCommitted)
}

// The attempt ids of a purged record stay used: not only the holder's, and not only
// those that had ended just before.
func TestPurgeKeepsEveryAttempt(t *testing.T) {
	d := newDesk(t)
	labels := make([]string, 9)
	for i := range labels {
		labels[i] = fmt.Sprintf("a%d", i)
		token := d.grant(d.reserve(labels[i]))
		if i < len(labels)-1 {
			d.do(d.release(token), admission.None)
		} else {
			d.do(d.commit(token, 1), admission.None)
		}
	}
	d.after(time.Hour) // the eight last are known as long as the record, the first is not
	d.do(d.purge(d.see(admission.StateCommitted).Revision, false), admission.None)
	d.after(10*time.Minute - 1)
	for _, label := range labels[1:] {
		d.refused(label, admission.AttemptEnded)
	}
	d.after(1)
	d.grant(d.reserve(labels[8]))

	d = newDesk(t)
	for _, label := range labels[:8] {
		d.do(d.release(d.grant(d.reserve(label))), admission.None)
	}
	d.after(time.Hour)
	d.grant(d.reserve(labels[8]))
	purge := d.purge(d.see(admission.StatePending).Revision, true)
	d.do(purge, admission.None) // a holder more: nobody is pushed out for it
	for _, label := range labels {
		d.refused(label, admission.AttemptEnded)
	}

	// Each is kept once, and from the purge on: also one that ended a little before it.
	d = newDesk(t)
	d.do(d.release(d.grant(d.reserve("a"))), admission.None)
	d.after(9 * time.Minute)
	d.grant(d.reserve("b"))
	d.do(d.purge(d.see(admission.StatePending).Revision, true), admission.None)
	if n := len(d.k.records[d.id].Ended); n != 2 {
		t.Errorf("%d attempts are kept", n)
	}
	d.after(10*time.Minute - 1)
	d.refused("a", admission.AttemptEnded)
	d.refused("b", admission.AttemptEnded)
	d.after(1)
	d.grant(d.reserve("a"))
}
