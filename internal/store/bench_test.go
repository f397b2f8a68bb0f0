package store

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// benchRecords are how many records there are before the measured work. Five
// millions take minutes to write: they are there where COORDINATOR_BENCH_LARGE is
// set.
func benchRecords(b *testing.B) []int {
	b.Helper()
	if os.Getenv("COORDINATOR_BENCH_LARGE") != "" {
		return []int{0, 1_000_000, 5_000_000}
	}
	if testing.Short() {
		return []int{0}
	}
	return []int{0, 1_000_000}
}

// benchTTL draws a window from 1 minute to 24 hours, its logarithm uniform.
func benchTTL(random *rand.Rand) time.Duration {
	return time.Duration(float64(time.Minute) * math.Pow(24*60, random.Float64()))
}

func benchReserve(random *rand.Rand, i int) admission.Reserve {
	c := admission.Reserve{
		Identity: admission.Identity{
			Namespace: "default", Principal: "account-0123456789", Operation: "POST /v1/workers/w7/reboot",
			Key: fmt.Sprintf("7d9f2c1e-5b3a-4c8e-9f60-%012d", i),
		},
		Fingerprint: make([]byte, 32), PendingTTL: benchTTL(random), Retention: benchTTL(random),
		Owner: "worker-17", WantedUntil: admission.Never,
	}
	binary.BigEndian.PutUint64(c.Attempt[:], random.Uint64())
	return c
}

// benchStore returns a store with the given number of records. It is made once and
// copied for those that come after.
func benchStore(b *testing.B, records int) (*Store, *rand.Rand, Config) {
	b.Helper()
	cfg := testConfig(b)
	cfg.MapBytes = MapBytesDefault
	cfg.Identification = testIdentification
	random := rand.New(rand.NewPCG(1, 2))
	kept := filepath.Join(os.TempDir(), fmt.Sprintf("coordinator-bench-%d-%d.db", os.Getuid(), records))
	if _, err := os.Stat(kept); err == nil {
		copyFile(b, kept, cfg.Path)
		return mustOpen(b, cfg), random, cfg
	}
	s := mustOpen(b, cfg)
	for i := 0; i < records; {
		benchUpdate(b, s, func(tx *Tx) error {
			for range 5000 {
				if _, err := decide(tx, benchReserve(random, i)); err != nil {
					return err
				}
				i++
			}
			return nil
		})
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	if records > 0 && os.Getenv("COORDINATOR_BENCH_KEEP") != "" {
		copyFile(b, cfg.Path, kept)
	}
	return s, random, cfg
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Sync(); err != nil { // else the next flush waits for all of it
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}

func benchUpdate(b *testing.B, s *Store, apply func(tx *Tx) error) {
	b.Helper()
	if _, err := s.Update(Position{Index: s.Applied().Index + 1, Term: 1}, apply); err != nil {
		b.Fatal(err)
	}
}

// pagesWritten are those of all commits so far.
func pagesWritten(s *Store) int64 {
	stats := s.file.db.Stats()
	return stats.TxStats.GetPageAlloc() / int64(s.file.db.Info().PageSize)
}

// BenchmarkFlush measures the commit of 500 new records, and of 500 new ones with
// 500 that were reserved just before and are committed now and 500 whose window is
// over, scattered over everything that is there.
func BenchmarkFlush(b *testing.B) {
	for _, records := range benchRecords(b) {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			s, random, _ := benchStore(b, records)
			next := records
			b.Run("new", func(b *testing.B) {
				benchFlush(b, s, func(tx *Tx) error {
					for range 500 {
						next++
						if _, err := decide(tx, benchReserve(random, next)); err != nil {
							return err
						}
					}
					return nil
				})
			})
			var tokens []admission.Token
			var ids []admission.Identity
			b.Run("mixed", func(b *testing.B) {
				benchFlush(b, s, func(tx *Tx) error {
					return benchMixed(tx, random, &next, &tokens, &ids)
				})
			})
		})
	}
}

func benchMixed(tx *Tx, random *rand.Rand, next *int, tokens *[]admission.Token, ids *[]admission.Identity) error {
	for i, token := range *tokens {
		if _, err := decide(tx, admission.Commit{Identity: (*ids)[i], Token: token, Response: admission.Response{
			Bytes: 200, Stored: make([]byte, 200),
		}}); err != nil {
			return err
		}
	}
	*tokens, *ids = (*tokens)[:0], (*ids)[:0]
	for range 500 {
		*next++
		c := benchReserve(random, *next)
		d, err := decide(tx, c)
		if err != nil {
			return err
		}
		*tokens, *ids = append(*tokens, d.Answer.Token), append(*ids, c.Identity)
	}
	due, err := tx.Due(admission.Never-1, 500)
	if err != nil {
		return err
	}
	for _, r := range due {
		d := admission.Reclaim(admission.View{Record: r, Counter: tx.store.head.counter}, admission.Never-1)
		if err := tx.Apply(d, r); err != nil {
			return err
		}
	}
	return nil
}

func benchFlush(b *testing.B, s *Store, apply func(tx *Tx) error) {
	b.Helper()
	s.config.FlushInterval = FlushIntervalMax
	var pages int64
	var slowest, spent time.Duration
	for range b.N {
		b.StopTimer()
		benchUpdate(b, s, apply)
		before := pagesWritten(s)
		b.StartTimer()
		began := time.Now()
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		spent += took
		slowest = max(slowest, took)
		pages += pagesWritten(s) - before
	}
	b.ReportMetric(float64(pages)/float64(b.N), "pages/flush")
	b.ReportMetric(float64(spent.Microseconds())/1e3/float64(b.N), "ms/flush")
	b.ReportMetric(float64(slowest.Microseconds())/1e3, "ms-slowest")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFlushByKey is what BenchmarkFlush is measured against: the same 500 new
// records, kept in the order of a hash of their identities.
func BenchmarkFlushByKey(b *testing.B) {
	for _, records := range benchRecords(b) {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			f, err := createFile(filepath.Join(b.TempDir(), "by-key"), Config{MapBytes: MapBytesDefault}.WithDefaults().fileOptions())
			if err != nil {
				b.Fatal(err)
			}
			defer f.close()
			random := rand.New(rand.NewPCG(1, 2))
			keys := make([]uint64, records)
			for i := range keys {
				keys[i] = random.Uint64()
			}
			slices.Sort(keys)
			f.db.NoSync = true
			w := bulkWriter{file: f, bucket: recordsBucket}
			for _, k := range keys {
				key := sequenceKey(k)
				if err := w.put(key[:], make([]byte, 220)); err != nil {
					b.Fatal(err)
				}
			}
			if err := w.end(); err != nil {
				b.Fatal(err)
			}
			if err := f.db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucketIfNotExists(recordsBucket); return err }); err != nil {
				b.Fatal(err)
			}
			if err := f.handle.Sync(); err != nil {
				b.Fatal(err)
			}
			f.db.NoSync = false
			benchByKey(b, f, random)
		})
	}
}

func benchByKey(b *testing.B, f *file, random *rand.Rand) {
	pages := func() int64 {
		stats := f.db.Stats()
		return stats.TxStats.GetPageAlloc() / int64(f.db.Info().PageSize)
	}
	before := pages()
	b.ResetTimer()
	for range b.N {
		if err := f.update(func(tx *bolt.Tx) error {
			for range 500 {
				key := sequenceKey(random.Uint64())
				if err := tx.Bucket(recordsBucket).Put(key[:], make([]byte, 220)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(pages()-before)/float64(b.N), "pages/flush")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1e3/float64(b.N), "ms/flush")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLookup measures a look at one of many records that are in the file.
func BenchmarkLookup(b *testing.B) {
	for _, records := range benchRecords(b) {
		if records == 0 {
			continue
		}
		s, random, _ := benchStore(b, records)
		ids := make([]admission.Identity, 4096)
		for i := range ids {
			ids[i] = benchReserve(rand.New(rand.NewPCG(3, 4)), random.IntN(records)).Identity
		}
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if err := s.View(func(tx *Tx) error {
					view, err := tx.Admission(ids[i%len(ids)])
					if err == nil && view.Record == nil {
						b.Fatal("not found")
					}
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUpdate measures one Reserve of a new key, decided and applied, with the
// flushes that come with it.
func BenchmarkUpdate(b *testing.B) {
	for _, records := range benchRecords(b) {
		s, random, _ := benchStore(b, records)
		s.config.FlushInterval = FlushIntervalDefault
		next := records
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				next++
				c := benchReserve(random, next)
				benchUpdate(b, s, func(tx *Tx) error {
					_, err := decide(tx, c)
					return err
				})
			}
		})
	}
}
