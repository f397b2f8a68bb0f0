package raftlog

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// kept returns the indexes that are kept, of which there must be no gaps.
func (r *recentEntries) kept(t *testing.T, upTo uint64) (first, last uint64) {
	t.Helper()
	for index := range upTo + 2 {
		var log raft.Log
		if !r.get(index, &log) {
			continue
		}
		if log.Index != index {
			t.Fatalf("asked for entry %d, got entry %d", index, log.Index)
		}
		if first == 0 {
			first = index
		} else if index != last+1 {
			t.Fatalf("entries %d and %d are kept, and none between them", last, index)
		}
		last = index
	}
	return first, last
}

// entriesOf returns entries from an index on, each with so many bytes.
func entriesOf(from uint64, sizes ...int) (logs []*raft.Log) {
	for i, size := range sizes {
		logs = append(logs, &raft.Log{Index: from + uint64(i), Term: 1, Data: bytes.Repeat([]byte{byte(from) + byte(i)}, size)})
	}
	return logs
}

func TestRecentEntriesAreBounded(t *testing.T) {
	const mib = recentBytesMax
	for _, test := range []struct {
		name        string
		add         [][]*raft.Log
		first, last uint64
		bytes       int
	}{
		{name: "nothing"},
		{"one", [][]*raft.Log{entriesOf(7, 10)}, 7, 7, 10},
		{"one by one", [][]*raft.Log{entriesOf(7, 10), entriesOf(8, 20), entriesOf(9, 0)}, 7, 9, 30},
		{"as many as may be", [][]*raft.Log{entriesOf(1, make([]int, recentMax)...)}, 1, recentMax, 0},
		{"one more", [][]*raft.Log{entriesOf(1, make([]int, recentMax+1)...)}, 2, recentMax + 1, 0},
		{"as many bytes as may be", [][]*raft.Log{entriesOf(1, mib/2, mib/2)}, 1, 2, mib},
		{"a byte more", [][]*raft.Log{entriesOf(1, mib/2, mib/2, 1)}, 2, 3, mib/2 + 1},
		{"one as large as may be", [][]*raft.Log{entriesOf(1, 5, mib)}, 2, 2, mib},
		{"one that is too large", [][]*raft.Log{entriesOf(1, 5, mib+1)}, 0, 0, 0},
		{"one behind that", [][]*raft.Log{entriesOf(1, 5, mib+1), entriesOf(3, 10)}, 3, 3, 10},
		{"among others", [][]*raft.Log{entriesOf(1, 5, mib+1, 6, 7)}, 3, 4, 13},
		{"behind a gap", [][]*raft.Log{entriesOf(1, 5, 5), entriesOf(4, 6)}, 4, 4, 6},
		{"again from before", [][]*raft.Log{entriesOf(1, 5, 5, 5), entriesOf(2, 6)}, 2, 2, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recentEntries
			upTo := uint64(0)
			for _, logs := range test.add {
				r.add(logs)
				upTo = max(upTo, logs[len(logs)-1].Index)
			}
			if first, last := r.kept(t, upTo); first != test.first || last != test.last {
				t.Errorf("entries %d to %d are kept, want %d to %d", first, last, test.first, test.last)
			}
			if r.bytes != test.bytes {
				t.Errorf("%d bytes are counted, want %d", r.bytes, test.bytes)
			}
			r.clear()
			if first, _ := r.kept(t, upTo); first != 0 || r.bytes != 0 {
				t.Errorf("entry %d and %d bytes are kept after all was forgotten", first, r.bytes)
			}
			r.add(entriesOf(9, 3))
			if first, last := r.kept(t, 9); first != 9 || last != 9 || r.bytes != 3 {
				t.Errorf("entries %d to %d and %d bytes are kept after a new beginning", first, last, r.bytes)
			}
		})
	}
}

// What somebody does with the entry that was filled in does not change what is kept.
func TestRecentEntriesAreGivenAsCopies(t *testing.T) {
	var r recentEntries
	r.add(entriesOf(1, 4))
	var first, second raft.Log
	if !r.get(1, &first) {
		t.Fatal("it is not kept")
	}
	first.Term, first.Data, first.Extensions = 99, nil, []byte{1}
	if !r.get(1, &second) || second.Term != 1 || len(second.Data) != 4 || second.Extensions != nil {
		t.Errorf("%+v", second)
	}
}

func TestRecentEntriesAreReadWhileTheyChange(t *testing.T) {
	var r recentEntries
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			for index := uint64(1); ; index = index%2000 + 1 {
				select {
				case <-stop:
					return
				default:
				}
				var log raft.Log
				if r.get(index, &log) && (log.Index != index || len(log.Data) != int(index)) {
					t.Errorf("entry %d is kept as entry %d with %d bytes", index, log.Index, len(log.Data))
					return
				}
			}
		})
	}
	for index := uint64(1); index <= 2000; index++ {
		r.add(entriesOf(index, int(index)))
		if index%300 == 0 {
			r.clear() // as a cut of the beginning does beside an append
		}
	}
	close(stop)
	readers.Wait()
}

// What is read from memory is what is read from the disk, now and after a restart.
func TestRecentEntriesAreThoseOfTheDisk(t *testing.T) {
	dir := t.TempDir()
	l := openTestLog(t, dir)
	const entries = 2 * recentMax
	var fromMemory []raft.Log
	for index := uint64(1); index <= entries; index++ {
		entry := entriesOf(index, int(index))[0]
		entry.Type, entry.AppendedAt = raft.LogType(index%2), time.Now()
		if err := l.StoreLog(entry); err != nil {
			t.Fatal(err)
		}
		if len(entry.Extensions) != 0 {
			t.Fatal("raft's own entry was changed")
		}
		var kept raft.Log
		if !l.recent.get(index, &kept) {
			t.Fatalf("entry %d is not kept", index)
		}
		fromMemory = append(fromMemory, kept)
	}
	compare := func() {
		t.Helper()
		for i := range fromMemory {
			var read raft.Log
			if err := l.GetLog(fromMemory[i].Index, &read); err != nil || !sameEntry(&read, &fromMemory[i]) {
				t.Errorf("entry %+v, from memory %+v: %v", read, fromMemory[i], err)
			}
		}
	}
	compare() // half of it from the disk
	l.recent.clear()
	compare()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, ofBefore())
	if err != nil {
		t.Fatal(err)
	}
	if first, _ := l.recent.kept(t, entries); first != 0 {
		t.Errorf("entry %d is kept before anything was added", first)
	}
	compare()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What has been cut off the log is not read from memory, and what comes in its place is.
func TestRecentEntriesAfterACut(t *testing.T) {
	l := openTestLog(t, t.TempDir())
	defer l.Close()
	store := func(term, from, to uint64) {
		t.Helper()
		for index := from; index <= to; index++ {
			if err := l.StoreLog(&raft.Log{Index: index, Term: term, Data: []byte{byte(term)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(term, from, to uint64) {
		t.Helper()
		for index := from; index <= to; index++ {
			var read raft.Log
			if err := l.GetLog(index, &read); err != nil || read.Index != index || read.Term != term || read.Data[0] != byte(term) {
				t.Errorf("entry %d: %+v, %v; it is of term %d", index, read, err, term)
			}
		}
	}
	cut := func(from, to uint64) {
		t.Helper()
		if err := l.DeleteRange(from, to); err != nil {
			t.Fatal(err)
		}
		if first, last := l.recent.kept(t, to); first != 0 {
			t.Errorf("entries %d to %d are kept after a cut from %d to %d", first, last, from, to)
		}
	}
	gone := func(index uint64) {
		t.Helper()
		if err := l.GetLog(index, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d, which was cut off: %v", index, err)
		}
	}

	store(1, 1, 10)
	cut(6, 10) // the end, as on a follower whose leader has another one
	gone(6)
	gone(10)
	check(1, 1, 5)
	store(2, 6, 8)
	check(1, 1, 5)
	check(2, 6, 8)
	gone(9)

	cut(1, 3) // the beginning, behind a snapshot
	check(1, 4, 5)
	check(2, 6, 8)
	store(2, 9, 9)
	check(2, 6, 9)

	cut(4, 9) // all of it, under an installed state
	gone(9)
	store(3, 20, 22)
	check(3, 20, 22)
	gone(19)
}

// An entry that the log has refused is not read either.
func TestWhatWasNotStoredIsNotRecent(t *testing.T) {
	l := openTestLog(t, t.TempDir())
	defer l.Close()
	if err := l.StoreLogs(entriesOf(1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs(entriesOf(5, 1)); err == nil {
		t.Fatal("the log has taken an entry behind a gap")
	}
	bad := entriesOf(3, 1)
	bad[0].Extensions = []byte("no link")
	if err := l.StoreLogs(bad); !errors.Is(err, errLink) {
		t.Fatalf("an entry with a malformed link: %v", err)
	}
	for _, index := range []uint64{3, 5} {
		if err := l.GetLog(index, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d: %v", index, err)
		}
	}
	if first, last := l.recent.kept(t, 5); first != 1 || last != 2 {
		t.Errorf("entries %d to %d are kept", first, last)
	}
}
