//go:build !linux

package load

import "os"

func preallocate(file *os.File, size int64) error { return file.Truncate(size) }

func syncData(file *os.File) error { return file.Sync() }
