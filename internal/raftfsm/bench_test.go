package raftfsm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkPropose measures entries of one Reserve each, proposed by so many at once,
// on real files. "syncs" is the median time of an entry over that of a bare write and
// sync of 4 KiB to an allocated file, measured before it.
func BenchmarkPropose(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		for _, proposers := range []int{1, 64} {
			b.Run(fmt.Sprintf("replicas=%d/proposers=%d", replicas, proposers), func(b *testing.B) {
				benchmarkPropose(b, replicas, proposers)
			})
		}
	}
}

func benchmarkPropose(b *testing.B, replicas, proposers int) {
	base := b.TempDir()
	bare := bareSync(b, base)
	n := newNetwork()
	var servers []raft.Server
	for i := range replicas {
		name := fmt.Sprint("n", i)
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	var groups []*Group
	for i, server := range servers {
		cfg := GroupConfig{
			Dir: filepath.Join(base, string(server.ID)), Identification: testIdentification, Create: true,
			Self: server.ID, Layer: n.layer(server.Address), Fatal: func(err error) { b.Error(err) }, Store: storeConfig(""),
		}
		if i == 0 {
			cfg.Bootstrap = Voters(servers...)
		}
		g, err := Open(cfg)
		if err != nil {
			b.Fatal(err)
		}
		defer g.Close(context.Background())
		groups = append(groups, g)
	}
	g := leading(groups)
	term := g.Term()
	run := func(e Entry) bool {
		encoded, err := e.Encode()
		if err == nil {
			err = g.Propose(encoded, 10*time.Second).Error()
		}
		if err != nil {
			b.Error(err)
		}
		return err == nil
	}
	run(Entry{Term: term, LeaderStart: true})

	var next atomic.Int64
	times := make([]time.Duration, b.N)
	var all sync.WaitGroup
	b.ResetTimer()
	for range proposers {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= b.N {
					return
				}
				began := time.Now()
				if !run(Entry{Term: term, Commands: commands(reserve(i))}) {
					return
				}
				times[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(times[len(times)/2])/float64(bare), "syncs")
}

// leading waits for the first of the groups to lead.
func leading(groups []*Group) *Group {
	first, found := make(chan *Group, len(groups)), make(chan struct{})
	var watching sync.WaitGroup
	for _, g := range groups {
		watching.Go(func() {
			select {
			case <-g.Leadership():
				first <- g
			case <-found:
			}
		})
	}
	g := <-first
	close(found)
	watching.Wait()
	return g
}

// bareSync is the median time of a write of 4 KiB and its sync.
func bareSync(b *testing.B, dir string) time.Duration {
	file, err := os.CreateTemp(dir, "bare")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	block := make([]byte, 4096)
	if _, err := file.Write(make([]byte, 500*len(block))); err != nil { // so that only data changes below
		b.Fatal(err)
	}
	times := make([]time.Duration, 500)
	for i := range times {
		began := time.Now()
		if _, err := file.WriteAt(block, int64(i)*int64(len(block))); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
		times[i] = time.Since(began)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times[len(times)/2]
}
