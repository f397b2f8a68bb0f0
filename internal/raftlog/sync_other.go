//go:build !linux

package raftlog

import "os"

// allocate makes the file as long as it will be.
func allocate(file *os.File, size int64) error { return file.Truncate(size) }

// syncData makes the file durable.
func syncData(file *os.File) error { return file.Sync() }

// openBlocks opens a file for writeBlocks. There is no way past the page cache here.
func openBlocks(path string, _ bool) (*os.File, error) { return os.OpenFile(path, os.O_WRONLY, 0) }

// writeBlocks makes blocks durable.
func writeBlocks(file *os.File, blocks []byte, at int64) error {
	if _, err := file.WriteAt(blocks, at); err != nil {
		return err
	}
	return file.Sync()
}

// refusals are the errors by which a file system says that it does not write like that.
var refusals []error
