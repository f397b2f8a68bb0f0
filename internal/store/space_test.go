package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// room is what a copy of the state is said to take.
func room(t *testing.T, s *Store) (bytes int64) {
	t.Helper()
	must(t, s.Flush())
	must(t, s.long(func(tx *bolt.Tx, _ head) error {
		bytes = copyRoom(tx)
		return nil
	}))
	return bytes
}

// A copy for which there is no room is not begun: a disk that it would fill ends the node
// that sends it, and the next one that leads.
func TestNoCopyIsBegunWithoutRoom(t *testing.T) {
	const floor = 1 << 20
	var free atomic.Int64
	var broken error
	cfg := testConfig(t)
	fill(t, cfg, 100)
	cfg.Space = NewSpace(func() (int64, error) { return free.Load(), broken }, floor)
	s := mustOpen(t, cfg)
	update(t, s, testReserve(1000))
	need := room(t, s)
	for _, c := range []struct {
		name         string
		free, others int64 // others is what is being written beside it
		err, want    error
	}{
		{"nothing is free", 0, 0, nil, ErrNoSpace},
		{"less than the floor is free", floor - 1, 0, nil, ErrNoSpace},
		{"a byte too few", floor + need - 1, 0, nil, ErrNoSpace},
		{"a byte too few beside others", floor + need + 9, 10, nil, ErrNoSpace},
		{"the free space cannot be told", 1 << 40, 0, os.ErrPermission, os.ErrPermission},
		{"just enough", floor + need, 0, nil, nil},
		{"just enough beside others", floor + need + 10, 10, nil, nil},
	} {
		free.Store(1 << 40)
		broken = nil
		must(t, cfg.Space.Take(c.others))
		free.Store(c.free)
		broken = c.err
		copied, err := s.Copy()
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
		if err == nil {
			must(t, copied.Close())
		}
		cfg.Space.Give(c.others)
		if cfg.Space.taken != 0 {
			t.Errorf("%s: %d bytes are still taken", c.name, cfg.Space.taken)
		}
		if entries, err := os.ReadDir(filepath.Dir(cfg.Path)); err != nil || len(entries) != 1 {
			t.Errorf("%s: %v are left, error %v", c.name, entries, err)
		}
		update(t, s, testReserve(1000)) // it goes on
	}
}

// What a copy is said to take is what it takes, or a little more, whatever the state is like.
func TestRoomOfACopy(t *testing.T) {
	for _, records := range []int{0, 1, 30, 1000} {
		for _, size := range []int{0, 900, 5000} {
			for _, deleted := range []int{0, 9} { // of ten
				t.Run(fmt.Sprintf("%d records of %d bytes, %d tenths deleted", records, size, deleted), func(t *testing.T) {
					s := mustOpen(t, testConfig(t))
					for i := range records {
						answer := update(t, s, testReserve(i))[0]
						update(t, s, admission.Commit{Identity: testIdentity(i), Token: answer.Token, Response: admission.Response{
							Bytes: uint32(size), Stored: make([]byte, size),
						}})
						if i%100 == 0 {
							must(t, s.Flush())
						}
					}
					deleteOldest(t, s, records*deleted/10)
					need := room(t, s)
					c, err := s.Copy()
					must(t, err)
					if c.Size > need || need > c.Size*4/3+copyPagesMore*4096 {
						t.Errorf("it takes %d bytes, and is said to take %d", c.Size, need)
					}
					must(t, c.Close())
				})
			}
		}
	}
}

// deleteOldest deletes records, in the order of their alarms.
func deleteOldest(t *testing.T, s *Store, records int) {
	t.Helper()
	_, err := s.Update(Position{Index: s.Applied().Index + 1, Term: 1}, func(tx *Tx) error {
		due, err := tx.Due(admission.Never-1, records)
		for _, record := range due {
			err = errors.Join(err, tx.Apply(admission.Decision{Deleted: true, Counter: s.head.counter}, record))
		}
		return err
	})
	must(t, err)
	must(t, s.Flush())
	update(t, s) // pages are free from the next commit on
	must(t, s.Flush())
}

// The states of a node are copied one after the other, and one that is closed does not wait
// for its turn.
func TestOneCopyAtATime(t *testing.T) {
	first, second, third := testConfig(t), testConfig(t), testConfig(t)
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		gate := make(chan struct{})
		space := NewSpace(func() (int64, error) {
			asked.Add(1)
			<-gate
			return 1 << 40, nil
		}, 0)
		copied := make(chan error, 3)
		var stores []*Store
		for _, cfg := range []Config{first, second, third} {
			cfg.Space = space
			s, err := Open(cfg)
			must(t, err)
			stores = append(stores, s)
			go func() {
				c, err := s.Copy()
				if err == nil {
					err = c.Close()
				}
				copied <- err
			}()
			time.Sleep(time.Second)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%d copies are being made", n)
		}
		must(t, stores[2].Close())
		if err := <-copied; !errors.Is(err, ErrClosed) {
			t.Errorf("the one that is closed: %v", err)
		}
		close(gate)
		must(t, errors.Join(<-copied, <-copied, stores[0].Close(), stores[1].Close()))
	})
}

// A copy says how long it is as soon as its meta pages are there.
func TestACopySaysHowLongItIs(t *testing.T) {
	content, _ := smallCopy(t)
	metas := 2 * os.Getpagesize()
	for received := range len(content) + 1 {
		want := int64(0)
		if received >= metas {
			want = int64(len(content))
		}
		if got, err := CopyBytes(bytes.NewReader(content[:received]), int64(received)); got != want || err != nil {
			t.Fatalf("after %d bytes: %d, error %v, want %d", received, got, err, want)
		}
	}
	// What claims to be longer than any disk is no overflow.
	for page := range 2 {
		meta := content[page*os.Getpagesize()+boltHeaderBytes:][:boltMetaBytes]
		binary.NativeEndian.PutUint64(meta[40:], math.MaxUint64)
		sealMeta(meta)
	}
	got, err := CopyBytes(bytes.NewReader(content), int64(len(content)))
	must(t, err)
	for _, floor := range []int64{0, 1 << 20, math.MaxInt64} {
		space := NewSpace(func() (int64, error) { return 1 << 50, nil }, floor)
		if err := space.Take(got); !errors.Is(err, ErrNoSpace) {
			t.Errorf("%d bytes above a floor of %d: error %v", got, floor, err)
		}
	}
}

// Whoever waits to hear how much is free keeps nobody else waiting; what was given back meanwhile
// may have been written, and is not in what it hears.
func TestALookAtTheSpaceHoldsNobodyUp(t *testing.T) {
	looks, first := 0, make(chan int64)
	asked := make(chan struct{})
	free := int64(100)
	s := NewSpace(func() (int64, error) {
		if looks++; looks == 1 {
			close(asked)
			return <-first, nil
		}
		return free, nil
	}, 0)
	taken := make(chan error, 1)
	go func() { taken <- s.Take(60) }()
	<-asked
	done := make(chan error, 1)
	go func() {
		err := s.Take(70)
		free -= 70 // it is written
		s.Give(70)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("somebody waits for another one's look")
		first <- 100
		<-done
		<-taken
		return
	}
	first <- 100 // as it was when it was asked
	if err := <-taken; !errors.Is(err, ErrNoSpace) {
		t.Errorf("60 bytes were taken of the 30 that are left: %v", err)
	}
}
