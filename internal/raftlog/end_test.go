package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// A log without the file is one of an older version, or has lost it: both are said, with
// what to do, and nothing is made in its place.
func TestEndThatIsMissing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, endName)
	_, _, err := openEnd(dir, false)
	if err == nil {
		t.Fatal("it was opened")
	}
	for _, said := range []string{path + " is missing", "older version", "lost", "start that version again", "`coordctl members replace`"} {
		if !strings.Contains(err.Error(), said) {
			t.Errorf("%q does not say %q", err, said)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than a line", err)
	}
	if found, err := os.ReadDir(dir); err != nil || len(found) != 0 {
		t.Errorf("%v was made (%v)", found, err)
	}
	// Another failure is told as it is.
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openEnd(dir, false); err == nil || strings.Contains(err.Error(), "older version") {
		t.Errorf("a directory in its place: %v", err)
	}
}

// FuzzReadEnd looks for a file that is read as another end than it holds. Every content
// is tried as it is, and with the right checksum behind it.
func FuzzReadEnd(f *testing.F) {
	for _, end := range []chainEnd{{}, {index: 1, hash: 1 << 63}, {index: 1<<64 - 1, hash: 1<<64 - 1}} {
		f.Add(end.encode())
		f.Add(end.encode()[:endBytes-crc32.Size])
	}
	file, err := os.OpenFile(filepath.Join(f.TempDir(), endName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = file.Close() })
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, content := range [][]byte{content, binary.BigEndian.AppendUint32(bytes.Clone(content), crc32.Checksum(content, castagnoli))} {
			if err := file.Truncate(0); err != nil {
				t.Fatal(err)
			}
			if _, err := file.WriteAt(content, 0); err != nil {
				t.Fatal(err)
			}
			if end, err := readEnd(file); err == nil && !bytes.Equal(end.encode(), content) {
				t.Errorf("%x is read as %x", content, end.encode())
			}
		}
	})
}

// The end that is noted is what tells a damaged end from one that was torn.
func TestTheEndOfTheLogIsRemembered(t *testing.T) {
	const last = 10
	pristine := t.TempDir()
	l, err := Open(pristine, testOptions())
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
	if err := l.Close(); err != nil {
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
				l, err := Open(dir, testOptions())
				if test.want != "" {
					if err == nil || !strings.Contains(err.Error(), test.want) {
						t.Fatalf("error %v, want one of %q", err, test.want)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if end, err := l.LastIndex(); err != nil || end != test.end {
					t.Errorf("ends at %d, want %d: %v", end, test.end, err)
				}
				// And goes on from there.
				test.end++
				if err := l.StoreLog(&raft.Log{Index: test.end, Term: 3}); err != nil {
					t.Error(err)
				}
				if err := l.Close(); err != nil {
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
		l, err := Open(dir, testOptions())
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
		if err := l.Close(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	l, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	first, firstErr := l.FirstIndex()
	last, lastErr := l.LastIndex()
	if err := errors.Join(firstErr, lastErr); err != nil || first != 200 || last != 209 {
		t.Errorf("the log goes from %d to %d, want 200 to 209: %v", first, last, err)
	}
}
