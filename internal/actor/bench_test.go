package actor

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// BenchmarkPair is one Reserve on a new key and its Commit, both durable, in a group
// of one; and beside it what one sync of the same disk costs.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openBenchShard(b)
			var next atomic.Uint64
			b.SetParallelism((callers + 1) / 2)
			before := s.lastIndex()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					name := fmt.Sprint("key-", next.Add(1))
					reply, err := s.Submit(b.Context(), reserve(name, time.Minute))
					if err != nil || reply.Answer.Outcome != admission.OutcomeGranted {
						b.Errorf("%+v, %v", reply.Answer, err)
						return
					}
					if _, err := s.Submit(b.Context(), commit(name, reply.Answer.Token, "a response of a hundred bytes or so")); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(2*b.N)/b.Elapsed().Seconds(), "calls/s")
			b.ReportMetric(float64(s.lastIndex()-before)/float64(b.N), "entries/pair")
		})
	}
}

// BenchmarkDuplicates is a storm of refused duplicates on one committed key.
func BenchmarkDuplicates(b *testing.B) {
	s := openBenchShard(b)
	reply, err := s.Submit(b.Context(), reserve("k", time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Submit(b.Context(), commit("k", reply.Answer.Token, "done")); err != nil {
		b.Fatal(err)
	}
	before := s.lastIndex()
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Submit(b.Context(), reserve("k", time.Minute)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	if wrote := s.lastIndex() - before; wrote != 0 {
		b.Errorf("%d entries were written", wrote)
	}
}

// BenchmarkSync is the unit in which the latency of the others is counted.
func BenchmarkSync(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	page := make([]byte, 4096)
	if _, err := file.WriteAt(make([]byte, 8<<20), 0); err != nil {
		b.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		if _, err := file.WriteAt(page, int64(i%2048)*4096); err != nil {
			b.Fatal(err)
		}
		if err := syncData(file); err != nil {
			b.Fatal(err)
		}
	}
}
