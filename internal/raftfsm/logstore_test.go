package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftlog"
)

// testOptions are those of a log that may be new, and of which nobody is told anything.
func testOptions() raftlog.Options {
	return raftlog.Options{Logger: discard(), WALLogger: newSlogAdapter(discard()), Create: true}
}

// testLog opens a log with a state that has applied as much as told. What is fatal is
// collected.
func testLog(t *testing.T, dir string, applied, installed uint64) (*logStore, *[]error, error) {
	t.Helper()
	log, err := raftlog.Open(dir, testOptions())
	if err != nil {
		return nil, nil, err
	}
	fatal := &[]error{}
	l := &logStore{
		log: log, watchdog: newWatchdog(dir, func(error) {}),
		fatal:   func(err error) { *fatal = append(*fatal, err) },
		applied: func() (uint64, uint64) { return applied, installed },
	}
	t.Cleanup(func() {
		_ = l.close()
		l.watchdog.close()
	})
	return l, fatal, nil
}

func entryData(index uint64) []byte { return fmt.Appendf(nil, "entry number %d of the log", index) }

// fillLog stores entries one by one, so that each is a batch of its own.
func fillLog(t *testing.T, l *logStore, last uint64) {
	t.Helper()
	for index := uint64(1); index <= last; index++ {
		if err := l.StoreLog(&raft.Log{Index: index, Term: 2, Data: entryData(index)}); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever bit of the log's files is flipped, no entry is ever read that was not stored:
// the log does not open, or the entry is refused and the replica stops. That holds for
// the end of the log, which the WAL alone would drop as a write that was torn.
func TestAFlippedBitIsNeverReadAsAnEntry(t *testing.T) {
	const last = 40
	pristine := t.TempDir()
	l, _, err := testLog(t, pristine, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	fillLog(t, l, last)
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(pristine, "*.wal"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	whole, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	used := bytes.LastIndex(whole, entryData(last)) + len(entryData(last))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	refused := 0
	for range 60 {
		at, bit := random.IntN(used), byte(1)<<random.IntN(8)
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(whole)
		damaged[at] ^= bit
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(segments[0])), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		l, fatal, err := testLog(t, dir, 0, 0)
		if err != nil {
			refused++
			continue
		}
		end, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		if end != last {
			t.Errorf("bit %d of byte %d: the log ends at %d, and what was synced is gone without a word", bit, at, end)
		}
		for index := uint64(1); index <= end; index++ {
			var entry raft.Log
			if err := l.GetLog(index, &entry); err != nil {
				if len(*fatal) == 0 {
					t.Errorf("bit %d of byte %d: entry %d cannot be read, and the replica goes on: %v", bit, at, index, err)
				}
				continue
			}
			if entry.Index != index || entry.Term != 2 || !bytes.Equal(entry.Data, entryData(index)) {
				t.Errorf("bit %d of byte %d: entry %d is read as %+v", bit, at, index, entry)
			}
		}
		if len(*fatal) > 0 {
			refused++
			if readable(dir, l, 1, end) == nil {
				t.Errorf("bit %d of byte %d: the log is taken for readable", bit, at)
			}
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("of 60 damaged logs %d were refused", refused)
	if refused == 0 {
		t.Error("no damage was noticed: the test damages nothing")
	}
}

// What has been applied is not taken back, whatever a leader's log says.
func TestAnAppliedEntryIsNotCutOff(t *testing.T) {
	for _, test := range []struct {
		name               string
		applied, installed uint64
		first, last        uint64
		refused            bool
	}{
		{"the end, not applied yet", 5, 0, 6, 10, false},
		{"the end, applied", 5, 0, 5, 10, true},
		{"the very last, applied", 10, 0, 10, 10, true},
		{"all of it, applied", 10, 0, 1, 10, true},
		{"the beginning", 10, 0, 1, 9, false},
		{"all of it, after an install", 20, 20, 1, 10, false},
		{"the end, long after an install", 9, 4, 8, 10, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, fatal, err := testLog(t, t.TempDir(), test.applied, test.installed)
			if err != nil {
				t.Fatal(err)
			}
			fillLog(t, l, 10)
			err = l.DeleteRange(test.first, test.last)
			if test.refused != errors.Is(err, ErrDiverged) || test.refused != (len(*fatal) == 1) {
				t.Fatalf("error %v, fatal %v", err, *fatal)
			}
			begins, ends := uint64(1), uint64(10)
			switch {
			case test.refused:
			case test.last < 10:
				begins = test.last + 1
			case test.first > 1:
				ends = test.first - 1
			default:
				begins, ends = 0, 0
			}
			first, firstErr := l.FirstIndex()
			last, lastErr := l.LastIndex()
			if err := errors.Join(firstErr, lastErr); err != nil || first != begins || last != ends {
				t.Errorf("the log goes from %d to %d, want %d to %d: %v", first, last, begins, ends, err)
			}
		})
	}
}

// A segment that cannot be begun for want of an answer of the disk is an append that does not
// return, of which the watchdog tells, and whatever else is to change the log waits for it.
func TestANextSegmentThatHangs(t *testing.T) {
	dir := t.TempDir()
	reached, answered := make(chan struct{}), make(chan struct{})
	begun := 0
	full := make([]*raft.Log, 64) // entries that fill a segment
	for i := range full {
		full[i] = &raft.Log{Index: uint64(i) + 1, Term: 1, Data: make([]byte, raftlog.SegmentBytes/len(full))}
	}
	options := testOptions()
	options.Rotated = func() {
		if begun++; begun == 2 { // the first one is the log's own
			close(reached)
			<-answered
		}
	}
	log, err := raftlog.Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	w := &watchdog{calls: make(map[*diskCall]struct{})}
	l := &logStore{log: log, watchdog: w, fatal: func(err error) { t.Error(err) }, applied: func() (index, installed uint64) { return 0, 0 }}
	results := make(chan error, 2)
	go func() { results <- l.StoreLogs(full) }()
	<-reached
	go func() { results <- l.DeleteRange(uint64(len(full)), uint64(len(full))) }()
	for range watchTicksMax - 1 {
		w.tick()
	}
	if name, hung := w.tick(); !hung || name != "an append to the log" {
		t.Errorf("hung %t: %q", hung, name)
	}
	close(answered)
	if err := errors.Join(<-results, <-results, l.close()); err != nil {
		t.Error(err)
	}
	log, err = raftlog.Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if last, err := log.LastIndex(); last != uint64(len(full))-1 || err != nil {
		t.Errorf("the log ends at %d, %v, want %d", last, err, uint64(len(full))-1)
	}
}
