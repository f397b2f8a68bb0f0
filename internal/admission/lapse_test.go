package admission_test

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Looking twice on the way shows the same as looking once, and nobody writes to what
// is looked at.
func TestAtComposes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawn{t})
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			w.play()
		}
		for _, id := range w.identities {
			r := w.lazy.records[id]
			before := frozen(r)
			var due []admission.Time
			for step := r; step != nil && step.Alarm() != admission.Never; step = step.At(step.Alarm()) {
				due = append(due, step.Alarm())
			}
			moments := []admission.Time{w.now}
			for _, alarm := range due {
				moments = append(moments, alarm-1, alarm, alarm+1)
			}
			for _, late := range moments {
				once := r.At(late)
				for _, early := range moments {
					if early <= late && !reflect.DeepEqual(r.At(early).At(late), once) {
						t.Fatalf("at %d and then at %d is not at %d", early, late, late)
					}
				}
				if once != nil && once.Alarm() <= late {
					t.Fatalf("at %d the record's alarm is at %d", late, once.Alarm())
				}
			}
			if !reflect.DeepEqual(before, frozen(r)) {
				t.Fatal("At wrote to the record")
			}
		}
	})
}

// Where nothing is due, nothing is written.
func TestReclaim(t *testing.T) {
	d := newDesk(t)
	if got := admission.Reclaim(admission.View{Counter: 7}, 5); !reflect.DeepEqual(got, admission.Decision{Counter: 7}) {
		t.Errorf("of nothing: %+v", got)
	}
	c := d.reserve("a")
	c.Retention = 20 * time.Minute
	d.grant(c)
	reclaim := func(now admission.Time) admission.Decision {
		return admission.Reclaim(d.k.view(d.id), now)
	}
	deadline := admission.Time(admission.PendingTTLDefault)
	if got := reclaim(deadline - 1); got.Record != nil || got.Deleted {
		t.Errorf("before the deadline: %+v", got)
	}
	if got := reclaim(deadline); got.Record == nil || got.Record.State != admission.StateLapsed || got.Record.Revision != 2 || got.Counter != 2 {
		t.Errorf("at the deadline: %+v", got)
	}
	over := deadline.Add(20 * time.Minute) // the memory of the attempt is over by then
	if got := reclaim(over); got.Record != nil || !got.Deleted {
		t.Errorf("at the end: %+v", got)
	}
}

// A tombstone is there for as long as the youngest attempt is remembered.
func TestTombstone(t *testing.T) {
	d := newDesk(t)
	short := func(label string) admission.Reserve {
		c := d.reserve(label)
		c.Retention = time.Second
		return c
	}
	c := d.commit(d.grant(short("a")), 1)
	d.do(c, admission.None)
	d.after(9 * time.Minute) // "a" is remembered for one more minute
	token := d.grant(short("b"))
	d.do(d.commit(token, 1), admission.None)
	d.after(time.Second)
	d.see(admission.StateNone)
	d.after(time.Minute - time.Second - 1)
	d.refused("a", admission.AttemptEnded)
	d.refused("b", admission.AttemptEnded)
	d.after(1)
	tombstone := d.k.records[d.id].At(d.now)
	if tombstone == nil || tombstone.State != admission.StateNone || tombstone.Identity != d.id || tombstone.Fingerprint != nil || tombstone.Owner != "" {
		t.Fatalf("%+v", tombstone)
	}
	if want := admission.Time(19 * time.Minute); tombstone.Alarm() != want {
		t.Errorf("the tombstone ends at %v", time.Duration(tombstone.Alarm()))
	}
	if admission.Look(tombstone, d.now) != nil {
		t.Error("a tombstone can be seen")
	}
	sequence := d.k.records[d.id].Sequence
	d.refused("b", admission.AttemptEnded)
	d.grant(d.reserve("a")) // ten minutes are over for it
	if r := d.see(admission.StatePending); r.Sequence != sequence || r.Attempt != 1 || r.Previous != (admission.Previous{}) {
		t.Errorf("%+v", r)
	}
	d.refused("b", admission.AttemptEnded) // the new record remembers it still
	d.after(9 * time.Minute)
	d.grant(d.reserve("c"))
}

// Invariant 5, at the edges of the memory.
func TestEndedAttemptsAreRemembered(t *testing.T) {
	label := func(i int) string { return fmt.Sprintf("a%d", i) }
	end := func(d *desk, from, to int) {
		for i := from; i < to; i++ {
			d.do(d.release(d.grant(d.reserve(label(i)))), admission.None)
		}
	}
	known := func(d *desk, i int) bool {
		reserve := d.reserve(label(i))
		d.t.Helper()
		at := admission.Instant{Now: d.now}
		return admission.Decide(d.k.view(d.id), at, reserve).Answer.Refusal == admission.AttemptEnded
	}

	t.Run("the last eight as long as the record", func(t *testing.T) {
		d := newDesk(t)
		end(d, 0, 9)
		d.after(10*time.Minute - 1)
		for i := range 9 {
			if !known(d, i) {
				t.Errorf("%d is forgotten within ten minutes", i)
			}
		}
		d.after(1)
		for i := range 9 {
			if known(d, i) != (i > 0) {
				t.Errorf("%d: known is %v", i, known(d, i))
			}
		}
	})
	t.Run("up to 64 for ten minutes", func(t *testing.T) {
		d := newDesk(t)
		end(d, 0, 200)
		for i := 200 - 64; i < 200; i++ {
			if !known(d, i) {
				t.Errorf("%d is forgotten", i)
			}
		}
		if n := len(d.k.records[d.id].Ended); n > admission.EndedAttemptsStored {
			t.Errorf("%d are stored", n)
		}
	})
	// A holder that lapsed is among the ended, and is not any more once it extends: who
	// it pushed out must be known again.
	t.Run("a lapse that is taken back forgets nobody", func(t *testing.T) {
		for name, alarm := range map[string]bool{"lazy": false, "reclaimed": true} {
			d := newDesk(t)
			end(d, 0, 8)
			d.after(20 * time.Minute)
			token := d.grant(d.reserve(label(8)))
			for range 3 {
				d.after(admission.PendingTTLDefault)
				if alarm {
					d.k.keep(d.id, admission.Reclaim(d.k.view(d.id), d.now))
				}
				d.do(d.extend(token, 0), admission.None)
			}
			for i := range 8 {
				if !known(d, i) {
					t.Errorf("%s: %d of the last eight is forgotten", name, i)
				}
			}
		}
		d := newDesk(t)
		end(d, 0, 64)
		c := d.reserve(label(64))
		c.PendingTTL = time.Second
		token := d.grant(c)
		d.after(time.Second)
		d.do(d.extend(token, 0), admission.None)
		for i := range 64 {
			if !known(d, i) {
				t.Errorf("%d of 64 is forgotten", i)
			}
		}
	})
	// A lapsed attempt has ended at its deadline, whoever looks when.
	t.Run("a lapse ends at the deadline", func(t *testing.T) {
		d := newDesk(t)
		c := d.reserve(label(0))
		c.Retention = time.Second
		d.grant(c)
		d.after(admission.PendingTTLDefault + 10*time.Minute - 1)
		if !known(d, 0) {
			t.Error("forgotten within ten minutes")
		}
		d.after(1)
		if known(d, 0) || d.k.records[d.id].At(d.now) != nil {
			t.Error("something is left after ten minutes")
		}
	})
	// Who speaks up late ends again, by then: its id is remembered from there on, once.
	t.Run("a late word is the end", func(t *testing.T) {
		for name, onLapse := range map[string]admission.OnLapse{"lapsed": admission.Reopen, "in doubt": admission.Hold} {
			d := newDesk(t)
			c := d.reserve(label(0))
			c.Retention, c.OnLapse = time.Hour, onLapse
			token := d.grant(c)
			d.after(admission.PendingTTLDefault + 9*time.Minute)
			commit := d.commit(token, 1)
			commit.Retention = time.Second
			d.do(commit, admission.None)
			if n := len(d.see(admission.StateCommitted).Ended); n != 1 {
				t.Errorf("%s: the attempt is kept %d times", name, n)
			}
			d.after(10*time.Minute - 1)
			d.see(admission.StateNone)
			if !known(d, 0) {
				t.Errorf("%s: forgotten within ten minutes of its word", name)
			}
			d.after(1)
			if known(d, 0) {
				t.Errorf("%s: still known", name)
			}
		}
	})
	// What is forgotten may be granted again, and is then an attempt like any other.
	t.Run("granted again", func(t *testing.T) {
		d := newDesk(t)
		end(d, 0, 30)
		d.after(10 * time.Minute)
		token := d.grant(d.reserve(label(0)))
		d.after(admission.PendingTTLDefault)
		if !known(d, 0) {
			t.Error("its lapse is not known")
		}
		d.do(d.extend(token, 0), admission.None)
		if a := d.do(d.reserve(label(0)), admission.None); !a.Repeated {
			t.Errorf("%+v", a)
		}
		for i := 22; i < 30; i++ {
			if !known(d, i) {
				t.Errorf("%d of the last eight is forgotten", i)
			}
		}
	})
}

// Close to the end of time a window is cut there. It never comes out early or
// negative, and what has no end has none there either.
func TestTheEndOfTime(t *testing.T) {
	if got := admission.Time(math.MaxInt64 - 5).Add(5); got != admission.Never {
		t.Errorf("%d", got)
	}
	if got := admission.Time(math.MaxInt64 - 5).Add(6); got != admission.Never {
		t.Errorf("%d", got)
	}
	if got := admission.Time(math.MaxInt64 - 5).Add(4); got != math.MaxInt64-1 {
		t.Errorf("%d", got)
	}
	if got := admission.Time(7).Sub(10); got != -3 {
		t.Errorf("%d", got)
	}
	for _, left := range []time.Duration{0, 1, time.Second, time.Hour, 24 * time.Hour} {
		d := newDesk(t)
		d.now = admission.Never - 1 - admission.Time(left)
		for label, hold := range map[string]admission.OnLapse{"a": admission.Reopen, "b": admission.Hold} {
			c := d.reserve(label)
			c.PendingTTL, c.Retention, c.OnLapse = 24*time.Hour, admission.RetentionMax, hold
			token := d.grant(c)
			for _, ttl := range []time.Duration{0, time.Second, 24 * time.Hour} {
				if a := d.do(d.extend(token, ttl), admission.None); a.Deadline <= d.now {
					t.Errorf("%v left: the deadline is %d", left, a.Deadline)
				}
			}
			d.do(d.reserve("other"), admission.None)
			if hold == admission.Hold {
				if r := d.k.records[d.id].At(admission.Never); r == nil || r.State == admission.StateNone {
					t.Error("a reservation that holds is gone at the end of time")
				}
			}
			d.do(d.release(token), admission.None)
			d.refused(label, admission.AttemptEnded)
		}
		token := d.grant(d.reserve("c"))
		if a := d.do(d.commit(token, 1), admission.None); a.Deadline <= d.now {
			t.Errorf("%v left: the window ends at %d", left, a.Deadline)
		}
		d.do(d.reserve("d"), admission.None)
	}
}
