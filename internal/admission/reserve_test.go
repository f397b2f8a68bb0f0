package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestReserveLimits(t *testing.T) {
	d := newDesk(t)
	with := func(change func(*admission.Reserve)) admission.Reserve {
		c := d.reserve("a")
		change(&c)
		return c
	}
	ttl := func(ttl time.Duration) admission.Reserve {
		return with(func(c *admission.Reserve) { c.PendingTTL = ttl })
	}
	retention := func(window time.Duration) admission.Reserve {
		return with(func(c *admission.Reserve) { c.Retention = window })
	}
	print := func(size int) admission.Reserve {
		return with(func(c *admission.Reserve) { c.Fingerprint = fingerprint(size) })
	}
	owner := func(owner string) admission.Reserve {
		return with(func(c *admission.Reserve) { c.Owner = owner })
	}
	checkLimits(t, []limit{
		{"pending_ttl least", ttl(100 * time.Millisecond), ""},
		{"pending_ttl under", ttl(100*time.Millisecond - 1), "pending_ttl"},
		{"pending_ttl zero", ttl(0), "pending_ttl"},
		{"pending_ttl negative", ttl(-time.Second), "pending_ttl"},
		{"pending_ttl most", ttl(24 * time.Hour), ""},
		{"pending_ttl over", ttl(24*time.Hour + 1), "pending_ttl"},
		{"retention least", retention(time.Second), ""},
		{"retention under", retention(time.Second - 1), "retention"},
		{"retention zero", retention(0), "retention"},
		{"retention most", retention(30 * 24 * time.Hour), ""},
		{"retention over", retention(30*24*time.Hour + 1), "retention"},
		{"fingerprint none", print(0), ""},
		{"fingerprint most", print(64), ""},
		{"fingerprint over", print(65), "fingerprint"},
		{"owner most", owner(text(128)), ""},
		{"owner over", owner(text(129)), "owner"},
		{"owner not UTF-8", owner("\xff"), "owner"},
		{"on_lapse hold", with(func(c *admission.Reserve) { c.OnLapse = admission.Hold }), ""},
		{"on_lapse over", with(func(c *admission.Reserve) { c.OnLapse = admission.Hold + 1 }), "on_lapse"},
	})
}

// At the moment until which it was wanted, it is wanted no more; that comes before
// everything else, so that nothing is told to who has gone away.
func TestReserveStillWanted(t *testing.T) {
	d := newDesk(t)
	d.after(time.Hour)
	wanted := func(until admission.Time) admission.Reserve {
		c := d.reserve("a")
		c.WantedUntil = until
		c.Fingerprint = []byte("f")
		return c
	}
	d.do(wanted(d.now-1), admission.DeadlineExceeded)
	d.do(wanted(d.now), admission.DeadlineExceeded)
	d.see(admission.StateNone)
	token := d.grant(wanted(d.now + 1))
	d.do(wanted(d.now), admission.DeadlineExceeded) // not even its own grant
	other := d.reserve("b")
	other.WantedUntil = d.now
	d.do(other, admission.DeadlineExceeded) // not even that its fingerprint is wrong
	d.do(d.commit(token, 1), admission.None)
	d.do(other, admission.DeadlineExceeded)
}

// Two absent fingerprints are equal, empty is absent, and absent against present is a
// mismatch both ways.
func TestReserveFingerprints(t *testing.T) {
	prints := map[string][]byte{"absent": nil, "empty": {}, "one": {1}, "two": {2}, "longer": {1, 0}}
	absent := func(name string) bool { return len(prints[name]) == 0 }
	for first := range prints {
		for second := range prints {
			d := newDesk(t)
			c := d.reserve("a")
			c.Fingerprint = prints[first]
			d.grant(c)
			c.Attempt, c.Fingerprint = attempt("b"), prints[second]
			want := admission.FingerprintMismatch
			if first == second || absent(first) && absent(second) {
				want = admission.None
			}
			d.do(c, want)
		}
	}
}

// A fingerprint is compared in every state but RELEASED, and not with a tombstone.
func TestReserveComparesFingerprintsInEveryState(t *testing.T) {
	mine := func(d *desk, hold bool) admission.Token {
		c := d.reserve("a")
		c.Fingerprint, c.Retention = []byte("mine"), time.Second
		if hold {
			c.OnLapse = admission.Hold
		}
		return d.grant(c)
	}
	for state, reach := range map[admission.State]func(*desk){
		admission.StatePending:   func(d *desk) { mine(d, false) },
		admission.StateLapsed:    func(d *desk) { mine(d, false); d.after(admission.PendingTTLDefault) },
		admission.StateInDoubt:   func(d *desk) { mine(d, true); d.after(time.Hour) },
		admission.StateCommitted: func(d *desk) { d.do(d.commit(mine(d, false), 1), admission.None) },
		admission.StateReleased:  func(d *desk) { d.do(d.release(mine(d, false)), admission.None) },
		admission.StateNone: func(d *desk) {
			d.do(d.commit(mine(d, false), 1), admission.None)
			d.after(time.Second)
		},
	} {
		d := newDesk(t)
		reach(d)
		d.see(state)
		want := admission.FingerprintMismatch
		if state == admission.StateReleased || state == admission.StateNone {
			want = admission.None
		}
		d.do(d.reserve("b"), want)
	}
}

// A new record only is refused for want of room; what exists goes on.
func TestReserveWithoutRoom(t *testing.T) {
	full := func(d *desk, label string) admission.Reserve {
		c := d.reserve(label)
		c.StorageFull = true
		return c
	}
	t.Run("storage", func(t *testing.T) {
		d := newDesk(t)
		d.do(full(d, "a"), admission.StorageFull)
		d.see(admission.StateNone)
		token := d.grant(d.reserve("a"))
		d.do(full(d, "a"), admission.None)
		d.do(full(d, "b"), admission.None)
		d.do(d.release(token), admission.None)
		d.grant(full(d, "b"))
		d.after(admission.PendingTTLDefault)
		d.grant(full(d, "c"))
		d.after(30 * 24 * time.Hour)
		d.do(full(d, "d"), admission.StorageFull)
	})
	t.Run("quota", func(t *testing.T) {
		d := newDesk(t)
		c := d.reserve("a")
		c.RecordsMax = 3
		for records, want := range []admission.Reason{admission.None, admission.None, admission.None, admission.QuotaExceeded, admission.QuotaExceeded} {
			view := admission.View{NamespaceRecords: uint64(records)}
			if got := admission.Decide(view, admission.Instant{}, c).Answer.Refusal; got != want {
				t.Errorf("with %d records: %q, want %q", records, got, want)
			}
		}
		c.RecordsMax = 0
		if got := admission.Decide(admission.View{NamespaceRecords: 1 << 60}, admission.Instant{}, c).Answer.Refusal; got != admission.None {
			t.Errorf("without a limit: %q", got)
		}
	})
	// The record that is over and still stored is the key's own: it is counted, and
	// must not be in the way of the one that takes its place.
	t.Run("quota and an overdue record", func(t *testing.T) {
		d := newDesk(t)
		d.grant(d.reserve("a"))
		d.after(30 * 24 * time.Hour)
		c := d.reserve("b")
		c.RecordsMax = 1
		view := d.k.view(d.id)
		view.NamespaceRecords = 1
		if got := admission.Decide(view, admission.Instant{Now: d.now}, c).Answer.Refusal; got != admission.None {
			t.Errorf("refused: %q", got)
		}
	})
}

// Whoever holds it is told so again, with what it was told, for as long as it holds.
func TestReserveRepeatsTheWholeGrant(t *testing.T) {
	d := newDesk(t)
	d.do(d.release(d.grant(d.reserve("a"))), admission.None)
	first := d.do(d.reserve("b"), admission.None)
	d.after(time.Minute)
	other := d.reserve("b") // the windows are the granted attempt's
	other.PendingTTL, other.Retention, other.OnLapse, other.Owner = time.Hour, time.Hour, admission.Hold, "me"
	again := d.do(other, admission.None)
	first.Repeated = true
	if again.Token != first.Token || again.Previous != first.Previous || again.Attempt != 2 || again.Deadline != first.Deadline || !again.Repeated {
		t.Errorf("again %+v, first %+v", again, first)
	}
	if again.Previous != (admission.Previous{End: admission.EndedReleased, Reason: "r", Fence: 1}) {
		t.Errorf("previous: %+v", again.Previous)
	}
	d.after(admission.PendingTTLDefault - time.Minute)
	d.refused("b", admission.AttemptEnded)
	r := d.see(admission.StateLapsed)
	if r.OnLapse != admission.Reopen || r.Retention != admission.RetentionDefault || r.Owner != "" {
		t.Errorf("an answer changed the record: %+v", r)
	}
}

// The numbers of a grant and of its lapse.
func TestReserveTakesTwoNumbers(t *testing.T) {
	d := newDesk(t)
	d.k.counter = 41
	token := d.grant(d.reserve("a"))
	if r := d.see(admission.StatePending); token.Fence != 42 || r.Revision != 42 || d.k.counter != 43 {
		t.Errorf("fence %d, revision %d, counter %d", token.Fence, r.Revision, d.k.counter)
	}
	d.refused("a", admission.None)
	d.after(admission.PendingTTLDefault)
	if r := d.see(admission.StateLapsed); r.Revision != 43 || r.Fence != 42 {
		t.Errorf("lapsed with revision %d and fence %d", r.Revision, r.Fence)
	}
	d.refused("a", admission.AttemptEnded)
	if d.k.counter != 43 {
		t.Errorf("a refusal or a repetition took a number: %d", d.k.counter)
	}
	d.grant(d.reserve("b"))
	if r := d.see(admission.StatePending); r.Fence != 44 || r.Attempt != 2 || r.Previous != (admission.Previous{End: admission.EndedLapsed, Fence: 42}) {
		t.Errorf("taken over: %+v", r)
	}
}
