package store

import (
	"cmp"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Invariant 5, for the index alone: it does what a map and a sort do, also where
// many hashes are equal.
func TestIndexAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex(rapid.Uint64Max(100).Draw(t, "expected"))
		model := map[uint64]entry{}
		names := map[uint64]string{}
		hashes := rapid.SampledFrom([]uint64{0, 1, 2, 3, 1 << 40, 1<<63 + 1, 77, 78})
		next := uint64(1)
		draw := func(sequence, hash uint64) entry {
			return entry{
				sequence: sequence, hash: hash,
				alarm:    rapid.SampledFrom([]admission.Time{0, 1, 5, 5, 9, admission.Never}).Draw(t, "alarm"),
				checksum: rapid.Uint32().Draw(t, "checksum"),
				state:    admission.State(rapid.IntRange(0, admission.States-1).Draw(t, "state")),
				apart:    rapid.Bool().Draw(t, "apart"),
			}
		}
		pick := func() uint64 {
			sequences := sortedKeys(model)
			return sequences[rapid.IntRange(0, len(sequences)-1).Draw(t, "which")]
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 5).Draw(t, "op"); {
			case op <= 2 || len(model) == 0:
				e := draw(next, hashes.Draw(t, "hash"))
				name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
				x.add(e, name)
				model[next], names[next] = e, name
				next++
			case op <= 4:
				sequence := pick()
				e := draw(sequence, model[sequence].hash)
				x.replace(x.find(e.hash, sequence), e, names[sequence])
				model[sequence] = e
			default:
				sequence := pick()
				x.remove(x.find(model[sequence].hash, sequence), names[sequence])
				delete(model, sequence)
				delete(names, sequence)
			}
		}
		checkIndex(t, x, model, names)
	})
}

func sortedKeys(m map[uint64]entry) []uint64 {
	var keys []uint64
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func checkIndex(t *rapid.T, x *index, model map[uint64]entry, names map[uint64]string) {
	t.Helper()
	var states [admission.States]uint64
	var responses, digest uint64
	namespaces := map[string]uint64{}
	var alarmed []entry
	for sequence, e := range model {
		i := x.find(e.hash, sequence)
		if i == 0 {
			t.Fatalf("record %d is not found", sequence)
		}
		s := x.slots.at(i)
		if s.alarm != e.alarm || s.state != e.state || s.apart != e.apart || s.checksum != e.checksum {
			t.Fatalf("record %d is %+v, want %+v", sequence, *s, e)
		}
		if (s.heap == notInHeap) != (e.alarm == admission.Never) {
			t.Fatalf("record %d with alarm %d is at %d in the heap", sequence, e.alarm, s.heap)
		}
		states[e.state]++
		if e.state != admission.StateNone {
			namespaces[names[sequence]]++
		}
		if e.apart {
			responses++
		}
		digest += contribution(sequence, e.checksum)
		if e.alarm != admission.Never {
			alarmed = append(alarmed, e)
		}
	}
	if x.states != states || x.sums() != (sums{records: uint64(len(model)), responses: responses, digest: digest}) {
		t.Fatalf("states %v sums %+v, want %v of %d", x.states, x.sums(), states, len(model))
	}
	if x.inNamespace("a") != namespaces["a"] || x.inNamespace("b") != namespaces["b"] || len(x.namespaces) != len(namespaces) {
		t.Fatalf("namespaces %v, want %v", x.namespaces, namespaces)
	}
	slices.SortFunc(alarmed, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.alarm, b.alarm), cmp.Compare(a.sequence, b.sequence))
	})
	for _, now := range []admission.Time{-1, 0, 5, admission.Never - 1} {
		for _, most := range []int{0, 1, 7, 1000} {
			var want, got []uint64
			for _, e := range alarmed {
				if e.alarm <= now && len(want) < most {
					want = append(want, e.sequence)
				}
			}
			for _, i := range x.heap.due(now, most) {
				got = append(got, x.slots.at(i).sequence)
			}
			if !slices.Equal(want, got) {
				t.Fatalf("due at %d, at most %d: %v, want %v", now, most, got, want)
			}
		}
	}
}

// Invariant 6: the index takes at most 64 bytes a record, by its own account and by
// the heap's.
func TestIndexBytesARecord(t *testing.T) {
	const records = 400_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := newIndex(0)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range records {
		x.add(entry{sequence: uint64(i + 1), hash: random.Uint64(), alarm: admission.Time(random.Int64N(1 << 50)), state: admission.StatePending}, "n")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := float64(after.HeapAlloc-before.HeapAlloc) / records
	own := float64(x.bytes()) / records
	t.Logf("%.1f bytes a record by the heap, %.1f by its own account", heap, own)
	if heap > 64 || own > 64 || heap > own*1.05 {
		t.Errorf("%.1f bytes a record by the heap, %.1f by its own account", heap, own)
	}
	// Slots of records that are gone are used again.
	for i := range records {
		h := x.slots.at(uint32(i + 1))
		x.remove(x.find(h.hash, h.sequence), "n")
	}
	bytes := x.bytes()
	for i := range records {
		x.add(entry{sequence: uint64(records + i + 1), hash: random.Uint64(), alarm: 1}, "n")
	}
	if grown := float64(x.bytes()-bytes) / records; grown > 5 {
		t.Errorf("it grew by %.1f bytes a record for records that came after others", grown)
	}
}
