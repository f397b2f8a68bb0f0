package store

import (
	"math"
	"math/bits"
	"strings"

	"github.com/atmostonce/coordinator/internal/admission"
)

// slot is what is known in memory of one record: 40 bytes, without a pointer.
type slot struct {
	sequence uint64
	hash     uint64 // of the identity
	alarm    admission.Time
	checksum uint32 // of the record as it is stored
	next     uint32 // slot in the same bucket, or in the free list; 0 ends it
	heap     uint32 // position in the heap, or notInHeap
	state    admission.State
	apart    bool // the response lies in the bucket of responses
}

const notInHeap = math.MaxUint32

// index finds records by identity and by deadline. It is a hash table over slots
// that grows by linear hashing, one bucket for each record that is added, beside a
// heap of the slots that have an alarm.
//
// Identities are hashed with a secret that is drawn for each process, so that
// nobody can choose keys that meet. It keeps no identities: records whose hashes
// are equal lie side by side, and whoever looks one up compares what is stored.
//
// Slots are numbered from 1. Memory follows the largest number of records that
// there has been since the file was opened: 40 bytes for the slot, 4 for its
// bucket, 4 for its place in the heap.
type index struct {
	slots   segments[slot]
	used    uint32 // slots that were ever used
	free    uint32 // head of the list of those that are free again
	records uint64

	buckets segments[uint32]
	split   uint32 // buckets beyond size that are in use
	size    uint32 // a power of two

	heap deadlines

	// counts over all records, kept with every change
	states     [admission.States]uint64
	namespaces map[string]*uint64 // records that are no tombstones
	responses  uint64             // records whose response lies apart
	digest     uint64             // sum of contribution over all records
}

// slotsMax keeps slot numbers apart from notInHeap.
const slotsMax = math.MaxUint32 - 1

// newIndex returns an empty index with a bucket for each of the records that are
// expected; it grows beyond.
func newIndex(expected uint64) *index {
	buckets := uint32(min(max(expected, 1), slotsMax/2))
	x := &index{size: 1 << (bits.Len32(buckets) - 1), namespaces: make(map[string]*uint64)}
	x.split = buckets - x.size
	x.slots.grow(1)
	x.buckets.grow(buckets)
	x.heap.slots = &x.slots
	return x
}

// entry is a record as the index takes it.
type entry struct {
	sequence uint64
	hash     uint64
	alarm    admission.Time
	checksum uint32
	state    admission.State
	apart    bool
}

// bucketOf returns the bucket that the hash belongs to at the present size.
func (x *index) bucketOf(hash uint64) uint32 {
	low := uint32(hash)
	if b := low & (x.size<<1 - 1); b < x.size+x.split {
		return b
	}
	return low & (x.size - 1)
}

// first returns the first slot of the hash, and after the next one; 0 is none.
func (x *index) first(hash uint64) uint32 {
	return x.skip(*x.buckets.at(x.bucketOf(hash)), hash)
}

func (x *index) after(i uint32) uint32 {
	s := x.slots.at(i)
	return x.skip(s.next, s.hash)
}

func (x *index) skip(i uint32, hash uint64) uint32 {
	for i != 0 && x.slots.at(i).hash != hash {
		i = x.slots.at(i).next
	}
	return i
}

// find returns the slot of the record with this hash and sequence, or 0.
func (x *index) find(hash, sequence uint64) uint32 {
	i := x.first(hash)
	for i != 0 && x.slots.at(i).sequence != sequence {
		i = x.after(i)
	}
	return i
}

// add takes in a record that is not there yet.
func (x *index) add(e entry, namespace string) {
	i := x.free
	if i != 0 {
		x.free = x.slots.at(i).next
	} else {
		if x.used == slotsMax {
			panic("store: more records than an index can hold")
		}
		x.used++
		i = x.used
		x.slots.grow(i + 1)
	}
	x.records++
	if x.records > uint64(x.size+x.split) {
		x.extend()
	}
	bucket := x.buckets.at(x.bucketOf(e.hash))
	*x.slots.at(i) = slot{sequence: e.sequence, hash: e.hash, next: *bucket, heap: notInHeap}
	*bucket = i
	x.set(i, e, namespace)
}

// replace puts another version of the same record into its slot.
func (x *index) replace(i uint32, e entry, namespace string) {
	x.unset(i, namespace)
	x.set(i, e, namespace)
}

// remove forgets the record in the slot.
func (x *index) remove(i uint32, namespace string) {
	x.unset(i, namespace)
	x.heap.remove(i)
	s := x.slots.at(i)
	link := x.buckets.at(x.bucketOf(s.hash))
	for *link != i {
		link = &x.slots.at(*link).next
	}
	*link = s.next
	*s = slot{next: x.free}
	x.free = i
	x.records--
}

// set writes a record's version into its slot and counts it.
func (x *index) set(i uint32, e entry, namespace string) {
	s := x.slots.at(i)
	s.state, s.apart, s.checksum = e.state, e.apart, e.checksum
	x.heap.place(i, e.alarm)
	x.states[e.state]++
	if e.state != admission.StateNone {
		x.enter(namespace)
	}
	if e.apart {
		x.responses++
	}
	x.digest += contribution(e.sequence, e.checksum)
}

// unset takes the version in the slot out of the counts.
func (x *index) unset(i uint32, namespace string) {
	s := x.slots.at(i)
	x.states[s.state]--
	if s.state != admission.StateNone {
		x.leave(namespace)
	}
	if s.apart {
		x.responses--
	}
	x.digest -= contribution(s.sequence, s.checksum)
}

// enter and leave count a namespace's records. The name may be a part of a page:
// it is copied when it is kept.
func (x *index) enter(namespace string) {
	if n := x.namespaces[namespace]; n != nil {
		*n++
		return
	}
	first := uint64(1)
	x.namespaces[strings.Clone(namespace)] = &first
}

func (x *index) leave(namespace string) {
	n := x.namespaces[namespace]
	if *n--; *n == 0 {
		delete(x.namespaces, namespace)
	}
}

// inNamespace returns how many records the namespace has.
func (x *index) inNamespace(namespace string) uint64 {
	if n := x.namespaces[namespace]; n != nil {
		return *n
	}
	return 0
}

// extend adds one bucket and moves to it what belongs there from the one bucket
// that it is split from.
func (x *index) extend() {
	from, to := x.split, x.size+x.split
	x.buckets.grow(to + 1)
	x.split++
	if x.split == x.size {
		x.size, x.split = x.size<<1, 0
	}
	link, moved := x.buckets.at(from), x.buckets.at(to)
	for i := *link; i != 0; i = *link {
		s := x.slots.at(i)
		if x.bucketOf(s.hash) == from {
			link = &s.next
			continue
		}
		*link = s.next
		s.next = *moved
		*moved = i
	}
}

// sums are the counts that a file's head keeps.
func (x *index) sums() sums {
	return sums{records: x.records, responses: x.responses, digest: x.digest}
}

// bytes is the memory that the index takes, without the namespaces' names.
func (x *index) bytes() int64 {
	return x.slots.bytes() + x.buckets.bytes() + x.heap.order.bytes()
}

// contribution is what a record adds to the digest: a number that changes with
// every bit of its sequence and checksum.
func contribution(sequence uint64, checksum uint32) uint64 {
	return mix(sequence*0x9e3779b97f4a7c15 + uint64(checksum))
}
