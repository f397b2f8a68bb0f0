package store

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// gate lets a test hold a commit where it is.
type gate struct {
	arrived chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan struct{}, 100), open: make(chan struct{}, 100)} }

func (g *gate) pass() {
	g.arrived <- struct{}{}
	<-g.open
}

// Invariants 1 and 2: readers see what is gathered, what is being written and what is
// in the file as one, deletions included, at every stage of a flush.
func TestReadersSeeThroughTheLayers(t *testing.T) {
	g := newGate()
	cfg := testConfig(t)
	cfg.FlushInterval = FlushIntervalMax
	cfg.CommitObserver.Before = g.pass
	s := mustOpen(t, cfg)
	reserve := func(i int) { update(t, s, testReserve(i)) }
	purge := func(i int) {
		r := lookup(t, s, testIdentity(i))
		apply(t, s, admission.Decision{Deleted: true, Counter: s.Stats().Counter}, r)
	}
	flushed := make(chan error, 1)
	flush := func() {
		go func() { flushed <- s.Flush() }()
		<-g.arrived
	}
	finish := func() {
		g.open <- struct{}{}
		if err := <-flushed; err != nil {
			t.Error(err)
		}
	}
	shows := func(when string, want ...int) {
		t.Helper()
		var keys []string
		if _, _, err := s.Scan(0, 100, func(r *admission.Record) bool { keys = append(keys, r.Identity.Key); return true }); err != nil {
			t.Fatal(err)
		}
		var wanted []string
		for _, i := range want {
			wanted = append(wanted, testIdentity(i).Key)
		}
		if strings.Join(keys, " ") != strings.Join(wanted, " ") {
			t.Errorf("%s: a scan shows %v, want %v", when, keys, wanted)
		}
		for i := range 6 {
			found, wanted := lookup(t, s, testIdentity(i)) != nil, strings.Contains(" "+strings.Join(wanted, " ")+" ", " "+testIdentity(i).Key+" ")
			if found != wanted {
				t.Errorf("%s: record %d is there: %v, want %v", when, i, found, wanted)
			}
		}
	}

	reserve(0)
	reserve(1)
	reserve(2)
	shows("gathered", 0, 1, 2)
	flush()
	shows("being written", 0, 1, 2)
	purge(1) // which is being written
	reserve(3)
	shows("gathered over what is being written", 0, 2, 3)
	finish()
	shows("one written, one gathered", 0, 2, 3)
	purge(0) // which is in the file
	reserve(4)
	purge(4) // which was nowhere
	shows("deleted over the file", 2, 3)
	if n := len(s.gathering.changes); n != 3 {
		t.Errorf("%d changes are gathered, want 3: 0 and 1 are deleted, 3 is new, and of 4 there is nothing", n)
	}
	flush()
	shows("deletions being written", 2, 3)
	finish()
	shows("all written", 2, 3)
	if s.Gathered() != 0 {
		t.Errorf("%d bytes are gathered after a flush", s.Gathered())
	}
	g.open <- struct{}{} // for what Close may flush
}

// apply carries out a decision that no rule has made.
func apply(t testing.TB, s *Store, d admission.Decision, before *admission.Record) {
	t.Helper()
	if _, err := s.Update(Position{Index: s.Applied().Index + 1, Term: 1}, func(tx *Tx) error {
		return tx.Apply(d, before)
	}); err != nil {
		t.Fatal(err)
	}
}

// A response stays with a record that stays committed, wherever the two lie, and is
// gone with one that does not.
func TestResponsesFollowTheirRecords(t *testing.T) {
	for name, size := range map[string]int{"inline": 1024, "apart": 1025} {
		for _, flush := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				cfg := testConfig(t)
				cfg.FlushInterval = FlushIntervalMax
				s := mustOpen(t, cfg)
				settle := func() {
					if flush {
						if err := s.Flush(); err != nil {
							t.Fatal(err)
						}
					}
				}
				id := testIdentity(1)
				answer := update(t, s, testReserve(1))[0]
				update(t, s, admission.Commit{Identity: id, Token: answer.Token, Response: admission.Response{Stored: make([]byte, size)}})
				settle()
				r := lookup(t, s, id)
				changed := r.Clone()
				changed.Owner = "another"
				apply(t, s, admission.Decision{Record: changed, Counter: s.Stats().Counter}, r)
				settle()
				if got := response(t, s, id); len(got) != size || lookup(t, s, id).Owner != "another" {
					t.Fatalf("%d bytes of response, want %d", len(got), size)
				}
				advance(t, s, 2*time.Hour)
				before := lookup(t, s, id)
				gone := &admission.Record{Identity: id, Ended: before.Ended, Sequence: before.Sequence}
				apply(t, s, admission.Decision{Record: gone, Counter: s.Stats().Counter}, before)
				if got := response(t, s, id); got != nil {
					t.Errorf("a tombstone has a response of %d bytes", len(got))
				}
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				if s.index.responses != 0 || s.Stats().Records[admission.StateNone] != 1 {
					t.Errorf("%d responses lie apart, records %v", s.index.responses, s.Stats().Records)
				}
				stateHash(t, s)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				mustOpen(t, cfg) // which misses and finds every response
			})
		}
	}
}

// Invariant 4: after a failed write nothing answers with success, and Fatal is told
// once.
func TestAFailedWriteFailsTheStore(t *testing.T) {
	var handle *os.File
	var told atomic.Int32
	cfg := testConfig(t)
	cfg.FlushInterval = FlushIntervalMax
	cfg.Fatal = func(err error) {
		told.Add(1)
		if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), cfg.Path) {
			t.Errorf("Fatal is told %v", err)
		}
	}
	cfg.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		f, err = os.OpenFile(name, flag, mode)
		handle = f
		return f, err
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, testReserve(1))
	durable := s.Durable()
	_ = handle.Close()
	for name, call := range map[string]func() error{
		"Flush":  s.Flush,
		"Update": func() error { _, err := s.Update(Position{Index: 9}, func(*Tx) error { return nil }); return err },
		"View":   func() error { return s.View(func(*Tx) error { return nil }) },
		"Scan": func() error {
			_, _, err := s.Scan(0, 1, func(*admission.Record) bool { return true })
			return err
		},
		"SetConfiguration": func() error { return s.SetConfiguration(Position{Index: 10}, nil) },
		"Copy":             func() error { _, err := s.Copy(); return err },
		"StateHash":        func() error { _, _, err := s.StateHash(); return err },
	} {
		if flushed := s.Flush(); !errors.Is(flushed, ErrFailed) {
			t.Fatalf("flush: %v", flushed)
		}
		if err := call(); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if s.Durable() != durable {
		t.Errorf("durable went from %v to %v", durable, s.Durable())
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
	if told.Load() != 1 {
		t.Errorf("Fatal was told %d times", told.Load())
	}
}

// Somebody cuts or overwrites the file of a store that runs, or the disk cannot read it any
// more: the store says so, and does not take the process with it.
func TestDamageUnderARunningStoreFailsIt(t *testing.T) {
	const records = 3000
	cut := func(to int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.Truncate(path, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	overwritten := func(with byte, from int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(bytes.Repeat([]byte{with}, int(info.Size()-from)), from); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"cut to nothing":         cut(0),
		"cut to the meta pages":  cut(2 * 4096),
		"cut to a half":          cut(200 << 10),
		"all of it zeros":        overwritten(0, 0),
		"all of it ones":         overwritten(0xff, 0),
		"zeros after the metas":  overwritten(0, 2*4096),
		"ones after the metas":   overwritten(0xff, 2*4096),
		"letters after the meta": overwritten('x', 2*4096),
	} {
		for use, reach := range map[string]func(*Store) error{
			"write": func(s *Store) error {
				for i := range records {
					if _, err := s.Update(Position{Index: uint64(records + i + 1), Term: 1}, func(tx *Tx) error {
						_, err := decide(tx, testReserve(records+i)) // it looks at no page
						return err
					}); err != nil {
						return err
					}
				}
				return s.Flush()
			},
			"read": func(s *Store) error {
				for i := range records {
					if err := s.View(func(tx *Tx) error { _, err := tx.Admission(testIdentity(i)); return err }); err != nil {
						return err
					}
				}
				return nil
			},
			"hash": func(s *Store) error { _, _, err := s.StateHash(); return err },
			"copy": func(s *Store) error { _, err := s.Copy(); return err },
		} {
			t.Run(name+"/"+use, func(t *testing.T) {
				var told atomic.Int32
				cfg := testConfig(t)
				cfg.Fatal = func(error) { told.Add(1) }
				s, err := Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				for i := range records {
					update(t, s, testReserve(i))
				}
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				damage(t, cfg.Path)
				switch err := reach(s); {
				case !errors.Is(err, ErrFailed) || !errors.Is(err, ErrCorrupt):
					t.Errorf("error %v, want %v and %v", err, ErrFailed, ErrCorrupt)
				case !strings.Contains(err.Error(), cfg.Path) || strings.Contains(err.Error(), "runtime error"):
					t.Errorf("not in our own words: %v", err)
				}
				if err := s.View(func(*Tx) error { return nil }); !errors.Is(err, ErrFailed) {
					t.Errorf("it goes on: %v", err)
				}
				if err := s.Close(); !errors.Is(err, ErrFailed) {
					t.Errorf("close: %v", err)
				}
				if told.Load() != 1 {
					t.Errorf("Fatal was told %d times", told.Load())
				}
			})
		}
	}
}

// Where a write fails the store says so and looks at nothing more: bbolt would walk over all
// pages, in a goroutine where nobody catches what it makes of damaged ones.
func TestAFailedWriteBesideDamageFailsTheStore(t *testing.T) {
	cfg := testConfig(t)
	cfg.Fatal = nil
	s, err := Open(cfg)
	must(t, err)
	for i := range 3000 {
		update(t, s, testReserve(i))
	}
	must(t, s.Flush())
	f, err := os.OpenFile(cfg.Path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 4096*10), 4096*20) // where the oldest are
	must(t, errors.Join(err, f.Close(), s.file.handle.Close()))
	update(t, s, testReserve(3000))
	if err := s.Flush(); !errors.Is(err, ErrFailed) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v, want %v and %v", err, ErrFailed, os.ErrClosed)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
}

func TestAnUpdateThatBreaksOffFailsTheStore(t *testing.T) {
	broken := errors.New("broken")
	half := func(tx *Tx) error {
		if _, err := decide(tx, testReserve(1)); err != nil {
			return err
		}
		return broken
	}
	cfg := testConfig(t)
	cfg.Fatal = nil
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if applied, err := s.Update(Position{Index: 1}, func(*Tx) error { return broken }); applied || !errors.Is(err, broken) || errors.Is(err, ErrFailed) {
		t.Errorf("nothing had changed, and applied %v, error %v", applied, err)
	}
	if applied, err := s.Update(Position{Index: 1}, half); applied || !errors.Is(err, broken) || !errors.Is(err, ErrFailed) {
		t.Errorf("applied %v, error %v", applied, err)
	}
	if err := s.View(func(*Tx) error { return nil }); !errors.Is(err, ErrFailed) {
		t.Errorf("half an update can be read: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
	s, err = Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Update(Position{Index: 1}, func(tx *Tx) error { _ = half(tx); panic(broken) })
	}()
	if err := s.View(func(*Tx) error { return nil }); !errors.Is(err, ErrFailed) {
		t.Errorf("half an update can be read after a panic: %v", err)
	}
	_ = s.Close()
}

func TestApplyRefusesWhatDoesNotFit(t *testing.T) {
	cfg := testConfig(t)
	s := mustOpen(t, cfg)
	update(t, s, testReserve(1), testReserve(2))
	one, two := lookup(t, s, testIdentity(1)), lookup(t, s, testIdentity(2))
	fresh := one.Clone()
	fresh.Sequence = 0
	unknown := one.Clone()
	unknown.Sequence = 99
	other := one.Clone()
	other.State = admission.StateReleased
	counter := s.Stats().Counter
	for name, c := range map[string]struct {
		decision admission.Decision
		before   *admission.Record
	}{
		"a counter that goes back":   {admission.Decision{Record: one, Counter: counter - 1}, one},
		"kept and deleted":           {admission.Decision{Record: one, Deleted: true, Counter: counter}, one},
		"another identity":           {admission.Decision{Record: one, Counter: counter}, two},
		"not looked at":              {admission.Decision{Record: fresh, Counter: counter}, nil},
		"not there":                  {admission.Decision{Record: unknown, Counter: counter}, unknown},
		"not as it was looked at":    {admission.Decision{Record: one, Counter: counter}, other},
		"deleted, and was not there": {admission.Decision{Deleted: true, Counter: counter}, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := s.Update(Position{Index: s.Applied().Index + 1, Term: 1}, func(tx *Tx) error {
				return tx.Apply(c.decision, c.before)
			}); !errors.Is(err, errInvariant) || errors.Is(err, ErrFailed) {
				t.Errorf("error %v", err)
			}
		})
	}
	if err := s.View(func(tx *Tx) error { return tx.Apply(admission.Decision{}, nil) }); !errors.Is(err, ErrReadOnly) {
		t.Errorf("error %v", err)
	}
}

// Invariant 2, many readers: two records that are always changed together are never
// seen apart, while the state is flushed, copied, hashed and replaced.
func TestReadersSeeWholeUpdates(t *testing.T) {
	cfg := testConfig(t)
	cfg.FlushInterval = FlushIntervalMin
	s := mustOpen(t, cfg)
	update(t, s, testReserve(1), testReserve(2))
	done := make(chan struct{})
	var readers sync.WaitGroup
	read := func(look func() error) {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := look(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	apart := errors.New("one of two records that are changed together was seen without the other")
	for range 2 {
		read(func() error {
			return s.View(func(tx *Tx) error {
				one, err := tx.Admission(testIdentity(1))
				if err != nil {
					return err
				}
				two, err := tx.Admission(testIdentity(2))
				if err == nil && (one.Record == nil) != (two.Record == nil) {
					return apart
				}
				return err
			})
		})
	}
	read(func() error {
		seen := 0
		_, _, err := s.Scan(0, 100, func(*admission.Record) bool { seen++; return true })
		if err == nil && seen%2 != 0 {
			return apart
		}
		return err
	})
	read(func() error { _, _, err := s.StateHash(); return err })
	read(func() error { s.Stats(); s.NextAlarm(); s.Configuration(); return s.Flush() })
	for i := range 200 {
		one, two := lookup(t, s, testIdentity(1)), lookup(t, s, testIdentity(2))
		if _, err := s.Update(Position{Index: s.Applied().Index + 1, Term: 1}, func(tx *Tx) error {
			if one == nil {
				_, err := decide(tx, testReserve(1))
				_, second := decide(tx, testReserve(2))
				return errors.Join(err, second)
			}
			gone := admission.Decision{Deleted: true, Counter: tx.store.head.counter}
			return errors.Join(tx.Apply(gone, one), tx.Apply(gone, two))
		}); err != nil {
			t.Fatal(err)
		}
		if i%50 == 25 {
			if err := s.Install(receive(t, s, t.TempDir())); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(done)
	readers.Wait()
}
