package raftlog

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
)

// inUse is how many bytes of memory are.
func inUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// However large appends are, what they took is let go when their segment is full: a log has
// as many segments as fit into it.
func TestFullSegmentsTakeNoMemory(t *testing.T) {
	const most = 4 << 20
	for name, append := range map[string]struct{ entries, bytes int }{
		"a follower that catches up":  {32, 1 << 20},
		"large entries, one by one":   {1, 1 << 20},
		"entries larger than segment": {1, 9 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			l := openTestLog(t, t.TempDir())
			data, index, before := make([]byte, append.bytes), uint64(0), inUse()
			for l.Bytes() < 12*SegmentBytes {
				logs := make([]*raft.Log, append.entries)
				for i := range logs {
					index++
					logs[i] = &raft.Log{Index: index, Term: 1, Data: data}
				}
				if err := l.StoreLogs(logs); err != nil {
					t.Fatal(err)
				}
			}
			if more := inUse() - before; more > most {
				t.Errorf("a log of %d bytes takes %d bytes of memory, want %d at most", l.Bytes(), more, most)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// An append of any size is stored in portions: each takes copies in memory.
func TestLargeAppendsArePortioned(t *testing.T) {
	dir := t.TempDir()
	l := openTestLog(t, dir)
	const size = 1 << 20
	logs := entriesOf(1, slices.Repeat([]int{size}, 40)...)
	logs = append(logs, entriesOf(41, 10, 2*appendBytesMax, 20)...)
	if err := l.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, segment := range segments {
		info, err := os.Stat(segment)
		if err != nil || info.Size() > SegmentBytes+2*appendBytesMax+size {
			t.Errorf("%s has %d bytes, %v", segment, info.Size(), err)
		}
	}
	for range 2 {
		for _, want := range logs {
			var entry raft.Log
			if err := l.GetLog(want.Index, &entry); err != nil || entry.Index != want.Index || !bytes.Equal(entry.Data, want.Data) {
				t.Errorf("entry %d: entry %d with %d bytes, %v", want.Index, entry.Index, len(entry.Data), err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openTestLog(t, dir)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestPortions(t *testing.T) {
	const most = appendBytesMax
	for _, c := range []struct {
		sizes []int
		want  []int
	}{
		{[]int{0}, []int{1}},
		{[]int{1, 2, 3}, []int{3}},
		{[]int{most}, []int{1}},
		{[]int{most + 1}, []int{1}},
		{[]int{most, 0, 1}, []int{2, 1}},
		{[]int{most - 1, 1, 1, most}, []int{2, 1, 1}},
		{[]int{most + 1, 1, 2 * most, 2 * most, 1}, []int{1, 1, 1, 1, 1}},
		{[]int{most / 2, most / 2, most / 2, most / 2, most / 2}, []int{2, 2, 1}},
	} {
		var got []int
		for logs := entriesOf(1, c.sizes...); len(logs) > 0; logs = logs[got[len(got)-1]:] {
			got = append(got, portion(logs))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.sizes, got, c.want)
		}
	}
}

// Who reads entries while segments become full, and are cut off, reads what was written.
func TestEntriesThatAreReadWhileSegmentsBecomeFull(t *testing.T) {
	const entries, size = 120, SegmentBytes / 20
	dir := t.TempDir()
	l := openTestLog(t, dir)
	content := func(index uint64) []byte { return bytes.Repeat([]byte{byte(index)}, size) }
	read := func(index uint64) {
		t.Helper()
		var entry raft.Log
		if err := l.GetLog(index, &entry); err != nil || entry.Index != index || !bytes.Equal(entry.Data, content(index)) {
			t.Errorf("entry %d: entry %d with %d bytes, %v", index, entry.Index, len(entry.Data), err)
		}
	}
	var readers sync.WaitGroup
	var last atomic.Uint64
	for range 2 {
		readers.Go(func() {
			for index := uint64(1); index < entries; {
				if index <= last.Load() {
					read(index)
					index++
				} else {
					runtime.Gosched()
				}
			}
		})
	}
	for index := uint64(1); index <= entries; index++ {
		if err := l.StoreLog(&raft.Log{Index: index, Term: 1, Data: content(index)}); err != nil {
			t.Error(err)
		}
		last.Store(index)
	}
	readers.Wait()
	for reopened := range 2 {
		if end, err := l.LastIndex(); end != entries || err != nil {
			t.Errorf("opened %d times: the log ends at %d, %v", reopened, end, err)
		}
		for index := uint64(1); index <= entries; index++ {
			read(index)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openTestLog(t, dir)
	}
	// A cut within a segment that was full.
	if err := l.DeleteRange(30, entries); err != nil {
		t.Fatal(err)
	}
	read(29)
	if err := l.StoreLog(&raft.Log{Index: 30, Term: 2, Data: content(30)}); err != nil {
		t.Fatal(err)
	}
	read(30)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
