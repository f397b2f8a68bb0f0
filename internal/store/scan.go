package store

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Bounds of one page of [Store.Scan].
const (
	PageRecordsMax = 4096
	pageBytesMax   = 4 << 20
)

// Scan visits one page of the records in the order of their arrival: those after
// the given sequence, at most limit of them (from 1 to [PageRecordsMax]), fewer
// where they are large. Tombstones are among them, and what is stored is not what
// it is at present: see [admission.Look]. The records are the visitor's own, without
// the bytes of their responses; no lock and no transaction is held while it looks.
//
// It returns where the next page begins, and whether there was anything more. A
// visitor that returns false has seen enough. A record that is replaced between two
// pages may be seen twice or, when it comes back under a new sequence, again later.
func (s *Store) Scan(after uint64, limit int, visit func(*admission.Record) bool) (next uint64, more bool, err error) {
	s.mu.RLock()
	p, err := s.page(after, min(max(limit, 1), PageRecordsMax))
	s.mu.RUnlock()
	if err != nil {
		return after, false, s.checked(err)
	}
	next = after
	for i, sequence := range p.sequences {
		r, _, err := decodeRecord(sequence, p.values[i])
		if err != nil {
			return after, false, s.checked(fault("record %d: %w", sequence, err))
		}
		next = sequence
		if !visit(r) {
			return next, p.more || i < len(p.sequences)-1, nil
		}
	}
	return next, p.more, nil
}

// page is a run of records as they are stored, copied.
type page struct {
	sequences []uint64
	values    [][]byte
	bytes     int
	limit     int
	more      bool
}

// add returns false where the page is full; what did not fit is more.
func (p *page) add(sequence uint64, value []byte) bool {
	if len(p.sequences) == p.limit || p.bytes > pageBytesMax {
		p.more = true
		return false
	}
	p.sequences = append(p.sequences, sequence)
	p.values = append(p.values, slices.Clone(value))
	p.bytes += len(value)
	return true
}

// page reads one under the lock.
func (s *Store) page(after uint64, limit int) (page, error) {
	p := page{limit: limit}
	if err := s.usable(); err != nil {
		return p, err
	}
	tx := &Tx{store: s}
	defer tx.end()
	overlay := s.overlay(after)
	err := s.file.guard(func() error {
		if err := tx.begin(); err != nil {
			return err
		}
		overlay.merge(&p, tx.records.Cursor(), after)
		return nil
	})
	if err != nil {
		return p, &faultError{cause: err}
	}
	return p, nil
}

// overlay is what lies over the file.
type overlay struct {
	layers    []*layer // newest first
	sequences []uint64 // that any of them changes, in order
}

func (s *Store) overlay(after uint64) overlay {
	o := overlay{layers: []*layer{s.gathering}}
	if s.flushing != nil {
		o.layers = append(o.layers, s.flushing)
	}
	for _, l := range o.layers {
		o.sequences = append(o.sequences, l.sequences(after+1)...)
	}
	slices.Sort(o.sequences)
	o.sequences = slices.Compact(o.sequences)
	return o
}

// record returns the newest encoding of a changed record, nil where it is deleted.
func (o overlay) record(sequence uint64) []byte {
	for _, l := range o.layers {
		if c, found := l.changes[sequence]; found {
			return c.record
		}
	}
	return nil
}

// merge fills the page with what follows after, from the file and what lies over it.
func (o overlay) merge(p *page, cursor *bolt.Cursor, after uint64) {
	start := sequenceKey(after + 1)
	key, value := cursor.Seek(start[:])
	changed := o.sequences
	for key != nil || len(changed) > 0 {
		if len(changed) > 0 && (key == nil || changed[0] <= binary.BigEndian.Uint64(key)) {
			sequence := changed[0]
			changed = changed[1:]
			if key != nil && binary.BigEndian.Uint64(key) == sequence {
				key, value = cursor.Next()
			}
			if record := o.record(sequence); record != nil && !p.add(sequence, record) {
				return
			}
			continue
		}
		if !p.add(binary.BigEndian.Uint64(key), value) {
			return
		}
		key, value = cursor.Next()
	}
}

// StateHash makes everything durable and returns the SHA-256 of the state's content
// and the position that it is of: counter, clock, last sequence, and every record
// and response by sequence. Two replicas at the same position have the same hash,
// however their files came about. It reads the whole file, checks every checksum on
// the way, and holds no lock meanwhile.
func (s *Store) StateHash() (sum [32]byte, at Position, err error) {
	if err := s.Flush(); err != nil {
		return sum, at, err
	}
	h := stateHasher{Hash: sha256.New()}
	err = s.long(func(tx *bolt.Tx, head head) error {
		at = head.applied
		h.number(head.counter, head.lastSequence, head.clock.Term, uint64(head.clock.Noted), uint64(head.clock.Now))
		h.responses = tx.Bucket(responsesBucket)
		return s.each(tx.Bucket(recordsBucket), h.record)
	})
	if err != nil {
		return sum, Position{}, err
	}
	return [32]byte(h.Sum(nil)), at, nil
}

// stateHasher hashes the content of a state.
type stateHasher struct {
	hash.Hash
	responses *bolt.Bucket
}

func (h *stateHasher) number(values ...uint64) {
	for _, v := range values {
		key := sequenceKey(v)
		_, _ = h.Write(key[:]) // a hash takes everything
	}
}

func (h *stateHasher) record(key, value []byte) error {
	sequence := binary.BigEndian.Uint64(key)
	g, err := glance(sequence, value)
	if err != nil {
		return fault("record %d: %w", sequence, err)
	}
	h.number(sequence, uint64(len(value)))
	_, _ = h.Write(value)
	if g.response.place != placeApart {
		return nil
	}
	stored := h.responses.Get(key)
	if err := g.response.verify(stored); err != nil {
		return fault("response %d: %w", sequence, err)
	}
	_, _ = h.Write(stored) // its length is in the record
	return nil
}

// long runs read in a transaction of the file that may take its time. Close waits
// for it.
func (s *Store) long(read func(tx *bolt.Tx, h head) error) error {
	s.mu.RLock()
	if err := s.usable(); err != nil {
		s.mu.RUnlock()
		return err
	}
	s.copying.Add(1)
	defer s.copying.Done()
	file := s.file // which may be replaced meanwhile
	var tx *bolt.Tx
	err := file.guard(func() (err error) {
		tx, err = file.db.Begin(false)
		return err
	})
	s.mu.RUnlock()
	if err != nil {
		return s.checked(&faultError{cause: err})
	}
	defer func() { _ = tx.Rollback() }() // of a transaction for reading
	return s.checked(file.guard(func() error {
		h, err := readHead(tx, s.config.Identification)
		if err != nil {
			return err
		}
		return read(tx, h)
	}))
}

// EndCopies ends what reads the whole state, copies and hashes, with [ErrClosed], whether it
// is under way or waits for its turn, and lets none begin any more. Whoever waits for one and
// is waited for before the store can be closed calls it; Close does so, too.
func (s *Store) EndCopies() { s.endOnce.Do(func() { close(s.noCopies) }) }

// each visits a bucket from front to back, until copies are to end.
func (s *Store) each(bucket *bolt.Bucket, visit func(key, value []byte) error) error {
	cursor := bucket.Cursor()
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		select {
		case <-s.noCopies:
			return fileError(s.config.Path, ErrClosed)
		default:
		}
		if err := visit(key, value); err != nil {
			return err
		}
	}
	return nil
}
