package load

import (
	"os"

	"golang.org/x/sys/unix"
)

// preallocate reserves blocks as the log does.
func preallocate(file *os.File, size int64) error {
	return unix.Fallocate(int(file.Fd()), 0, 0, size)
}

func syncData(file *os.File) error { return unix.Fdatasync(int(file.Fd())) }
