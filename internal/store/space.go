package store

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// ErrNoSpace says that a state would take more than may be taken of the free space.
var ErrNoSpace = errors.New("too little free disk space")

// Space is what is free where the states of a node lie. The stores of a node share one, so
// that together they take no more than there is: what stays free is what the records that
// they have go on with.
type Space struct {
	free  func() (int64, error)
	floor int64

	copying chan struct{} // capacity 1: held by whoever makes a copy

	// mu is not held while anybody looks: that may hang with the disk.
	mu    sync.Mutex
	taken int64
	given uint64 // how often something was given back
}

// NewSpace returns a space of which free tells how many bytes are free, and floor is how many
// of them stay so.
func NewSpace(free func() (int64, error), floor int64) *Space {
	return &Space{free: free, floor: floor, copying: make(chan struct{}, 1)}
}

// boundless is a space that nobody has measured.
func boundless() *Space { return NewSpace(func() (int64, error) { return math.MaxInt64, nil }, 0) }

// Take sets bytes aside for what is about to be written, or returns an [ErrNoSpace] that says
// what is missing. They are given back once that is written, or given up; what of it has been
// written by then counts twice.
func (s *Space) Take(bytes int64) error {
	for {
		s.mu.Lock()
		given := s.given
		s.mu.Unlock()
		free, err := s.free()
		if err != nil {
			return fmt.Errorf("cannot tell the free disk space: %w", err)
		}
		if done, err := s.take(bytes, free, given); done {
			return err
		}
	}
}

// take sets bytes aside of what was free when so much had been given back. It does nothing where
// more has been since: that may have been written after the look.
func (s *Space) take(bytes, free int64, given uint64) (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given != given {
		return false, nil
	}
	if left := free - s.floor - s.taken; left < bytes {
		return true, fmt.Errorf("%w: %d bytes more are needed, for %d: of %d that are free %d stay so, and %d are taken",
			ErrNoSpace, uint64(bytes-left), bytes, free, s.floor, s.taken)
	}
	s.taken += bytes
	return true, nil
}

// Give gives back what was taken.
func (s *Space) Give(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= bytes
	s.given++
}
