package membership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/internal/disk"
)

// LockName is the file in the data directory that the process which uses it holds
// locked. It holds that process's id, and stays when the process ends.
const LockName = "LOCK"

// lockPatience is how long a process that is just ending is waited for.
const lockPatience = 2 * time.Second

// Lock keeps other processes out of a data directory until it is released or the process
// ends.
type Lock struct {
	at   disk.Place
	file *os.File // nil once released
}

// makeDir makes a directory and those above it that are missing, and makes their names
// durable: a power failure could otherwise take the directory with all that is in it,
// and the node would start afresh. It makes nothing where a link leads nowhere: that may
// be a disk that is not mounted.
func makeDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var missing []string
	for above := dir; ; above = filepath.Dir(above) {
		if _, err := os.Stat(above); !errors.Is(err, fs.ErrNotExist) || above == filepath.Dir(above) {
			break
		}
		if target, err := os.Readlink(above); err == nil {
			return fmt.Errorf("%s is a symbolic link to %s, which does not exist: mount or make that directory, or remove the link", above, target)
		}
		missing = append(missing, above)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, made := range missing {
		if err := disk.SyncDirectory(filepath.Dir(made)); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return nil
	}
	// A process that was killed right after making it has not synced it. Who may not
	// read the directory above cannot either, and has not made this one.
	if err := disk.SyncDirectory(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Acquire makes the data directory, if need be, and locks it. Where another process
// holds it, that is an error that names both, after two seconds at most.
func Acquire(ctx context.Context, dir string) (*Lock, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	path := filepath.Join(dir, LockName)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	deadline := time.Now().Add(lockPatience)
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			holder := holder(file)
			_ = file.Close()
			return nil, fmt.Errorf("data directory %s is in use by another process%s", dir, holder)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	// The id is for people; the lock counts.
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("note this process in %s: %w", path, err)
	}
	at, err := disk.Of(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	// Who held it may have been deleting the directory.
	if err := at.Check(); err != nil {
		_ = file.Close()
		return nil, err
	}
	return &Lock{at: at, file: file}, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// holder returns what the lock file says about who holds it.
func holder(file *os.File) string {
	var text [20]byte
	n, _ := file.ReadAt(text[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf(", with process id %d", pid)
}

// Check returns [disk.ErrGone] where the lock is not in its place any more, so that it keeps
// nobody out, and another error where it cannot tell.
func (l *Lock) Check() error { return l.at.Check() }

// Release lets others in. Further calls do nothing.
func (l *Lock) Release() error {
	if l.file == nil {
		return nil
	}
	file := l.file
	l.file = nil
	return file.Close()
}
