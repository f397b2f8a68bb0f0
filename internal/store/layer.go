package store

import (
	"maps"
	"slices"
)

// layer is what was applied since an earlier moment and is not durable yet: for
// each record that changed, the encoding to write. While it gathers it is guarded
// by the store's lock; once it is frozen nobody writes to it.
type layer struct {
	// first is the first sequence that had not been given out when the layer began:
	// what is put and deleted from there on was never anywhere else.
	first   uint64
	changes map[uint64]change
	bytes   int64
	updates uint64 // how many updates the store had seen when the layer was frozen
	head    head   // as of the freeze
}

// change is what becomes of one record.
type change struct {
	record   []byte // as it is stored; nil where it is deleted
	response []byte // of a responsePut
	fate     responseFate
}

// responseFate says what becomes of the response that lies apart.
type responseFate uint8

const (
	responseKept responseFate = iota
	responsePut
	responseDeleted
)

// changeBytes is what a change takes besides its encodings: the map's entry, and
// a page's share when it is written.
const changeBytes = 128

func newLayer(first uint64) *layer {
	return &layer{first: first, changes: make(map[uint64]change)}
}

func (c change) bytes() int64 {
	return changeBytes + int64(len(c.record)) + int64(len(c.response))
}

// put notes a change. What it says nothing about stays as the layer has it.
func (l *layer) put(sequence uint64, c change) {
	old, found := l.changes[sequence]
	if found {
		l.bytes -= old.bytes()
		if c.fate == responseKept {
			c.fate, c.response = old.fate, old.response
		}
	}
	if c.record == nil && sequence >= l.first {
		delete(l.changes, sequence)
		return
	}
	l.changes[sequence] = c
	l.bytes += c.bytes()
}

// sequences returns the sequences from the given one on that the layer changes,
// in order.
func (l *layer) sequences(from uint64) []uint64 {
	found := make([]uint64, 0, len(l.changes))
	for sequence := range maps.Keys(l.changes) {
		if sequence >= from {
			found = append(found, sequence)
		}
	}
	slices.Sort(found)
	return found
}
