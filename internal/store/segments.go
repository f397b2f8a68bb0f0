package store

import "unsafe"

// segments is an array that grows by a segment at a time: nothing is copied when it
// grows, so growing never pauses, and nothing in it is a pointer, so the garbage
// collector does not look inside.
type segments[T any] struct {
	parts []*[segmentLength]T
}

const (
	segmentBits   = 12
	segmentLength = 1 << segmentBits
)

// at returns the element. It must be below the length that grow was given.
func (s *segments[T]) at(i uint32) *T {
	return &s.parts[i>>segmentBits][i&(segmentLength-1)]
}

// grow makes room for elements 0 to n-1.
func (s *segments[T]) grow(n uint32) {
	for uint64(len(s.parts))<<segmentBits < uint64(n) {
		s.parts = append(s.parts, new([segmentLength]T))
	}
}

// bytes is the memory that the array takes.
func (s *segments[T]) bytes() int64 {
	var element T
	segment := int64(unsafe.Sizeof(element)) << segmentBits
	return int64(len(s.parts))*segment + int64(cap(s.parts))*int64(unsafe.Sizeof(uintptr(0)))
}
