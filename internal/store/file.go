package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/disk"
)

var (
	recordsBucket   = []byte("records")
	responsesBucket = []byte("responses")
	metaBucket      = []byte("meta")

	formatKey         = []byte("format")
	identificationKey = []byte("identification")
	headKey           = []byte("head")
)

const (
	// fillPercent leaves a tenth of a page free: most records grow once, when they
	// are committed, and that soon after they were added at the end.
	fillPercent = 0.9

	fileMode = 0o600

	newSuffix  = ".new"   // a file that is being created
	copySuffix = ".copy-" // a copy on its way to another node

	lockWait  = time.Second
	lockRetry = 50 * time.Millisecond
)

// file is an open state file. Its methods may be called by several goroutines;
// commit by one at a time.
type file struct {
	path   string
	db     *bolt.DB
	handle *os.File
	left   atomic.Bool // something broke off, and may keep bbolt's locks
}

// fileError names the file that an error is about.
func fileError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("state file %s: %w", path, err)
}

// guard turns panics and faults below it into errors of the file. bbolt panics over a page
// that makes no sense, and a page that the disk cannot read is a fault. Whatever it was, bbolt
// was left in the middle of it.
func (f *file) guard(do func() error) (err error) {
	defer func() {
		if err != nil {
			f.mendName(err)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
			return
		case brokenOff:
			err = p.cause
		case runtime.Error: // a fault, or an index that a page made up
			err = fault("%w", disk.Unreadable{Cause: p})
		default:
			err = fault("%v", p)
		}
		f.left.Store(true)
	}()
	return do()
}

// mendName makes an error name the file as it is called by now: the handle keeps the name that
// it was opened under, and a file gets its own once it is whole.
func (f *file) mendName(err error) {
	if named := (*fs.PathError)(nil); errors.As(err, &named) && f.handle != nil && named.Path == f.handle.Name() {
		named.Path = f.path
	}
}

// breaker is what bbolt logs to. It tells of an error before it takes back what has failed, and
// for that it would walk over all pages: which takes as long as they are many, and is done in
// a goroutine where nobody catches what it makes of damaged ones. It does not get there.
type breaker struct{ bolt.Logger }

func newBreaker() bolt.Logger {
	return breaker{&bolt.DefaultLogger{Logger: log.New(io.Discard, "", 0)}}
}

// brokenOff is what breaker panics with.
type brokenOff struct{ cause error }

// Errorf implements [bolt.Logger].
func (breaker) Errorf(_ string, arguments ...any) {
	if cause, is := arguments[len(arguments)-1].(error); is {
		panic(brokenOff{cause})
	}
}

// fileOptions say how a file is opened.
type fileOptions struct {
	mapBytes     int64
	openFile     func(string, int, os.FileMode) (*os.File, error)
	noSync       bool // for a file that is nothing yet
	syncFreelist bool
	logger       bolt.Logger // nil: nothing is logged
}

// openFile opens the file at path, which must be there, after its lock has been
// taken and its pages have been looked at.
func openFile(path string, o fileOptions) (*file, error) {
	f := &file{path: path}
	open := func(name string, flag int, mode os.FileMode) (*os.File, error) {
		handle, err := o.openFile(name, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if err := lock(handle); err != nil {
			return nil, errors.Join(err, handle.Close())
		}
		if err := CheckPages(handle); err != nil {
			return nil, errors.Join(err, handle.Close())
		}
		f.handle = handle
		return handle, nil
	}
	if err := f.open(open, o); err != nil {
		return nil, err
	}
	return f, nil
}

// createFile makes an empty database at path, over whatever is there.
func createFile(path string, o fileOptions) (*file, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f := &file{path: path}
	open := func(name string, flag int, mode os.FileMode) (handle *os.File, err error) {
		f.handle, err = o.openFile(name, flag|os.O_CREATE|os.O_EXCL, mode)
		return f.handle, err
	}
	if err := f.open(open, o); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *file) open(open func(string, int, os.FileMode) (*os.File, error), o fileOptions) error {
	err := f.guard(func() (err error) {
		f.db, err = bolt.Open(f.path, fileMode, &bolt.Options{
			Timeout:         lockWait,
			FreelistType:    bolt.FreelistMapType,
			NoFreelistSync:  !o.syncFreelist,
			NoSync:          o.noSync,
			InitialMmapSize: int(o.mapBytes),
			MaxSize:         int(o.mapBytes - o.mapBytes/64),
			OpenFile:        open,
			Logger:          o.logger,
		})
		return err
	})
	if err != nil && f.handle != nil {
		_ = f.handle.Close() // with the lock, where bbolt did not get to it
	}
	return err
}

// lock takes the lock that bbolt takes again later, so that the file is looked at
// under it already.
func lock(handle *os.File) error {
	waited := time.Duration(0)
	for {
		err := syscall.Flock(int(handle.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if waited >= lockWait {
			return ErrLocked
		}
		<-time.After(lockRetry)
		waited += lockRetry
	}
}

// close waits for transactions that are open. A file that bbolt was left in stays mapped until
// the process ends, which it is about to: the store has failed.
func (f *file) close() error {
	if f.left.Load() {
		return f.handle.Close()
	}
	return f.guard(f.db.Close)
}

// bytes is the size of the file, or 0 where it cannot be told.
func (f *file) bytes() int64 {
	info, err := f.handle.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// update runs do in a transaction for writing.
func (f *file) update(do func(tx *bolt.Tx) error) error {
	return f.guard(func() error {
		tx, err := f.db.Begin(true)
		if err != nil {
			return err
		}
		if err := do(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}

// format writes what makes an empty database a state file.
func (f *file) format(id Identification, h *head) error {
	return f.update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{recordsBucket, responsesBucket, metaBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		return errors.Join(
			meta.Put(formatKey, []byte{formatVersion}),
			meta.Put(identificationKey, id.encode()),
			meta.Put(headKey, h.encode()),
		)
	})
}

// read returns the head of a file that is of the known format and of the shard.
func (f *file) read(want Identification) (h head, err error) {
	err = f.guard(func() error {
		return f.db.View(func(tx *bolt.Tx) error {
			h, err = readHead(tx, want)
			return err
		})
	})
	return h, err
}

func readHead(tx *bolt.Tx, want Identification) (head, error) {
	meta := tx.Bucket(metaBucket)
	if meta == nil || tx.Bucket(recordsBucket) == nil || tx.Bucket(responsesBucket) == nil {
		return head{}, fmt.Errorf("%w: it lacks a bucket", ErrForeign)
	}
	switch format := meta.Get(formatKey); {
	case len(format) != 1:
		return head{}, fmt.Errorf("%w: its format is %d bytes long", ErrForeign, len(format))
	case format[0] != formatVersion:
		return head{}, fmt.Errorf("%w: its format is %d, known is %d", ErrVersion, format[0], formatVersion)
	}
	id, err := decodeIdentification(meta.Get(identificationKey))
	if err != nil {
		return head{}, err
	}
	if err := id.differs(want); err != nil {
		return head{}, err
	}
	return decodeHead(meta.Get(headKey))
}

// commit writes a frozen layer, its head with it, in one transaction.
func (f *file) commit(l *layer) error {
	return f.update(func(tx *bolt.Tx) error {
		records, responses := tx.Bucket(recordsBucket), tx.Bucket(responsesBucket)
		records.FillPercent, responses.FillPercent = fillPercent, fillPercent
		for _, sequence := range l.sequences(0) {
			if err := l.changes[sequence].write(records, responses, sequence); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(headKey, l.head.encode())
	})
}

func (c change) write(records, responses *bolt.Bucket, sequence uint64) error {
	key := sequenceKey(sequence)
	var err error
	if c.record != nil {
		err = records.Put(key[:], c.record)
	} else {
		err = records.Delete(key[:])
	}
	switch {
	case err != nil:
		return err
	case c.fate == responsePut:
		return responses.Put(key[:], c.response)
	case c.fate == responseDeleted:
		return responses.Delete(key[:])
	}
	return nil
}

// removeLeftovers removes what a process that died was about to make.
func removeLeftovers(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	base := filepath.Base(path)
	for _, entry := range entries {
		if name := entry.Name(); name == base+newSuffix || strings.HasPrefix(name, base+copySuffix) {
			if err := os.Remove(filepath.Join(filepath.Dir(path), name)); err != nil {
				return err
			}
		}
	}
	return nil
}
