package raftlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"
)

// What was overwritten under an open log is read as it was, or not at all: whatever it makes
// of what is there, nobody else ends with it.
func TestASegmentIsOverwrittenUnderAnOpenLog(t *testing.T) {
	const last = 20
	dir := t.TempDir()
	l := openTestLog(t, dir)
	fillLog(t, l, last)
	l.recent.clear()
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("%v, %v", segments, err)
	}
	file, err := os.OpenFile(segments[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	whole := make([]byte, 4096)
	if _, err := file.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	write := func(b []byte, at int) {
		t.Helper()
		if _, err := file.WriteAt(b, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	refused := 0
	for _, with := range [][]byte{{0xff}, {0x80}, {0}} {
		for at := 0; at < 2048; at += 8 {
			write(bytes.Repeat(with, 16), at)
			for index := uint64(1); index <= last; index++ {
				var entry raft.Log
				if err := l.GetLog(index, &entry); err != nil {
					refused++
				} else if entry.Index != index || !bytes.Equal(entry.Data, entryData(index)) {
					t.Errorf("%x at %d: entry %d is read as %+v", with, at, index, entry)
				}
			}
			write(whole[at:at+16], at)
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed: the test damages nothing")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// An index that is cut under an open log is an error of every call that needs it, those of
// the WAL's own goroutine among them, and does not keep the log from being closed.
func TestTheIndexIsCutUnderAnOpenLog(t *testing.T) {
	key := []byte("CurrentTerm")
	for name, call := range map[string]func(l *Log) error{
		"a write of the term": func(l *Log) error { return l.SetUint64(key, 8) },
		"a read of the term": func(l *Log) error {
			_, err := l.GetUint64(key)
			return err
		},
		"a cut of the beginning":      func(l *Log) error { return l.DeleteRange(1, 3) },
		"a cut of the end":            func(l *Log) error { return l.DeleteRange(9, 10) },
		"an append that needs a file": func(l *Log) error { return l.StoreLogs(entriesOf(11, SegmentBytes)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := openTestLog(t, dir)
			fillLog(t, l, 10)
			if err := l.SetUint64(key, 7); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, metadb.FileName), 0); err != nil {
				t.Fatal(err)
			}
			for range 2 { // what has broken off once is not waited for
				switch err := call(l); {
				case err == nil:
					t.Error("it was not noticed")
				case strings.Contains(err.Error(), "runtime error"):
					t.Errorf("not in our own words: %v", err)
				}
			}
			_ = l.Close()
		})
	}
}

// What ends like a segment and is none is named, and left where it is; so is a segment that is
// damaged.
func TestAStrayFileAmongTheSegments(t *testing.T) {
	there := testOptions()
	there.Create = false
	for _, name := range []string{"x.wal", ".wal", "1-1.wal", "00000000000000000001-0000000000000000 (copy).wal"} {
		dir := t.TempDir()
		l := openTestLog(t, dir)
		fillLog(t, l, 10)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, there); err == nil || !strings.Contains(err.Error(), path+" is none of its files") || Damaged(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatalf("it was removed: %v", err)
		}
		if err := os.Truncate(segmentsOf(t, dir)[0], 0); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, there); err == nil || !strings.Contains(err.Error(), filepath.Base(segmentsOf(t, dir)[0])) && !errors.Is(err, ErrDiverged) {
			t.Errorf("a segment that is cut: %v", err)
		}
	}
}
