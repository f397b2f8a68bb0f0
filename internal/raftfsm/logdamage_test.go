package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// testLog opens a log with a state that has applied as much as told. What is fatal is
// collected.
func testLog(t *testing.T, dir string, applied, installed uint64) (*logStore, *[]error, error) {
	t.Helper()
	log, _, err := openWAL(dir, logOpening{logger: newSlogAdapter(discard()), rotated: func() {}})
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
			if err := readable(dir, l, 1, end); !errors.Is(err, errDamaged) && err == nil {
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

// Raft's term and vote are read as they were written, or not at all.
func TestADamagedVoteIsNotBelieved(t *testing.T) {
	l, _, err := testLog(t, t.TempDir(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	term, vote := []byte("CurrentTerm"), []byte("LastVoteCand")
	if n, err := l.GetUint64(term); n != 0 || err != nil {
		t.Errorf("before anything was written: %d, %v", n, err)
	}
	if err := errors.Join(l.SetUint64(term, 7), l.Set(vote, []byte("n2"))); err != nil {
		t.Fatal(err)
	}
	n, err := l.GetUint64(term)
	who, whoErr := l.Get(vote)
	if n != 7 || string(who) != "n2" || err != nil || whoErr != nil {
		t.Errorf("term %d, vote %q: %v", n, who, errors.Join(err, whoErr))
	}
	beneath := l.log.(*walLog).WAL
	for _, key := range [][]byte{term, vote} {
		stored, err := beneath.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		for at := range stored {
			damaged := bytes.Clone(stored)
			damaged[at] ^= 1
			if err := beneath.Set(key, damaged); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Get(key); !errors.Is(err, errDamaged) {
				t.Errorf("%s with byte %d damaged: %q, %v", key, at, got, err)
			}
		}
		// One in the place of the other.
		if err := beneath.Set(key, sealValue([]byte("another key"), []byte("n2"))); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Get(key); !errors.Is(err, errDamaged) {
			t.Errorf("%s: a value of another key: %v", key, err)
		}
		if err := beneath.Set(key, stored); err != nil {
			t.Fatal(err)
		}
	}
}

// The end that is noted is what tells a damaged end from one that was torn.
func TestTheEndOfTheLogIsRemembered(t *testing.T) {
	const last = 10
	pristine := t.TempDir()
	l, _, err := testLog(t, pristine, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	fillLog(t, l, last-1)
	note, err := os.ReadFile(filepath.Join(pristine, endName))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(&raft.Log{Index: last, Term: 2, Data: entryData(last)}); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	flipped := func(content []byte, at int) []byte {
		content = bytes.Clone(content)
		content[at] ^= 4
		return content
	}
	segments, _ := filepath.Glob(filepath.Join(pristine, "*.wal"))
	segment := filepath.Base(segments[0])
	whole, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	inLast := bytes.LastIndex(whole, entryData(last))
	newer, err := os.ReadFile(filepath.Join(pristine, endName))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		put  map[string][]byte // nil is a file that is gone
		want string            // of the error; "" is none
		end  uint64
	}{
		{name: "as it was", end: last},
		{name: "the last entry is damaged", put: map[string][]byte{segment: flipped(whole, inLast)}, want: "entry 10 had been synced"},
		// A crash before the end was noted: an entry that nobody was told of may be gone...
		{name: "the last write is torn", put: map[string][]byte{segment: flipped(whole, inLast), endName: note}, end: last - 1},
		// ...or there.
		{name: "the last end is not noted", put: map[string][]byte{endName: note}, end: last},
		{name: "the note is gone", put: map[string][]byte{endName: nil}, want: endName},
		{name: "the note is empty", put: map[string][]byte{endName: {}}, want: endName},
		{name: "the note is damaged", put: map[string][]byte{endName: flipped(newer, 5)}, want: endName},
		{name: "the note is of another log", put: map[string][]byte{endName: chainEnd{index: 4, hash: 5}.encode()}, want: "entry 4 is not the one"},
		{name: "the note is of a longer log", put: map[string][]byte{endName: chainEnd{index: 11, hash: 5}.encode()}, want: "entry 11 had been synced"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
				t.Fatal(err)
			}
			for name, content := range test.put {
				err := os.Remove(filepath.Join(dir, name))
				if content != nil {
					err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // refused once, refused again
				l, fatal, err := testLog(t, dir, 0, 0)
				if test.want != "" {
					if err == nil || !strings.Contains(err.Error(), test.want) {
						t.Fatalf("error %v, want one of %q", err, test.want)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if end, err := l.LastIndex(); err != nil || end != test.end || len(*fatal) > 0 {
					t.Errorf("ends at %d, want %d: %v %v", end, test.end, err, *fatal)
				}
				// And goes on from there.
				test.end++
				if err := l.StoreLog(&raft.Log{Index: test.end, Term: 3}); err != nil {
					t.Error(err)
				}
				if err := l.close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Another term's entries in place of the end, and a log that begins behind a state, are
// noted like any other end.
func TestTheEndIsRememberedThroughCuts(t *testing.T) {
	dir := t.TempDir()
	next := uint64(11)
	for round, cut := range []struct{ first, last, then uint64 }{
		{8, 10, 8},   // a new leader overrules the end
		{1, 4, 0},    // the beginning is in the state
		{5, 40, 200}, // a state was installed
	} {
		l, fatal, err := testLog(t, dir, 0, 0)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round == 0 {
			fillLog(t, l, 10)
		}
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.DeleteRange(cut.first, min(cut.last, last)); err != nil {
			t.Fatal(err)
		}
		if cut.then > 0 {
			next = cut.then
		}
		for range 10 {
			if err := l.StoreLog(&raft.Log{Index: next, Term: uint64(round + 3), Data: entryData(next)}); err != nil {
				t.Fatal(err)
			}
			next++
		}
		if err := l.close(); err != nil || len(*fatal) > 0 {
			t.Fatalf("round %d: %v %v", round, err, *fatal)
		}
	}
	l, _, err := testLog(t, dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, firstErr := l.FirstIndex()
	last, lastErr := l.LastIndex()
	if err := errors.Join(firstErr, lastErr); err != nil || first != 200 || last != 209 {
		t.Errorf("the log goes from %d to %d, want 200 to 209: %v", first, last, err)
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
