package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Operation is one call of a recorded history of one shard, in which no deadline
// passed: every window was longer than the run.
type Operation struct {
	On      admission.Identity
	Command admission.Command // nil for a Get

	Called   int64 // when it was made, on any clock that all share
	Answered int64 // when the answer came; meaningless without one

	// Told reports whether this is what the caller was told; nil where the caller was
	// told nothing, and the call may have been carried out or not, even later.
	Told func(Verdict) bool
	// Saw is the same for a Get.
	Saw func(seen Seen, exists bool) bool
}

// known reports whether the call was answered.
func (o *Operation) known() bool { return o.Told != nil || o.Saw != nil }

// Linearizable reports whether there is an order of the operations, each somewhere
// between its call and its answer, in which the contract gives just the answers that
// were given. Calls without an answer may be left out of it. It is a search that
// takes long where many calls overlap; 64 is the most that it takes.
func Linearizable(counter uint64, operations []Operation) bool {
	if len(operations) > 64 {
		panic(fmt.Sprintf("model: %d operations", len(operations)))
	}
	s := &linearization{operations: operations, tried: map[string]bool{}}
	return s.search(0, NewAt(counter))
}

type linearization struct {
	operations []Operation
	tried      map[string]bool // what has been reached before, to no end
}

// search goes on from a set of operations that are done and what they led to.
func (s *linearization) search(done uint64, shard *Shard) bool {
	first := int64(math.MaxInt64) // no operation may come after the first answer that is still open
	open := false
	for i := range s.operations {
		if o := &s.operations[i]; done&(1<<i) == 0 && o.known() {
			first, open = min(first, o.Answered), true
		}
	}
	if !open {
		return true
	}
	key := s.key(done, shard)
	if s.tried[key] {
		return false
	}
	s.tried[key] = true
	for i := range s.operations {
		o := &s.operations[i]
		if done&(1<<i) != 0 || o.Called > first {
			continue
		}
		for _, next := range s.after(o, shard) {
			if s.search(done|1<<i, next) {
				return true
			}
		}
	}
	return false
}

// after returns what the operation may lead to, if it is the next.
func (s *linearization) after(o *Operation, shard *Shard) []*Shard {
	if o.Command == nil {
		if seen, exists := shard.Get(o.On, 0); o.Saw == nil || !o.Saw(seen, exists) {
			return nil // one that was not answered has done nothing
		}
		return []*Shard{shard}
	}
	var all []*Shard
	for _, v := range shard.Decide(admission.Instant{}, o.Command, 0) {
		if o.Told != nil && !o.Told(v) || o.Told == nil && !v.Changes() {
			continue
		}
		next := shard.Clone()
		next.Adopt(v)
		all = append(all, next)
	}
	return all
}

// key names what has been reached: what is done, and what came of it.
func (s *linearization) key(done uint64, shard *Shard) string {
	key := binary.BigEndian.AppendUint64(nil, done)
	for i := range s.operations {
		id := s.operations[i].On
		key = append(key, 0)
		for _, e := range shard.history[id] {
			key = append(key, byte(e.kind))
			key = binary.BigEndian.AppendUint64(key, e.first)
			key = append(key, e.reserve.Attempt[:]...)
			key = append(key, e.response.Hash[:4]...)
			key = append(key, e.reason...)
		}
	}
	return string(key)
}
