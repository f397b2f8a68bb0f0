package raftfsm

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
