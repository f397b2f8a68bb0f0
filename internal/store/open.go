package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/disk"
)

// Open opens the shard's state file, or creates it where there is none and the
// configuration says so, and reads all of it once: what is where, and whether all
// of it is there. Errors name the file; [ErrLocked], [ErrNotExist], [ErrForeign],
// [ErrCorrupt] and [ErrIdentification] tell them apart. A file that is refused is
// left as it is.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return open(newStore(cfg))
}

func open(s *Store) (*Store, error) {
	f, err := openOrCreate(s.config)
	if err != nil {
		return nil, fileError(s.config.Path, err)
	}
	h, x, err := s.survey(f, false)
	if err == nil {
		err = removeLeftovers(s.config.Path)
	}
	if err != nil {
		return nil, fileError(s.config.Path, errors.Join(err, f.close()))
	}
	s.adopt(f, h, x)
	s.flusher.Add(1)
	go s.flushLoop()
	return s, nil
}

func (c Config) fileOptions() fileOptions {
	return fileOptions{mapBytes: c.MapBytes, openFile: c.OpenFile, logger: newBreaker()}
}

func openOrCreate(c Config) (*file, error) {
	_, err := os.Lstat(c.Path)
	if err == nil {
		return openFile(c.Path, c.fileOptions())
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if !c.Create {
		return nil, ErrNotExist
	}
	return create(c)
}

// create makes the file under another name first: one that is there is whole.
func create(c Config) (*file, error) {
	f, err := createFile(c.Path+newSuffix, c.fileOptions())
	if err != nil {
		return nil, err
	}
	err = f.format(c.Identification, &head{})
	if err == nil {
		err = os.Rename(f.path, c.Path)
	}
	if err == nil {
		err = disk.SyncDirectory(filepath.Dir(c.Path))
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.path = c.Path
	return f, nil
}

// survey reads a file from its first record to its last, checks it, and returns its
// head and a new index of it. A thorough one decodes everything and reads the
// responses too.
func (s *Store) survey(f *file, thorough bool) (head, *index, error) {
	h, err := f.read(s.config.Identification)
	if err != nil {
		return head{}, nil, err
	}
	v := &surveyor{
		head:     h,
		hash:     s.hash,
		index:    newIndex(min(h.sums.records, uint64(f.bytes())/recordBytesMin)),
		thorough: thorough,
		progress: newProgress(s.config.Logger, f.path, h.sums.records),
	}
	err = f.guard(func() error { return f.db.View(v.read) })
	if err != nil {
		return head{}, nil, err
	}
	v.progress.done(v.index)
	return h, v.index, nil
}

// recordBytesMin is less than any record takes in a file.
const recordBytesMin = 16

// surveyor builds the index of a file.
type surveyor struct {
	head
	hash     func([]byte) uint64
	index    *index
	thorough bool
	progress *progress

	records     *bolt.Bucket
	responses   *bolt.Cursor
	responseKey []byte // where the cursor is
	response    []byte
}

func (v *surveyor) read(tx *bolt.Tx) error {
	v.records = tx.Bucket(recordsBucket)
	v.responses = tx.Bucket(responsesBucket).Cursor()
	v.responseKey, v.response = v.responses.First()
	last := uint64(0)
	cursor := v.records.Cursor()
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		if len(key) != len(sequenceKey(0)) {
			return fmt.Errorf("%w: a record's key is %d bytes long", ErrCorrupt, len(key))
		}
		sequence := binary.BigEndian.Uint64(key)
		if sequence <= last || sequence > v.lastSequence {
			return fmt.Errorf("%w: record %d after %d, the last is %d", ErrCorrupt, sequence, last, v.lastSequence)
		}
		last = sequence
		if err := v.record(key, sequence, value); err != nil {
			return fmt.Errorf("%w: record %d: %w", ErrCorrupt, sequence, err)
		}
		v.progress.step()
	}
	if v.responseKey != nil {
		return fmt.Errorf("%w: a response without a record", ErrCorrupt)
	}
	if found := v.index.sums(); found != v.sums {
		return fmt.Errorf("%w: it has %d records and %d responses with digest %x, it should have %d and %d with %x",
			ErrCorrupt, found.records, found.responses, found.digest, v.sums.records, v.sums.responses, v.sums.digest)
	}
	return nil
}

func (v *surveyor) record(key []byte, sequence uint64, value []byte) error {
	g, err := glance(sequence, value)
	if err != nil {
		return err
	}
	if v.thorough {
		if _, _, err := decodeRecord(sequence, value); err != nil {
			return err
		}
	}
	if g.response.place == placeApart {
		if err := v.apart(key, g.response); err != nil {
			return err
		}
	}
	hash := v.hash(g.identity)
	if v.thorough { // what this process wrote is as it was written: the digest says so
		if err := v.alone(hash, g.identity); err != nil {
			return err
		}
	}
	v.index.add(entry{
		sequence: sequence,
		hash:     hash,
		alarm:    g.alarm,
		checksum: g.checksum,
		state:    g.state,
		apart:    g.response.place == placeApart,
	}, unsafe.String(unsafe.SliceData(g.namespace), len(g.namespace)))
	return nil
}

// apart checks the response of the record with the key. Responses come in the same
// order as their records.
func (v *surveyor) apart(key []byte, want storedResponse) error {
	if string(v.responseKey) != string(key) || len(v.response) != want.length {
		return errResponse
	}
	if v.thorough {
		if err := want.verify(v.response); err != nil {
			return err
		}
	}
	v.responseKey, v.response = v.responses.Next()
	return nil
}

// alone returns an error where an earlier record is of the same identity.
func (v *surveyor) alone(hash uint64, identity []byte) error {
	for i := v.index.first(hash); i != 0; i = v.index.after(i) {
		other := v.index.slots.at(i).sequence
		key := sequenceKey(other)
		g, err := glance(other, v.records.Get(key[:]))
		if err != nil {
			return err
		}
		if string(g.identity) == string(identity) {
			return fmt.Errorf("it has the identity of record %d", other)
		}
	}
	return nil
}

// progress logs how far a scan is, about once a second.
type progress struct {
	logger  *slog.Logger
	path    string
	total   uint64
	records uint64
	began   time.Time
	logged  time.Time
}

// progressStride is how many records go by between two looks at the clock.
const progressStride = 1 << 14

func newProgress(logger *slog.Logger, path string, total uint64) *progress {
	now := time.Now()
	return &progress{logger: logger, path: path, total: total, began: now, logged: now}
}

func (p *progress) step() {
	p.records++
	if p.records%progressStride != 0 {
		return
	}
	if now := time.Now(); now.Sub(p.logged) >= time.Second {
		p.logged = now
		p.logger.Info("reading the state file", "path", p.path, "records", p.records, "of", p.total)
	}
}

func (p *progress) done(x *index) {
	p.logger.Info("read the state file", "path", p.path, "records", x.records,
		"tombstones", x.states[admission.StateNone], "took", time.Since(p.began).Round(time.Millisecond))
}
