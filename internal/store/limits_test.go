package store

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestConfigNamesWhatIsOutOfRange(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"Path":             func(c *Config) { c.Path = "" },
		"FlushInterval":    func(c *Config) { c.FlushInterval = FlushIntervalMin - 1 },
		"FlushEntries":     func(c *Config) { c.FlushEntries = -1 },
		"FlushBytes":       func(c *Config) { c.FlushBytes = -1 },
		"GatheredBytesMax": func(c *Config) { c.GatheredBytesMax = FlushBytesDefault - 1 },
		"MapBytes":         func(c *Config) { c.MapBytes = MapBytesMin - 1 },
		"ClusterID":        func(c *Config) { c.ClusterID = strings.Repeat("x", ClusterIDBytesMax+1) },
		"Shard":            func(c *Config) { c.Shard = 3 },
		"Shards":           func(c *Config) { c.Shards = 0 },
	} {
		cfg := testConfig(t)
		spoil(&cfg)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), field+" is") {
			t.Errorf("%s: error %v", field, err)
		}
	}
	cfg := testConfig(t)
	cfg.FlushInterval = FlushIntervalMax + 1
	if err := cfg.WithDefaults().Validate(); err == nil {
		t.Error("a flush interval that is too long is accepted")
	}
}

// inBubble runs a test on a store whose time is virtual. Commits are real, and
// synctest waits for them.
func inBubble(t *testing.T, change func(*Config), test func(t *testing.T, s *Store)) {
	t.Helper()
	cfg := testConfig(t)
	cfg.FlushInterval = FlushIntervalMax
	change(&cfg)
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFlushIntervalBoundsWhatACrashLoses(t *testing.T) {
	const interval = 70 * time.Millisecond
	inBubble(t, func(c *Config) { c.FlushInterval = interval }, func(t *testing.T, s *Store) {
		update(t, s)
		timer := time.NewTimer(interval - 1)
		<-timer.C
		synctest.Wait()
		if s.Durable() == s.Applied() {
			t.Error("durable before the interval has passed")
		}
		timer.Reset(1)
		<-timer.C
		synctest.Wait()
		if s.Durable() != s.Applied() {
			t.Error("not durable when the interval has passed; the update wrote nothing, and moves the position")
		}
	})
}

func TestFlushEntriesAndBytesFlushAtOnce(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"FlushEntries": func(c *Config) { c.FlushEntries = 3 },
		"FlushBytes":   func(c *Config) { c.FlushBytes = 700 }, // two records take less, three more
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, change, func(t *testing.T, s *Store) {
				update(t, s, testReserve(1))
				update(t, s, testReserve(2))
				synctest.Wait()
				if s.Durable().Index != 0 {
					t.Errorf("durable up to %v with %d bytes gathered", s.Durable(), s.Gathered())
				}
				update(t, s, testReserve(3))
				synctest.Wait()
				if s.Durable() != s.Applied() || s.Gathered() != 0 {
					t.Errorf("durable up to %v with %d bytes gathered", s.Durable(), s.Gathered())
				}
			})
		})
	}
}

func TestGatheredBytesMaxBlocksUpdates(t *testing.T) {
	var g *gate
	change := func(c *Config) {
		c.FlushBytes, c.GatheredBytesMax = 1, 600
		c.CommitObserver.Before = func() { g.pass() }
	}
	inBubble(t, change, func(t *testing.T, s *Store) {
		g = newGate()
		update(t, s, testReserve(1)) // goes to the disk, which does not answer
		<-g.arrived
		update(t, s, testReserve(2), testReserve(3)) // may gather: it was not over before
		done := make(chan struct{})
		go func() {
			defer close(done)
			update(t, s, testReserve(4))
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Errorf("an update went through with %d bytes gathered", s.Gathered())
		default:
		}
		s.Pass()      // which does not wait for that
		close(g.open) // the disk answers, from now on at once
		<-done
		if s.Applied().Index != 3 {
			t.Errorf("applied %v", s.Applied())
		}
	})
}

func TestMapBytesBoundsTheFile(t *testing.T) {
	cfg := testConfig(t)
	cfg.MapBytes = MapBytesMin
	cfg.Fatal = nil
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil; i++ {
		if i > 20_000 {
			t.Fatal("it grows without bound")
		}
		_, err = s.Update(Position{Index: uint64(i + 1)}, func(tx *Tx) error {
			_, err := decide(tx, testReserve(i))
			return err
		})
		if err == nil && i%200 == 199 {
			err = s.Flush()
		}
	}
	if !errors.Is(err, ErrFailed) {
		t.Errorf("error %v", err)
	}
	if size := s.Stats().FileBytes; size > MapBytesMin {
		t.Errorf("the file has %d bytes", size)
	}
	_ = s.Close()
	cfg = testConfig(t)
	cfg.MapBytes = 0 // the default: it is address space, and many stores have room
	for range 20 {
		cfg.Path += "x"
		mustOpen(t, cfg)
	}
}

func TestScanPages(t *testing.T) {
	s := mustOpen(t, testConfig(t))
	for i := range 10 {
		update(t, s, testReserve(i))
		if i == 4 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := func(*admission.Record) bool { return true }
	if next, more, err := s.Scan(0, 10, all); next != 10 || more || err != nil {
		t.Errorf("all in one page: next %d, more %v, error %v", next, more, err)
	}
	if next, more, err := s.Scan(0, 9, all); next != 9 || !more || err != nil {
		t.Errorf("one more: next %d, more %v, error %v", next, more, err)
	}
	if next, more, err := s.Scan(10, 9, all); next != 10 || more || err != nil {
		t.Errorf("past the end: next %d, more %v, error %v", next, more, err)
	}
	if next, more, err := s.Scan(3, 0, all); next != 4 || !more || err != nil {
		t.Errorf("no limit is one: next %d, more %v, error %v", next, more, err)
	}
	if next, more, err := s.Scan(3, 5, func(r *admission.Record) bool { return r.Sequence < 6 }); next != 6 || !more || err != nil {
		t.Errorf("enough: next %d, more %v, error %v", next, more, err)
	}
}
