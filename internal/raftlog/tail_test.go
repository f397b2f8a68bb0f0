package raftlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"
)

// segmentsOf returns the files of a log's segments, in order.
func segmentsOf(t *testing.T, dir string) []string {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(segments)
	return segments
}

func readTestFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func writeTestFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// testBatch returns entries of a size each.
func testBatch(first uint64, count, size int) []*raft.Log {
	logs := make([]*raft.Log, count)
	for i := range logs {
		logs[i] = &raft.Log{Index: first + uint64(i), Term: 1, Data: bytes.Repeat([]byte{byte(first) + byte(i) | 1}, size)}
	}
	return logs
}

func storeBatch(t *testing.T, log *Log, logs []*raft.Log) {
	t.Helper()
	if err := log.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
}

func closeTestLog(t *testing.T, log *Log) {
	t.Helper()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

// goesOn opens the log twice and appends to it each time, and reads all of it. An empty one
// begins with entry 1.
func goesOn(t *testing.T, dir string, first, last uint64) {
	t.Helper()
	for range 2 {
		log := openTestLog(t, dir)
		if got, err := log.FirstIndex(); got != first || err != nil {
			t.Fatalf("the log begins at %d, %v, want %d", got, err, first)
		}
		if got, err := log.LastIndex(); got != last || err != nil {
			t.Fatalf("the log ends at %d, %v, want %d", got, err, last)
		}
		first, last = max(first, 1), last+1
		storeBatch(t, log, testBatch(last, 1, 100))
		for index := first; index <= last; index++ {
			var entry raft.Log
			if err := log.GetLog(index, &entry); err != nil {
				t.Fatalf("entry %d: %v", index, err)
			}
		}
		closeTestLog(t, log)
	}
}

// sealed fills a log's first segment, and returns what index and end were before the
// batch that sealed it, and the last entry before and with that.
func sealedSegment(t *testing.T, dir string) (index, end []byte, before, last uint64) {
	t.Helper()
	log := openTestLog(t, dir)
	const count, size = 8, 128 << 10
	for next := uint64(1); len(segmentsOf(t, dir)) == 1; next += count {
		index, end = readTestFile(t, filepath.Join(dir, metadb.FileName)), readTestFile(t, filepath.Join(dir, endName))
		before, last = next-1, next+count-1
		storeBatch(t, log, testBatch(next, count, size))
		if last*size >= SegmentBytes { // the next one is made in the background
			storeBatch(t, log, testBatch(last+1, 1, 10))
			break
		}
	}
	closeTestLog(t, log)
	segments := segmentsOf(t, dir)
	if len(segments) != 2 {
		t.Fatalf("segments %q", segments)
	}
	if err := os.Remove(segments[1]); err != nil {
		t.Fatal(err)
	}
	return index, end, before, last
}

// perSegment is how many entries of fillSegment a segment holds.
const perSegment = 64

// fillSegment seals a segment that is empty with one append, of the entries from one on.
func fillSegment(t *testing.T, log *Log, first uint64) {
	t.Helper()
	storeBatch(t, log, testBatch(first, perSegment, SegmentBytes/perSegment))
}

// An append that seals a segment returns when the next one has been begun.
func TestTheAppendThatSealsBeginsTheNextSegment(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	defer closeTestLog(t, log)
	for full := range 4 {
		fillSegment(t, log, uint64(full*perSegment)+1)
		if segments := segmentsOf(t, dir); len(segments) != full+2 {
			t.Errorf("%d segments are full, and these are there: %q", full+1, segments)
		}
	}
}

// Whatever is cut off right behind an append that seals a segment, the log goes on and is
// opened again.
func TestACutRightBehindTheAppendThatSeals(t *testing.T) {
	const last = perSegment
	for name, test := range map[string]struct {
		from, to    uint64
		first, next uint64 // the log's first entry after that, and the one that is appended
	}{
		"the end, by a leader that overrules it": {from: last - 3, to: last, first: 1, next: last - 3},
		"the beginning, which is in the state":   {from: 1, to: last - 4, first: last - 3, next: last + 1},
		"all of it, under an installed state":    {from: 1, to: last, first: last + 1, next: last + 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log := openTestLog(t, dir)
			fillSegment(t, log, 1)
			cut := log.DeleteRange(test.from, test.to)
			stored := log.StoreLogs(testBatch(test.next, 1, 100))
			if err := errors.Join(cut, stored, log.Close()); err != nil {
				t.Error(err)
			}
			goesOn(t, dir, test.first, test.next)
		})
	}
}

// A log that is closed right behind an append that seals a segment has begun the next one.
func TestClosedRightBehindTheAppendThatSeals(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	fillSegment(t, log, 1)
	closeTestLog(t, log)
	if segments := segmentsOf(t, dir); len(segments) != 2 {
		t.Errorf("segments %q", segments)
	}
	goesOn(t, dir, 1, perSegment)
}

// A crash between the batch that seals a segment and the note of it in the index leaves a
// log that goes on.
func TestSealedSegmentThatTheIndexDoesNotKnow(t *testing.T) {
	dir := t.TempDir()
	index, end, _, last := sealedSegment(t, dir)
	writeTestFile(t, filepath.Join(dir, metadb.FileName), index)
	writeTestFile(t, filepath.Join(dir, endName), end)
	goesOn(t, dir, 1, last)
	if segments := segmentsOf(t, dir); len(segments) != 2 {
		t.Errorf("segments %q", segments)
	}
}

// The same where a power cut has torn that batch: it was never acknowledged, and the
// segment is not sealed.
func TestTornBatchThatWouldHaveSealed(t *testing.T) {
	dir := t.TempDir()
	index, end, before, _ := sealedSegment(t, dir)
	writeTestFile(t, filepath.Join(dir, metadb.FileName), index)
	writeTestFile(t, filepath.Join(dir, endName), end)
	segment := segmentsOf(t, dir)[0]
	content := readTestFile(t, segment)
	torn := scanTail(content).end - 200<<10 // within the last entries; index and commit are there
	clear(content[torn : torn+512])
	writeTestFile(t, segment, content)
	goesOn(t, dir, 1, before)
}

// What a torn batch leaves behind a later one is not taken for a part of the log.
func TestTornBatchLeavesNothingBehind(t *testing.T) {
	for name, tear := range map[string]func(torn []byte){
		"its commit is missing":         func(torn []byte) { clear(torn[len(torn)-512:]) },
		"its beginning is missing":      func(torn []byte) { clear(torn[:512]) },
		"a part of an entry is missing": func(torn []byte) { clear(torn[1024:1536]) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log := openTestLog(t, dir)
			storeTestLogs(t, log, 1, 5, 1)
			closeTestLog(t, log)
			segment, end := segmentsOf(t, dir)[0], readTestFile(t, filepath.Join(dir, endName))
			from := scanTail(readTestFile(t, segment)).end
			log = openTestLog(t, dir)
			storeBatch(t, log, testBatch(6, 8, 600))
			closeTestLog(t, log)
			content := readTestFile(t, segment)
			tear(content[from:scanTail(content).end])
			writeTestFile(t, segment, content)
			writeTestFile(t, filepath.Join(dir, endName), end)
			goesOn(t, dir, 1, 5)
			content = readTestFile(t, segment)
			if rest := content[scanTail(content).end:]; bytes.ContainsFunc(rest, func(r rune) bool { return r != 0 }) {
				t.Error("something is left behind the end of the log")
			}
		})
	}
}

// What had been synced and is damaged since is refused, and left as it is.
func TestDamagedEndIsNotWiped(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	storeTestLogs(t, log, 1, 5, 1)
	closeTestLog(t, log)
	segment := segmentsOf(t, dir)[0]
	content := readTestFile(t, segment)
	content[scanTail(content).end-30] ^= 1
	writeTestFile(t, segment, content)
	if _, err := Open(dir, ofBefore()); !errors.Is(err, ErrDiverged) {
		t.Errorf("a damaged end: %v", err)
	}
	if !bytes.Equal(readTestFile(t, segment), content) {
		t.Error("the segment was changed")
	}
}

// An index that has a segment to append to before others is refused, with what to do: a cut
// that came before the beginning of a segment has left it so.
func TestASegmentToAppendToBeforeOthers(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	fillSegment(t, log, 1)
	meta := log.meta
	state, err := meta.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	state.Segments[0].SealTime, state.Segments[1].SealTime = state.Segments[1].SealTime, state.Segments[0].SealTime
	if err := errors.Join(meta.CommitState(state), log.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, ofBefore())
	if err == nil {
		t.Fatal("it was opened")
	}
	for _, said := range []string{"log " + dir, filepath.Base(segmentsOf(t, dir)[0]), "`coordctl members replace`"} {
		if !strings.Contains(err.Error(), said) {
			t.Errorf("%q does not say %q", err, said)
		}
	}
}

// Why the WAL cannot begin its next segment is told by the append that seals the one before.
// What was appended is there all the same.
func TestWhyTheNextSegmentIsMissing(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	defer closeTestLog(t, log)
	if err := log.meta.Close(); err != nil { // so that no change of it succeeds
		t.Fatal(err)
	}
	if err := log.StoreLogs(testBatch(1, perSegment, SegmentBytes/perSegment)); !errors.Is(err, metadb.ErrUnintialized) {
		t.Errorf("%v does not say why", err)
	}
	if last, err := log.LastIndex(); last != perSegment || err != nil {
		t.Errorf("the log ends at %d, %v, want %d", last, err, perSegment)
	}
}

// An entry that is read while the log is cut is read, or is gone. The WAL would close the
// segment under whoever began to read it before the latest one was begun.
func TestEntriesThatAreReadBesideACut(t *testing.T) {
	const large = SegmentBytes // it takes a while to read
	log := openTestLog(t, t.TempDir())
	defer closeTestLog(t, log)
	storeBatch(t, log, testBatch(1, 1, large))
	for index := uint64(1); index <= 5; index++ {
		var reading sync.WaitGroup
		for range 2 {
			reading.Go(func() {
				for {
					err := log.GetLog(index, &raft.Log{})
					if errors.Is(err, raft.ErrLogNotFound) {
						return
					}
					if err != nil {
						t.Errorf("entry %d: %v", index, err)
						return
					}
				}
			})
		}
		storeBatch(t, log, testBatch(index+1, 1, large))
		if err := log.DeleteRange(index, index); err != nil {
			t.Fatal(err)
		}
		reading.Wait()
	}
}
