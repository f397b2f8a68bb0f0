package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

func openTestLog(t *testing.T, dir string) *Log {
	t.Helper()
	log, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func storeTestLogs(t *testing.T, log *Log, from, to, term uint64) {
	t.Helper()
	for index := from; index <= to; index++ {
		if err := log.StoreLogs([]*raft.Log{{Index: index, Term: term, Data: fmt.Appendf(nil, "%d of term %d", index, term)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A log whose last entries were overruled by a new leader is whole after a restart, how
// often that may be.
func TestLogThatWasCutIsReadAfterARestart(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	storeTestLogs(t, log, 1, 20, 1)
	terms := map[uint64]uint64{}
	for index := range uint64(20) {
		terms[index+1] = 1
	}
	last := uint64(20)
	for term := uint64(2); term < 6; term++ {
		from := last - term
		if err := log.DeleteRange(from, last); err != nil {
			t.Fatal(err)
		}
		last = from + 9
		storeTestLogs(t, log, from, last, term)
		for index := from; index <= last; index++ {
			terms[index] = term
		}
		for reopened := range 2 {
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			log = openTestLog(t, dir)
			if got, err := log.LastIndex(); got != last || err != nil {
				t.Fatalf("the log ends at %d, %v, want %d", got, err, last)
			}
			for index := uint64(1); index <= last; index++ {
				var entry raft.Log
				err := log.GetLog(index, &entry)
				if want := fmt.Sprintf("%d of term %d", index, terms[index]); err != nil || string(entry.Data) != want || entry.Term != terms[index] {
					t.Errorf("term %d, opened %d times: entry %d is %q, %v, want %q", term, reopened, index, entry.Data, err, want)
				}
			}
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

// A segment that was cut off and lost more since is not taken for whole.
func TestLogThatWasCutAndDamagedIsRefused(t *testing.T) {
	dir := t.TempDir()
	log := openTestLog(t, dir)
	storeTestLogs(t, log, 1, 20, 1)
	if err := log.DeleteRange(20, 20); err != nil {
		t.Fatal(err)
	}
	storeTestLogs(t, log, 20, 20, 2)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(segments) != 2 {
		t.Fatalf("%v, %v", segments, err)
	}
	file, err := os.OpenFile(segments[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, 1<<20), 200); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(dir, testOptions())
	if !errors.Is(err, types.ErrCorrupt) {
		t.Errorf("got %v, %v", opened, err)
	}
}
