package raftlog

import (
	"errors"
	"os"
	"syscall"
)

// allocate reserves the file's blocks, so that appending to it cannot run out of
// space half way and changes no metadata. A file system that cannot gets a sparse
// file.
func allocate(file *os.File, size int64) error {
	err := ignoringInterrupts(func() error { return syscall.Fallocate(int(file.Fd()), 0, 0, size) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return file.Truncate(size)
	}
	return err
}

// syncData makes the file's data and length durable.
func syncData(file *os.File) error {
	return ignoringInterrupts(func() error { return syscall.Fdatasync(int(file.Fd())) })
}

func ignoringInterrupts(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// openBlocks opens a file for writeBlocks: past the page cache, or through it. The kernel
// makes each write durable before it returns: its data, and what is needed to read it.
func openBlocks(path string, direct bool) (*os.File, error) {
	flags := os.O_WRONLY | syscall.O_DSYNC
	if direct {
		flags |= syscall.O_DIRECT
	}
	return os.OpenFile(path, flags, 0)
}

// writeBlocks makes blocks durable.
func writeBlocks(file *os.File, blocks []byte, at int64) error {
	_, err := file.WriteAt(blocks, at)
	return err
}

// refusals are the errors by which a file system says that it does not write past the
// page cache, or not in blocks of this size.
var refusals = []error{syscall.EINVAL, syscall.EOPNOTSUPP}
