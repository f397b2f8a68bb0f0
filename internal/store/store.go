package store

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Store is one shard's state. All methods may be called by several goroutines, but
// for Update, SetConfiguration and Install: those are the log's, which has one.
//
// Why that is right: everything in memory (the gathering layer, the reference to
// the layer that is being written, the index, the head, which file is open) is
// guarded by one lock. An update holds it for writing from its first change to its
// last, and a reader holds it for reading for as long as it looks, so that a reader
// sees an update as a whole or not at all. The flusher takes the lock only to
// freeze the gathering layer and, when that is durable, to let go of it; the commit
// itself happens without. Meanwhile a reader finds the frozen layer before it gets
// to the file, so it makes no difference to it whether its read transaction of the
// file began before the commit or after: what the commit changes is what the layer
// covers. Nobody writes to a frozen layer, a slice that has been put into a layer,
// or a head's configuration.
//
// A read transaction of the file lives no longer than the call that needs it, and
// lies within the lock, except for those of Copy and StateHash, which take as long
// as it takes to read the file once: they begin under the lock, and so in the file
// that is open then, and see one commit for as long as they last.
//
// The lock is held across reads of the file: a reader that waits for a disk delays
// the next update, which is why the file belongs into memory.
type Store struct {
	config Config
	hash   func([]byte) uint64 // of an encoded identity; keyed

	gathered atomic.Int64 // bytes in both layers

	mu        sync.RWMutex
	settled   sync.Cond // on mu: a flush has ended, the store has failed or closed
	file      *file
	index     *index
	head      head
	gathering *layer
	flushing  *layer // nil where none is being written
	updates   uint64 // changes to head or records since the store was opened
	saved     uint64 // updates that are durable
	durable   head   // as the file has it
	failed    error  // why the store answers no more
	closed    bool

	failing sync.Once
	failure error // what it has failed of first; set once, by failing

	// commit is held by whoever writes to the file, or puts another in its place.
	// It is taken before mu.
	commit sync.Mutex

	kick     chan struct{} // capacity 1: flush now
	dirty    chan struct{} // capacity 1: something was gathered
	stop     chan struct{} // closed by Close
	noCopies chan struct{} // closed by EndCopies
	flusher  sync.WaitGroup
	retired  sync.WaitGroup // files that were replaced and have readers
	copying  sync.WaitGroup // long reads: copies and hashes
	stopOnce sync.Once
	endOnce  sync.Once
}

func newStore(cfg Config) *Store {
	seed := maphash.MakeSeed()
	s := &Store{
		config: cfg,
		hash:   func(identity []byte) uint64 { return maphash.Bytes(seed, identity) },
		kick:   make(chan struct{}, 1),
		dirty:  make(chan struct{}, 1),
		stop:   make(chan struct{}),
	}
	s.noCopies = make(chan struct{})
	s.settled.L = &s.mu
	return s
}

// adopt takes the state of a file that has been read.
func (s *Store) adopt(f *file, h head, x *index) {
	s.file, s.head, s.durable, s.index = f, h, h, x
	s.gathering, s.flushing = newLayer(h.lastSequence+1), nil
	s.gathered.Store(0)
}

// usable returns why the store answers no more. The lock is held.
func (s *Store) usable() error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.closed:
		return fileError(s.config.Path, ErrClosed)
	}
	return nil
}

// Update applies one entry of the log. Entries come in the order of the log, from
// one goroutine; one at or before the applied position is not applied again, and
// apply is not called then. What apply does and the position become visible to
// readers at once, and durable at once.
//
// Update waits while more than [Config.GatheredBytesMax] is gathered. An error of
// apply after it has changed something leaves half an entry behind, so it fails the
// store.
func (s *Store) Update(at Position, apply func(*Tx) error) (applied bool, err error) {
	applied, failed, err := s.locked(at, apply)
	if failed {
		return false, s.fail(err)
	}
	return applied, s.checked(err)
}

// locked does it under the lock. A panic of apply goes on to whoever called, and
// leaves a store that answers nobody: half an entry must not be read.
func (s *Store) locked(at Position, apply func(*Tx) error) (applied, failed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.usable() == nil && s.gathered.Load() > s.config.GatheredBytesMax {
		s.wake(s.kick)
		s.settled.Wait()
	}
	if err := s.usable(); err != nil {
		return false, false, err
	}
	if at.Index <= s.head.applied.Index {
		return false, false, nil
	}
	tx := &Tx{store: s, writable: true}
	returned := false
	defer func() {
		tx.end()
		if !returned && s.failed == nil {
			s.failed = fileError(s.config.Path, fmt.Errorf("%w: an update panicked", ErrFailed))
			s.settled.Broadcast()
		}
	}()
	err = apply(tx)
	returned = true
	if err != nil {
		return false, tx.changed, err
	}
	s.head.applied = at
	s.updates++
	if len(s.gathering.changes) >= s.config.FlushEntries || s.gathering.bytes >= s.config.FlushBytes {
		s.wake(s.kick)
	} else {
		s.wake(s.dirty)
	}
	return true, false, nil
}

// SetConfiguration keeps the Raft group's configuration, which is opaque here, as
// of the log entry that brought it. It is gathered and made durable like an update,
// and moves the applied position like one; an entry at or before that position
// changes nothing.
func (s *Store) SetConfiguration(at Position, encoded []byte) error {
	_, err := s.Update(at, func(tx *Tx) error {
		tx.SetConfiguration(at.Index, encoded)
		return nil
	})
	return err
}

// Pass waits for its turn as an update does, and does nothing then. So it returns when every
// call has let go of the lock that was reading the file under it: never, where the disk does
// not answer one. An update that waits for room does not hold the lock, nor does what
// reads the whole file.
func (s *Store) Pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// Configuration returns the Raft group's configuration as of the durable state, and
// the index of the entry that brought it; 0 and nil where none has come by. The
// slice is not to be written to.
func (s *Store) Configuration() (index uint64, encoded []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.durable.configurationIndex, s.durable.configuration
}

// View calls read with a transaction in which nothing changes: the state after the
// latest update, gathered or not. Updates wait for it, so read must be short, and
// must not call the store.
func (s *Store) View(read func(*Tx) error) error {
	return s.checked(s.view(read))
}

func (s *Store) view(read func(*Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	tx := &Tx{store: s}
	defer tx.end()
	return read(tx)
}

// checked fails the store where an error shows that the file is damaged. The lock
// is not held.
func (s *Store) checked(err error) error {
	if fault := (*faultError)(nil); asFault(err, &fault) {
		return s.fail(err)
	}
	return err
}

// NextAlarm returns when the next record is due, and false where none ever is. Within a
// transaction it is [Tx.NextAlarm].
func (s *Store) NextAlarm() (admission.Time, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nextAlarm()
}

func (s *Store) nextAlarm() (admission.Time, bool) {
	if i := s.index.heap.earliest(); i != 0 {
		return s.index.slots.at(i).alarm, true
	}
	return admission.Never, false
}

// Applied returns the position of the latest update.
func (s *Store) Applied() Position {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.head.applied
}

// Durable returns the position up to which everything survives a crash.
func (s *Store) Durable() Position {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.durable.applied
}

// InstalledAt returns the applied position's index at the time the state was
// installed by [Store.Install], or 0 where it grew here.
func (s *Store) InstalledAt() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.durable.installedAt
}

// Gathered returns how many bytes are applied and not durable yet. It takes no lock.
func (s *Store) Gathered() int64 { return s.gathered.Load() }

// Space returns what the state shares with the others of its node.
func (s *Store) Space() *Space { return s.config.Space }

// Stats returns what the store says of itself. After the store has failed or closed
// they are those of its end.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Stats{
		Records:       s.index.states,
		Namespaces:    len(s.index.namespaces),
		FileBytes:     s.file.bytes(),
		IndexBytes:    s.index.bytes(),
		GatheredBytes: s.gathered.Load(),
		Applied:       s.head.applied,
		Durable:       s.durable.applied,
		Clock:         s.head.clock,
		Counter:       s.head.counter,
	}
}

// fail makes every later call return the error, and tells Fatal, once. The lock is
// not held.
func (s *Store) fail(cause error) error {
	s.failing.Do(func() {
		s.failure = fileError(s.config.Path, fmt.Errorf("%w: %w", ErrFailed, cause))
		s.config.Logger.Error("the state file has failed", "path", s.config.Path, "error", cause)
		if s.config.Fatal != nil {
			s.config.Fatal(s.failure)
		}
	})
	// Not before: who has the lock may wait for one that a fault has left taken.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = s.failure
		s.settled.Broadcast()
	}
	return s.failed
}

// wake leaves a signal for the flusher; one that is there already is enough.
func (s *Store) wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
