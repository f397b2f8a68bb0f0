//go:build !linux

package raftfsm

import "os"

// allocate makes the file as long as it will be.
func allocate(file *os.File, size int64) error { return file.Truncate(size) }

// syncData makes the file durable.
func syncData(file *os.File) error { return file.Sync() }
