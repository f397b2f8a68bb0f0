package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Tx is a look at the state, or one update of it. It is valid only within the
// function that it was given to, and for one goroutine.
type Tx struct {
	store    *Store
	writable bool
	changed  bool // apply has begun to change the state
	ended    bool

	read    *bolt.Tx // of the file; begun when it is needed
	records *bolt.Bucket
	value   []byte // what was read last from the file

	identity []byte // that was hashed last, encoded
}

// faultError says that the file, or what was read from it, is not as it was written.
type faultError struct{ cause error }

func (e *faultError) Error() string { return e.cause.Error() }
func (e *faultError) Unwrap() error { return e.cause }

func asFault(err error, fault **faultError) bool { return err != nil && errors.As(err, fault) }

func fault(format string, arguments ...any) error {
	return &faultError{cause: fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, arguments...)...)}
}

// end closes the transaction of the file.
func (t *Tx) end() {
	t.ended = true
	if t.read != nil {
		_ = t.read.Rollback() // of a transaction for reading: it cannot fail
	}
}

// Clock returns the shard's clock.
func (t *Tx) Clock() Clock { return t.store.head.clock }

// SetClock moves the shard's clock. That it never goes back is the caller's to see
// to: a clock that does is a broken invariant.
func (t *Tx) SetClock(clock Clock) {
	t.change()
	if !clock.valid() || clock.Now < t.store.head.clock.Now || clock.Term < t.store.head.clock.Term {
		panic(fmt.Sprintf("store: the clock goes from %+v to %+v", t.store.head.clock, clock))
	}
	t.store.head.clock = clock
}

// SetConfiguration is [Store.SetConfiguration] within an update.
func (t *Tx) SetConfiguration(index uint64, encoded []byte) {
	t.change()
	t.store.head.configurationIndex = index
	t.store.head.configuration = bytes.Clone(encoded)
}

// Applied returns the position of the latest update before this transaction.
func (t *Tx) Applied() Position { return t.store.head.applied }

// NextAlarm returns when the next record is due, and false where none ever is.
func (t *Tx) NextAlarm() (admission.Time, bool) { return t.store.nextAlarm() }

func (t *Tx) change() {
	if !t.writable || t.ended {
		panic("store: " + ErrReadOnly.Error())
	}
	t.changed = true
}

// Admission returns what the shard knows of an identity. The record is as stored,
// without the bytes of its response, and the caller's own.
func (t *Tx) Admission(id admission.Identity) (admission.View, error) {
	view := admission.View{
		Counter:          t.store.head.counter,
		NamespaceRecords: t.store.index.inNamespace(id.Namespace),
	}
	x := t.store.index
	for i := x.first(t.hash(id)); i != 0; i = x.after(i) {
		r, _, err := t.decode(x.slots.at(i).sequence)
		if err != nil {
			return admission.View{}, err
		}
		if r.Identity == id {
			view.Record = r
			break
		}
	}
	return view, nil
}

func (t *Tx) hash(id admission.Identity) uint64 {
	t.identity = id.AppendTo(t.identity[:0])
	return t.store.hash(t.identity)
}

// Response returns the stored response of a record that was read in this
// transaction: as it was committed, possibly compressed, and nil where there is
// none.
func (t *Tx) Response(r *admission.Record) ([]byte, error) {
	value, err := t.load(r.Sequence)
	if err != nil {
		return nil, err
	}
	_, response, err := decodeRecord(r.Sequence, value)
	if err != nil {
		return nil, fault("record %d: %w", r.Sequence, err)
	}
	switch response.place {
	case placeInline:
		return bytes.Clone(response.inline), nil
	case placeApart:
		return t.apart(r.Sequence, response)
	default:
		return nil, nil
	}
}

// apart reads a response from where it lies apart, and checks that it is the one.
func (t *Tx) apart(sequence uint64, response storedResponse) ([]byte, error) {
	stored, found := []byte(nil), false
	for _, l := range [...]*layer{t.store.gathering, t.store.flushing} {
		if l == nil || found {
			continue
		}
		if c := l.changes[sequence]; c.fate == responsePut {
			stored, found = c.response, true
		}
	}
	if !found {
		if err := t.get(sequence, true); err != nil {
			return nil, err
		}
		stored = t.value
	}
	if err := response.verify(stored); err != nil {
		return nil, fault("response %d: %w", sequence, err)
	}
	return bytes.Clone(stored), nil
}

var errResponse = errors.New("it is missing or not the one that was committed")

// verify returns an error unless stored is the response that lies apart.
func (r storedResponse) verify(stored []byte) error {
	if len(stored) != r.length || crc32.Checksum(stored, checksumTable) != r.checksum {
		return errResponse
	}
	return nil
}

// load returns the record as it is stored: from the layers, or from the file. The
// slice is valid until the next call.
func (t *Tx) load(sequence uint64) ([]byte, error) {
	for _, l := range [...]*layer{t.store.gathering, t.store.flushing} {
		if l == nil {
			continue
		}
		if c, found := l.changes[sequence]; found {
			if c.record == nil {
				return nil, fault("record %d: the index has it, and it was deleted", sequence)
			}
			return c.record, nil
		}
	}
	if err := t.get(sequence, false); err != nil {
		return nil, err
	}
	if len(t.value) == 0 {
		return nil, fault("record %d: it is missing", sequence)
	}
	return t.value, nil
}

func (t *Tx) decode(sequence uint64) (*admission.Record, storedResponse, error) {
	value, err := t.load(sequence)
	if err != nil {
		return nil, storedResponse{}, err
	}
	r, response, err := decodeRecord(sequence, value)
	if err != nil {
		return nil, storedResponse{}, fault("record %d: %w", sequence, err)
	}
	return r, response, nil
}

// get reads from the file into t.value; what is not there is empty.
func (t *Tx) get(sequence uint64, response bool) error {
	err := t.store.file.guard(func() error {
		if err := t.begin(); err != nil {
			return err
		}
		bucket := t.records
		if response {
			bucket = t.read.Bucket(responsesBucket)
		}
		key := sequenceKey(sequence)
		t.value = append(t.value[:0], bucket.Get(key[:])...)
		return nil
	})
	if err != nil {
		return &faultError{cause: err}
	}
	return nil
}

func (t *Tx) begin() error {
	if t.read != nil {
		return nil
	}
	read, err := t.store.file.db.Begin(false)
	if err != nil {
		return err
	}
	t.read = read // first: it is ended even where what follows is a fault
	t.records = read.Bucket(recordsBucket)
	return nil
}

// Due returns records whose alarm is not after now, at most most of them, ordered
// by (alarm, sequence). They are as stored, without the bytes of their responses,
// and the caller's own.
func (t *Tx) Due(now admission.Time, most int) ([]*admission.Record, error) {
	slots := t.store.index.heap.due(now, most)
	due := make([]*admission.Record, 0, len(slots))
	for _, i := range slots {
		r, _, err := t.decode(t.store.index.slots.at(i).sequence)
		if err != nil {
			return nil, err
		}
		due = append(due, r)
	}
	return due, nil
}
