package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// endedMost is how many workers that have ended are remembered. Older ones are forgotten,
// which costs a late retry its exact words ("no such worker"), and never makes a worker.
const endedMost = 10_000

// A worker's state only moves forward:
//
//	creating ──▶ active ──▶ ending ──▶ ended
//	    └────────────────────▲
//
// So a step that is taken again, or late, or by somebody who should have given up, finds
// what it wanted to do done, or is refused.
const (
	creating = "creating" // it has a place, and maybe a machine
	active   = "active"   // it is leased
	ending   = "ending"   // its machine is to be terminated
	ended    = "ended"
)

// worker is one worker, as it is kept.
type worker struct {
	ID           string // derived from the request that created it
	Account      string
	Flavor       string
	LeaseSeconds int
	State        string
	// Ends is when a worker that is active or creating is taken back.
	Ends time.Time
	// Fence is that of the latest attempt at creating it.
	Fence uint64
	// Machine and Address are empty until it is active.
	Machine, Address string
}

// What the pool refuses.
var (
	errPoolFull   = errors.New("the pool has no place left")
	errNoWorker   = errors.New("there is no such worker")
	errCreating   = errors.New("the worker is still being created")
	errEnded      = errors.New("the worker has ended")
	errOtherOrder = errors.New("the worker was created by another order")
	errStale      = errors.New("a later attempt has taken over")
)

// pool is the broker's own memory: one file, every change one transaction that is on disk
// when the method returns. It is bounded: at most capacity workers that have not ended,
// and endedMost that have.
type pool struct {
	db        *bbolt.DB
	capacity  int
	endedMost uint64
}

// Buckets: workers that have not ended by id; those that have, by id; and the ids of those
// in the order in which they ended.
var (
	liveBucket  = []byte("live")
	endedBucket = []byte("ended")
	orderBucket = []byte("ended-order")
)

// openPool opens the file, or makes it. A second broker on the same file is refused.
func openPool(path string, capacity int) (*pool, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("open %s (does another broker use it?): %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{liveBucket, endedBucket, orderBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &pool{db: db, capacity: capacity, endedMost: endedMost}, nil
}

func (p *pool) close() { _ = p.db.Close() } // every change is on disk already

// take gives a worker that is to be created its place, before anything else is done for
// it. It returns the worker as it is known: an earlier attempt may have come further.
//
// Refused: errPoolFull, errEnded, errOtherOrder, errStale.
func (p *pool) take(w worker) (worker, error) {
	err := p.db.Update(func(tx *bbolt.Tx) error {
		known, found, err := readWorker(tx, w.ID)
		if err != nil {
			return err
		}
		live, err := readLive(tx)
		switch {
		case err != nil:
			return err
		case !found && len(live) >= p.capacity:
			return errPoolFull
		case !found:
			w.State = creating
			return writeWorker(tx, w)
		case known.Account != w.Account || known.Flavor != w.Flavor || known.LeaseSeconds != w.LeaseSeconds:
			return errOtherOrder
		case known.State == ending || known.State == ended:
			return errEnded
		case known.Fence > w.Fence:
			return errStale
		}
		known.Fence = w.Fence
		if known.State == creating {
			known.Ends = w.Ends // somebody is at work on it again
		}
		w = known
		return writeWorker(tx, w)
	})
	return w, err
}

// drop gives the place of a worker back for which nothing was done, and nothing will be.
// Refused: errStale where a later attempt is at work on it, or it has come further.
func (p *pool) drop(id string, fence uint64) error {
	return p.db.Update(func(tx *bbolt.Tx) error {
		w, found, err := readWorker(tx, id)
		switch {
		case err != nil || !found:
			return err
		case w.Fence != fence || w.State != creating:
			return errStale
		}
		return tx.Bucket(liveBucket).Delete([]byte(id))
	})
}

// activate notes the machine and begins the lease; a lease that has begun goes on. Refused:
// errEnded where the worker was taken back meanwhile.
func (p *pool) activate(id, machine, address string, now time.Time) (worker, error) {
	var w worker
	err := p.db.Update(func(tx *bbolt.Tx) error {
		var found bool
		var err error
		w, found, err = readWorker(tx, id)
		switch {
		case err != nil:
			return err
		case !found || w.State == ending || w.State == ended:
			return errEnded
		case w.State == active:
			return nil
		}
		w.State, w.Machine, w.Address = active, machine, address
		w.Ends = now.Add(time.Duration(w.LeaseSeconds) * time.Second)
		return writeWorker(tx, w)
	})
	return w, err
}

// retire is the beginning of a worker's end: from here on it ends, whoever carries that
// out. Refused: errNoWorker, errCreating; and errEnded where it has ended already.
func (p *pool) retire(id, account string) (worker, error) {
	var w worker
	err := p.db.Update(func(tx *bbolt.Tx) error {
		var found bool
		var err error
		w, found, err = readWorker(tx, id)
		switch {
		case err != nil:
			return err
		case !found || w.Account != account:
			return errNoWorker
		case w.State == ended:
			return errEnded
		case w.Machine == "":
			return errCreating // or it is being taken back before it was created
		}
		w.State = ending
		return writeWorker(tx, w)
	})
	return w, err
}

// end notes that a worker's machine is gone, and frees its place.
func (p *pool) end(id string) error {
	return p.db.Update(func(tx *bbolt.Tx) error {
		w, found, err := readWorker(tx, id)
		if err != nil || !found || w.State == ended {
			return err
		}
		if err := tx.Bucket(liveBucket).Delete([]byte(id)); err != nil {
			return err
		}
		w.State = ended
		if err := writeWorker(tx, w); err != nil {
			return err
		}
		order := tx.Bucket(orderBucket)
		n, err := order.NextSequence()
		if err != nil {
			return err
		}
		if err := order.Put(binary.BigEndian.AppendUint64(nil, n), []byte(id)); err != nil {
			return err
		}
		if n <= p.endedMost {
			return nil
		}
		oldest, forgotten := order.Cursor().First()
		oldest, forgotten = bytes.Clone(oldest), bytes.Clone(forgotten) // a change may move what a cursor returned
		return errors.Join(tx.Bucket(endedBucket).Delete(forgotten), order.Delete(oldest))
	})
}

// due retires every worker whose time is over and returns all that are ending, of whatever
// account: those that nobody may come back for.
func (p *pool) due(now time.Time) ([]worker, error) {
	var all []worker
	err := p.db.Update(func(tx *bbolt.Tx) error {
		live, err := readLive(tx)
		if err != nil {
			return err
		}
		for _, w := range live {
			if w.State != ending && !now.Before(w.Ends) {
				w.State = ending
				if err := writeWorker(tx, w); err != nil {
					return err
				}
			}
			if w.State == ending {
				all = append(all, w)
			}
		}
		return nil
	})
	return all, err
}

// get returns a worker in any state. Refused: errNoWorker.
func (p *pool) get(id string) (worker, error) {
	var w worker
	err := p.db.View(func(tx *bbolt.Tx) error {
		var found bool
		var err error
		if w, found, err = readWorker(tx, id); err == nil && !found {
			return errNoWorker
		}
		return err
	})
	return w, err
}

// list returns the workers of an account that have not ended.
func (p *pool) list(account string) ([]worker, error) {
	mine := []worker{}
	err := p.db.View(func(tx *bbolt.Tx) error {
		live, err := readLive(tx)
		for _, w := range live {
			if w.Account == account {
				mine = append(mine, w)
			}
		}
		return err
	})
	return mine, err
}

func readWorker(tx *bbolt.Tx, id string) (w worker, found bool, err error) {
	text := tx.Bucket(liveBucket).Get([]byte(id))
	if text == nil {
		text = tx.Bucket(endedBucket).Get([]byte(id))
	}
	if text == nil {
		return worker{}, false, nil
	}
	err = json.Unmarshal(text, &w)
	return w, err == nil, err
}

func readLive(tx *bbolt.Tx) ([]worker, error) {
	var all []worker
	err := tx.Bucket(liveBucket).ForEach(func(_, text []byte) error {
		var w worker
		err := json.Unmarshal(text, &w)
		all = append(all, w)
		return err
	})
	return all, err
}

func writeWorker(tx *bbolt.Tx, w worker) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	bucket := tx.Bucket(liveBucket)
	if w.State == ended {
		bucket = tx.Bucket(endedBucket)
	}
	return bucket.Put([]byte(w.ID), text)
}
