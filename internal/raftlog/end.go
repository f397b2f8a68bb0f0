package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atmostonce/coordinator/internal/disk"
)

// endName is the file in a log's directory that says where the log ends.
const endName = "end"

// endFile remembers the last entry that was synced. The WAL, when it is opened, drops
// whatever does not check at its end, since a write that was torn by a crash looks like
// that. It cannot tell it from an entry that was acknowledged and has been damaged
// since: this file can.
//
// It is written after each append, in place, and not synced: a write that reaches the
// kernel survives the process, and one that a power cut takes leaves an older, lower
// end, never a higher one. Only where the log is cut is it lowered first, and synced.
type endFile struct{ file *os.File }

// errLength says that the file was cut, or is another one.
var errLength = errors.New("it is not as long as it was")

const (
	endVersion = 1
	endBytes   = 1 + 2*8 + crc32.Size
)

// openEnd opens the file. One that is not there is made where that is allowed: before
// the log has its first entry.
func openEnd(dir string, create bool) (*endFile, chainEnd, error) {
	path := filepath.Join(dir, endName)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		return createEnd(dir, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, chainEnd{}, fmt.Errorf("log: %s is missing, which says where the log ends: an older version of this program, which kept no such file, "+
			"wrote the directory, or the directory has lost it. In the first case start that version again, or begin anew with an empty directory. "+
			"In the second nobody can say what else is lost: "+disk.Advice, path)
	case err != nil:
		return nil, chainEnd{}, fmt.Errorf("log: %w", err)
	}
	end, err := readEnd(file)
	if err != nil {
		return nil, chainEnd{}, errors.Join(fmt.Errorf("log: %s is damaged: %w", path, err), file.Close())
	}
	return &endFile{file: file}, end, nil
}

// createEnd makes the file under another name first: it is never seen half made.
func createEnd(dir, path string) (*endFile, chainEnd, error) {
	making := path + ".new"
	file, err := os.OpenFile(making, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, chainEnd{}, fmt.Errorf("log: %w", err)
	}
	e := &endFile{file: file}
	err = errors.Join(e.write(chainEnd{}), file.Sync(), file.Close())
	if err == nil {
		err = errors.Join(os.Rename(making, path), disk.SyncDirectory(dir))
	}
	if err != nil {
		return nil, chainEnd{}, fmt.Errorf("log: making %s: %w", path, err)
	}
	return openEnd(dir, false) // so that what fails later is told under the right name
}

func readEnd(file *os.File) (chainEnd, error) {
	info, err := file.Stat()
	if err != nil {
		return chainEnd{}, err
	}
	if info.Size() != endBytes {
		return chainEnd{}, fmt.Errorf("%w: it has %d bytes, not %d", errLength, info.Size(), endBytes)
	}
	var b [endBytes]byte
	if _, err := file.ReadAt(b[:], 0); err != nil {
		return chainEnd{}, err
	}
	content := b[:endBytes-crc32.Size]
	if binary.BigEndian.Uint32(b[len(content):]) != crc32.Checksum(content, castagnoli) {
		return chainEnd{}, errDamaged
	}
	if content[0] != endVersion {
		return chainEnd{}, fmt.Errorf("it is of version %d, this program knows version %d", content[0], endVersion)
	}
	return chainEnd{index: binary.BigEndian.Uint64(content[1:]), hash: binary.BigEndian.Uint64(content[9:])}, nil
}

// encode returns what the file holds: version, index, hash, checksum.
func (e chainEnd) encode() []byte {
	b := make([]byte, 0, endBytes)
	b = append(b, endVersion)
	b = binary.BigEndian.AppendUint64(b, e.index)
	b = binary.BigEndian.AppendUint64(b, e.hash)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// write notes an end: as one write within one sector of the disk.
func (e *endFile) write(end chainEnd) error {
	_, err := e.file.WriteAt(end.encode(), 0)
	return err
}

// lower notes an end before the log is cut back to it.
func (e *endFile) lower(end chainEnd) error {
	if err := e.write(end); err != nil {
		return err
	}
	return syncData(e.file)
}

// close makes the last end durable, which a power cut would otherwise set back.
func (e *endFile) close() error { return errors.Join(syncData(e.file), e.file.Close()) }
