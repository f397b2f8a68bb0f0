package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// BenchmarkFreelist compares commits that write the list of free pages with those
// that do not, and opening the file after either, at different shares of free pages.
func BenchmarkFreelist(b *testing.B) {
	for _, records := range benchRecords(b) {
		if records == 0 {
			continue
		}
		s, random, cfg := benchStore(b, records)
		next := records
		for _, part := range []string{"full", "third-free"} {
			if part == "third-free" {
				benchDeleteOldest(b, s, records/3)
			}
			for _, synced := range []bool{false, true} {
				s.file.db.NoFreelistSync = !synced
				name := fmt.Sprintf("records=%d/%s/synced=%v", records, part, synced)
				b.Run(name+"/flush", func(b *testing.B) {
					benchFlush(b, s, func(tx *Tx) error {
						for range 500 {
							next++
							if _, err := decide(tx, benchReserve(random, next)); err != nil {
								return err
							}
						}
						return nil
					})
					b.ReportMetric(float64(s.file.db.Stats().FreePageN), "free-pages")
					b.ReportMetric(float64(s.file.bytes())/(1<<20), "MiB")
				})
				b.Run(name+"/open", func(b *testing.B) {
					benchOpenFile(b, s, cfg)
				})
			}
		}
	}
}

func benchDeleteOldest(b *testing.B, s *Store, records int) {
	b.Helper()
	for deleted := 0; deleted < records; deleted += 5000 {
		benchUpdate(b, s, func(tx *Tx) error {
			for _, l := range tx.store.oldest(b, 5000) {
				if err := tx.Apply(admission.Decision{Deleted: true, Counter: tx.store.head.counter}, l); err != nil {
					return err
				}
			}
			return nil
		})
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

// oldest reads the first records under the lock that an update holds.
func (s *Store) oldest(b *testing.B, limit int) []*admission.Record {
	b.Helper()
	p, err := s.page(0, limit)
	if err != nil {
		b.Fatal(err)
	}
	var records []*admission.Record
	for i, sequence := range p.sequences {
		r, _, err := decodeRecord(sequence, p.values[i])
		if err != nil {
			b.Fatal(err)
		}
		records = append(records, r)
	}
	return records
}

// benchOpenFile times what bbolt needs to open a copy of the file, pages checked
// and cached before.
func benchOpenFile(b *testing.B, s *Store, cfg Config) {
	path := filepath.Join(b.TempDir(), "copy.db")
	copyFile(b, cfg.Path, path)
	var check, opened time.Duration
	for range b.N {
		handle, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if err := CheckPages(handle); err != nil {
			b.Fatal(err)
		}
		check += time.Since(began)
		_ = handle.Close()
		began = time.Now()
		f := &file{path: path}
		if err := f.open(os.OpenFile, s.config.fileOptions()); err != nil {
			b.Fatal(err)
		}
		opened += time.Since(began)
		if err := f.close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(check.Milliseconds())/float64(b.N), "ms-check")
	b.ReportMetric(float64(opened.Milliseconds())/float64(b.N), "ms-bbolt")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOpen measures all of Open: pages checked, bbolt opened, index built.
func BenchmarkOpen(b *testing.B) {
	for _, records := range benchRecords(b) {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			s, _, cfg := benchStore(b, records)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				s, err := Open(cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				b.ReportMetric(float64(s.Stats().IndexBytes)/float64(max(records, 1)), "index-B/record")
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkCopy measures a copy, the plain one that it is instead of, and the
// installation of it.
func BenchmarkCopy(b *testing.B) {
	for _, records := range benchRecords(b) {
		if records == 0 {
			continue
		}
		s, _, cfg := benchStore(b, records)
		b.Run(fmt.Sprintf("records=%d/compact", records), func(b *testing.B) {
			for range b.N {
				c, err := s.Copy()
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(c.Size)/(1<<20), "MiB")
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("records=%d/plain", records), func(b *testing.B) {
			for range b.N {
				tx, err := s.file.db.Begin(false)
				if err != nil {
					b.Fatal(err)
				}
				plain, err := os.Create(filepath.Join(b.TempDir(), "plain"))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := tx.WriteTo(plain); err != nil {
					b.Fatal(err)
				}
				_ = plain.Close()
				b.ReportMetric(float64(s.file.bytes())/(1<<20), "MiB")
				_ = tx.Rollback()
			}
		})
		b.Run(fmt.Sprintf("records=%d/install", records), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				path := receive(b, s, filepath.Dir(cfg.Path))
				b.StartTimer()
				if err := s.Install(path); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("records=%d/hash", records), func(b *testing.B) {
			for range b.N {
				stateHash(b, s)
			}
		})
	}
}
