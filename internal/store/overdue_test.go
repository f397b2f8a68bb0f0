package store

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

// walk counts the records by state, and those that are due, one by one.
func walk(t testing.TB, s *Store) (states [admission.States]uint64, overdue int) {
	t.Helper()
	var now admission.Time
	if err := s.View(func(tx *Tx) error {
		now = tx.Clock().Now
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for after, more := uint64(0), true; more; {
		var err error
		if after, more, err = s.Scan(after, 100, func(r *admission.Record) bool {
			states[r.State]++
			if r.Alarm() <= now {
				overdue++
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return states, overdue
}

// agree fails unless what is counted with every change is what there is.
func agree(t testing.TB, when string, s *Store) (states [admission.States]uint64) {
	t.Helper()
	states, overdue := walk(t, s)
	if got := s.Stats().Records; got != states {
		t.Errorf("%s: %v are counted by state, and there are %v", when, got, states)
	}
	records, longest := s.Overdue()
	if records != min(overdue, OverdueMax) || records == 0 && longest != 0 {
		t.Errorf("%s: %d overdue for %v are counted, and there are %d", when, records, longest, overdue)
	}
	return states
}

// Records that nobody settles are counted as IN_DOUBT from the reclaim on: through a
// restart, in a state that was installed from another node, and until they are settled.
func TestRecordsInDoubtAreCounted(t *testing.T) {
	cfg := testConfig(t)
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const held = 40
	for i := range 2 * held {
		reserve := testReserve(i)
		if i%2 == 0 {
			reserve.OnLapse = admission.Hold
		}
		update(t, s, reserve)
	}
	index := s.Applied().Index
	next := func(e logEntry) {
		t.Helper()
		index++
		if _, err := e.applyTo(s, index); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, s *Store, inDoubt uint64) {
		t.Helper()
		if states := agree(t, when, s); states[admission.StateInDoubt] != inDoubt {
			t.Errorf("%s: %v, not %d in doubt", when, states, inDoubt)
		}
	}
	want("pending", s, 0)
	next(logEntry{advance: time.Minute + time.Second})
	want("over, and not written down", s, 0)
	if records, longest := s.Overdue(); records != 2*held || longest != time.Second {
		t.Errorf("%d are overdue, for %v", records, longest)
	}
	next(logEntry{reclaim: held})
	want("half of them written down", s, held/2)
	next(logEntry{reclaim: held})
	want("all of them written down", s, held)

	record := lookup(t, s, testIdentity(0))
	next(logEntry{commands: []admission.Command{admission.Resolve{Identity: record.Identity, Revision: record.Revision, Note: "did not run"}}})
	want("one settled", s, held-1)
	record = lookup(t, s, testIdentity(2))
	next(logEntry{commands: []admission.Command{admission.Purge{Identity: record.Identity, Revision: record.Revision, Force: true}}})
	want("one purged", s, held-2)

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().Records[admission.StateInDoubt]; got != held-2 {
		t.Errorf("after Close %d are in doubt", got)
	}
	cfg.Create = false
	s = mustOpen(t, cfg)
	want("after a restart", s, held-2)

	other := mustOpen(t, testConfig(t))
	update(t, other, testReserve(1000))
	if err := other.Install(receive(t, s, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	want("installed on another node", other, held-2)
}

// What is counted is what there is, whatever happens, and after a restart as well.
func TestCountsAreThoseOfAWalk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig(t)
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rapid.IntRange(1, 60).Draw(rt, "entries") {
			e := logEntry{
				advance: time.Duration(rapid.IntRange(0, 40).Draw(rt, "seconds")) * time.Second,
				reclaim: rapid.IntRange(0, 3).Draw(rt, "reclaim"),
			}
			for range rapid.IntRange(0, 4).Draw(rt, "commands") {
				reserve := testReserve(rapid.IntRange(0, 30).Draw(rt, "key"))
				reserve.Attempt = testAttempt(rapid.IntRange(0, 1<<30).Draw(rt, "attempt"))
				if rapid.Bool().Draw(rt, "hold") {
					reserve.OnLapse = admission.Hold
				}
				e.commands = append(e.commands, reserve)
			}
			if _, err := e.applyTo(s, uint64(i+1)); err != nil {
				t.Fatal(err)
			}
			agree(t, fmt.Sprint("after entry ", i), s)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		cfg.Create = false
		if s, err = Open(cfg); err != nil {
			t.Fatal(err)
		}
		agree(t, "after a restart", s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Counting ends at its bound, however many there are.
func TestOverdueIsBounded(t *testing.T) {
	s := mustOpen(t, testConfig(t))
	for i := 0; i < OverdueMax+500; i += 100 {
		var commands []admission.Command
		for j := range 100 {
			commands = append(commands, testReserve(i+j))
		}
		update(t, s, commands...)
	}
	if _, err := (logEntry{advance: time.Hour}).applyTo(s, s.Applied().Index+1); err != nil {
		t.Fatal(err)
	}
	if records, longest := s.Overdue(); records != OverdueMax || longest != time.Hour-time.Minute {
		t.Errorf("got %d, %v", records, longest)
	}
}
