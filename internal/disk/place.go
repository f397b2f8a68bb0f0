package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrGone reports that a data directory is not there any more, or that another one is in
// its place.
var ErrGone = errors.New("was deleted or replaced while this process used it")

// Place is a file, or a directory, where it was when it was noted. The zero value is none.
type Place struct {
	path string
	file os.FileInfo
}

// Note notes what a path leads to. A link at its end is not followed.
func Note(path string) (Place, error) {
	file, err := os.Lstat(path)
	return Place{path, file}, err
}

// At is what was found at a path.
func At(path string, file os.FileInfo) Place { return Place{path, file} }

// Of notes where an open file is by its name.
func Of(file *os.File) (Place, error) {
	info, err := file.Stat()
	return Place{file.Name(), info}, err
}

// Path returns the path; "" of the zero value.
func (p Place) Path() string { return p.path }

// Check returns [ErrGone] where the path does not lead to the file any more, and another
// error where it cannot tell. It reads nothing, and waits as long as the disk hangs.
func (p Place) Check() error {
	found, err := look(p.path)
	if err == nil && !os.SameFile(found, p.file) {
		return fmt.Errorf("data directory %s %w: %s is another file", filepath.Dir(p.path), ErrGone, p.path)
	}
	return err
}

// CheckThere is [Place.Check] for a path that may lead to one file after the other.
func CheckThere(path string) error {
	_, err := look(path)
	return err
}

func look(path string) (os.FileInfo, error) {
	found, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESTALE) {
		return nil, fmt.Errorf("data directory %s %w: %s is gone", filepath.Dir(path), ErrGone, path)
	}
	return found, err
}

// SyncDirectory makes durable which names a directory has: that of a file that was made in
// it, or renamed, is not by the file's own sync.
func SyncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
