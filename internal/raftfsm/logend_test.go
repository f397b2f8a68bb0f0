package raftfsm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
)

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
