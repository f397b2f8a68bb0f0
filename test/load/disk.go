package load

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Disk writes and syncs 4 KiB at a time, which is the least that an acknowledged call
// costs.
type Disk struct {
	file  *os.File
	block []byte
	at    int64
}

const (
	blockBytes = 4 << 10
	diskBytes  = 64 << 20
)

// NewDisk makes a file with its blocks allocated. With fresh each block is written for
// the first time, as in a log; otherwise all have been written before.
func NewDisk(t testing.TB, fresh bool) *Disk {
	t.Helper()
	d := &Disk{block: make([]byte, blockBytes)}
	for i := range d.block {
		d.block[i] = byte(i)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "bare"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := preallocate(file, diskBytes); err != nil {
		t.Fatal(err)
	}
	for at := int64(0); !fresh && at < diskBytes; at += blockBytes {
		if _, err := file.WriteAt(d.block, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	d.file = file
	return d
}

// Write writes and syncs one block and says how long it took. It begins again at the
// end of the file, over what it has written.
func (d *Disk) Write() (time.Duration, error) {
	began := time.Now()
	if _, err := d.file.WriteAt(d.block, d.at); err != nil {
		return 0, err
	}
	if err := syncData(d.file); err != nil {
		return 0, err
	}
	d.at = (d.at + blockBytes) % diskBytes
	return time.Since(began), nil
}
