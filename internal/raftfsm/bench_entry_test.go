package raftfsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// BenchmarkEntry measures the codec of log entries: one that holds so many pairs of a
// Reserve and a Commit.
func BenchmarkEntry(b *testing.B) {
	for _, pairs := range []int{1, 64} {
		e := Entry{Term: 7, Elapsed: time.Hour, WallNanos: 1}
		for i := range pairs {
			e.Commands = append(e.Commands, reserve(i), commit(i, admission.Token{Fence: uint64(i + 1), Attempt: attempt(i)}))
		}
		encoded, err := e.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("encode/pairs=%d", pairs), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(encoded)))
			for b.Loop() {
				if _, err := e.Encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("decode/pairs=%d", pairs), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(encoded)))
			for b.Loop() {
				if _, err := DecodeEntry(encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
