package store

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// BenchmarkIndex measures what is done in memory for each record: it enters, is found by
// its identity's hash, moves its deadline, and leaves, among many others.
func BenchmarkIndex(b *testing.B) {
	const others = 1 << 17
	random := rand.New(rand.NewPCG(1, 2))
	x := newIndex(0)
	last := uint64(0)
	enter := func() entry {
		last++
		e := entry{sequence: last, hash: random.Uint64(), state: admission.StatePending, alarm: admission.Time(0).Add(benchTTL(random))}
		x.add(e, "default")
		return e
	}
	for range others {
		enter()
	}
	b.ReportAllocs()
	for b.Loop() {
		e := enter()
		i := x.find(e.hash, e.sequence)
		if i == 0 {
			b.Fatal("not found")
		}
		e.state, e.alarm = admission.StateCommitted, e.alarm.Add(24*time.Hour)
		x.replace(i, e, "default")
		x.remove(i, "default")
	}
	if x.records != others {
		b.Fatalf("%d records are left", x.records)
	}
}

// BenchmarkRecord measures the codec of records.
func BenchmarkRecord(b *testing.B) {
	granted := admission.Decide(admission.View{}, admission.Instant{}, benchReserve(rand.New(rand.NewPCG(1, 2)), 1))
	record := granted.Record
	encoded, err := encodeRecord(record, 1, storedResponse{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := encodeRecord(record, 1, storedResponse{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := decodeRecord(1, encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}
