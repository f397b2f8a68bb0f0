package alarm

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestWait(t *testing.T) {
	at := func(d time.Duration) admission.Time { return admission.Time(d) }
	for _, test := range []struct {
		name                   string
		earliest, live, logged admission.Time
		want                   time.Duration
	}{
		{"no alarm", admission.Never, at(time.Hour), 0, -1},
		{"overdue", at(time.Second), at(time.Hour), 0, 0},
		{"due now", at(time.Second), at(time.Second), 0, 0},
		{"near: the deadline is first", at(500 * time.Millisecond), 0, 0, 500 * time.Millisecond},
		{"a second of drift", at(30 * time.Second), 0, 0, time.Second},
		{"some of it used up", at(30 * time.Second), at(400 * time.Millisecond), 0, 600 * time.Millisecond},
		{"far: one percent", at(10100 * time.Second), 0, 0, 100 * time.Second},
		{"drift used up", at(30 * time.Second), at(2 * time.Second), 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Wait(test.earliest, test.live, test.logged); got != test.want {
				t.Errorf("Wait = %v, want %v", got, test.want)
			}
		})
	}
}

// Whoever waits as told never lets the drift pass its bound, and never sleeps past
// the deadline.
func TestWaitKeepsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logged := admission.Time(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "logged"))
		live := logged.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "drift")))
		earliest := live.Add(time.Duration(rapid.Int64Range(1, int64(1000*time.Hour)).Draw(t, "left")))
		bound := func(live admission.Time) time.Duration {
			return max(DriftMin, earliest.Sub(live)/DriftFraction)
		}
		wait := Wait(earliest, live, logged)
		then := live.Add(wait)
		if then > earliest {
			t.Fatalf("sleeps %v past the deadline", then.Sub(earliest))
		}
		if live.Sub(logged) <= bound(live) && then.Sub(logged) > bound(then)+time.Nanosecond {
			t.Fatalf("drift %v is over its bound %v", then.Sub(logged), bound(then))
		}
		if wait > 0 && wait < earliest.Sub(live) && then.Sub(logged) < bound(then)-time.Nanosecond {
			t.Fatalf("woken at a drift of %v, %v too early", then.Sub(logged), bound(then)-then.Sub(logged))
		}
	})
}
