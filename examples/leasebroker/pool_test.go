package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// books is a pool that is closed and opened again before every step, as if the process
// were another one.
type books struct {
	*pool
	t    *testing.T
	path string
	now  time.Time
}

func openBooks(t *testing.T, capacity int) *books {
	t.Helper()
	b := &books{t: t, path: filepath.Join(t.TempDir(), "pool.db"), now: time.Unix(1_700_000_000, 0).UTC()}
	b.reopen(capacity)
	t.Cleanup(func() { b.close() })
	return b
}

func (b *books) reopen(capacity int) *books {
	b.t.Helper()
	if b.pool != nil {
		b.close()
	}
	var err error
	if b.pool, err = openPool(b.path, capacity); err != nil {
		b.t.Fatal(err)
	}
	return b
}

func (b *books) again() *books { return b.reopen(b.capacity) }

func (b *books) order(id string, fence uint64) worker {
	return worker{ID: id, Account: "acme", Flavor: "small", LeaseSeconds: 60, Fence: fence, Ends: b.now.Add(time.Minute)}
}

func (b *books) state(id string) string {
	b.t.Helper()
	w, err := b.get(id)
	if errors.Is(err, errNoWorker) {
		return "none"
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return w.State
}

func wants(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Helper()
		t.Fatalf("%v, want %v", got, want)
	}
}

// Every step can be taken again, by another process, and finds its work done.
func TestPoolGoesForward(t *testing.T) {
	b := openBooks(t, 1)
	for range 2 {
		w, err := b.again().take(b.order("w", 1))
		wants(t, err, nil)
		if w.State != creating {
			t.Fatalf("%+v", w)
		}
	}
	_, err := b.again().retire("w", "acme")
	wants(t, err, errCreating)
	first, err := b.again().activate("w", "m-1", "10.0.0.1", b.now)
	wants(t, err, nil)
	if !first.Ends.Equal(b.now.Add(time.Minute)) || first.Machine != "m-1" {
		t.Fatalf("%+v", first)
	}
	again, err := b.again().activate("w", "m-1", "10.0.0.1", b.now.Add(time.Hour))
	wants(t, err, nil)
	if again != first {
		t.Errorf("a lease that had begun is now %+v, and was %+v", again, first)
	}
	taken, err := b.again().take(b.order("w", 2))
	wants(t, err, nil)
	if taken.State != active || taken.Machine != "m-1" || !taken.Ends.Equal(first.Ends) {
		t.Errorf("a later attempt finds %+v", taken)
	}
	for range 2 {
		w, err := b.again().retire("w", "acme")
		wants(t, err, nil)
		if w.State != ending || w.Machine != "m-1" {
			t.Fatalf("%+v", w)
		}
	}
	_, err = b.again().activate("w", "m-1", "", b.now)
	wants(t, err, errEnded)
	_, err = b.again().take(b.order("w", 3))
	wants(t, err, errEnded)
	for range 2 {
		wants(t, b.again().end("w"), nil)
	}
	_, err = b.again().retire("w", "acme")
	wants(t, err, errEnded)
	_, err = b.again().take(b.order("w", 3))
	wants(t, err, errEnded)
	_, err = b.again().take(b.order("next", 1)) // its place is free
	wants(t, err, nil)
}

func TestPoolRefuses(t *testing.T) {
	b := openBooks(t, 2)
	for _, id := range []string{"a", "b"} {
		_, err := b.take(b.order(id, 5))
		wants(t, err, nil)
	}
	_, err := b.take(b.order("c", 5))
	wants(t, err, errPoolFull)
	_, err = b.take(b.order("a", 6)) // it has its place
	wants(t, err, nil)

	_, err = b.take(b.order("a", 5))
	wants(t, err, errStale)
	wants(t, b.drop("a", 5), errStale)
	wants(t, b.drop("a", 6), nil)
	wants(t, b.drop("a", 6), nil)
	if got := b.state("a"); got != "none" {
		t.Errorf("what was dropped is %s", got)
	}
	_, err = b.activate("a", "m", "", b.now)
	wants(t, err, errEnded)

	other := b.order("b", 7)
	other.Flavor = "large"
	_, err = b.take(other)
	wants(t, err, errOtherOrder)
	_, err = b.activate("b", "m", "", b.now)
	wants(t, err, nil)
	wants(t, b.drop("b", 5), errStale) // it is leased
	_, err = b.retire("b", "other")
	wants(t, err, errNoWorker)
	_, err = b.retire("nothing", "acme")
	wants(t, err, errNoWorker)
	wants(t, b.end("nothing"), nil)
}

func TestPoolDue(t *testing.T) {
	b := openBooks(t, 10)
	for _, id := range []string{"creating", "leased", "retired", "long"} {
		_, err := b.take(b.order(id, 1))
		wants(t, err, nil)
	}
	for id, began := range map[string]time.Time{"leased": b.now.Add(-time.Minute), "retired": b.now, "long": b.now} {
		_, err := b.activate(id, "m-"+id, "", began)
		wants(t, err, nil)
	}
	_, err := b.retire("retired", "acme")
	wants(t, err, nil)

	due := func(now time.Time, want ...string) {
		t.Helper()
		got, err := b.again().due(now)
		wants(t, err, nil)
		ids := []string{}
		for _, w := range got {
			if w.State != ending {
				t.Errorf("%s is %s", w.ID, w.State)
			}
			ids = append(ids, w.ID)
		}
		if fmt.Sprint(ids) != fmt.Sprint(want) {
			t.Errorf("due at %v are %v, want %v", now, ids, want)
		}
	}
	due(b.now.Add(-time.Nanosecond), "retired")
	due(b.now, "leased", "retired") // at its end it is over
	// Who is at work on it again has more time.
	later := b.order("creating", 2)
	later.Ends = b.now.Add(2 * time.Minute)
	_, err = b.take(later)
	wants(t, err, nil)
	due(b.now.Add(time.Minute), "leased", "long", "retired")
	due(b.now.Add(2*time.Minute), "creating", "leased", "long", "retired")
	_, err = b.retire("creating", "acme") // which machine it has nobody knows yet
	wants(t, err, errCreating)
	mine, err := b.list("acme")
	if err != nil || len(mine) != 4 {
		t.Errorf("%d are listed, %v", len(mine), err)
	}
	for _, w := range mine {
		wants(t, b.end(w.ID), nil)
	}
	due(b.now.Add(time.Hour))
}

// What has ended is remembered up to a bound, the newest of it.
func TestPoolForgets(t *testing.T) {
	b := openBooks(t, 1)
	for i := range 6 {
		b.endedMost = 3
		id := fmt.Sprint("w", i)
		_, err := b.take(b.order(id, 1))
		wants(t, err, nil)
		wants(t, b.end(id), nil)
		b.again()
	}
	for i, want := range []string{"none", "none", "none", ended, ended, ended} {
		if got := b.state(fmt.Sprint("w", i)); got != want {
			t.Errorf("the one that ended as number %d is %s, want %s", i+1, got, want)
		}
	}
}

// A pool that is in use is not opened a second time.
func TestPoolInUse(t *testing.T) {
	b := openBooks(t, 1)
	if second, err := openPool(b.path, 1); err == nil {
		second.close()
		t.Error("it was opened twice")
	}
}
