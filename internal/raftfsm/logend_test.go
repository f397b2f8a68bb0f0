package raftfsm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
