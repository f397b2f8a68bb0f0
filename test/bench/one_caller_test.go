package bench

import (
	"strconv"
	"testing"

	"github.com/atmostonce/coordinator/test/load"
)

// BenchmarkOneCaller measures Reserve by a single caller on one node, in turn with
// what it cannot do without: one sync of the disk and one call over gRPC. The ratio is
// p50(Reserve) / (p50(sync) + p50(echo)); it should be at most 2.
//
// The sync is of blocks that were allocated and never written, as those of the log
// are; beside it, in rewrite-µs, is one of blocks that were written before.
func BenchmarkOneCaller(b *testing.B) {
	c := load.Start(b, programs(b), 1, 3)
	node := c.Service(c.Nodes[0].Client, 0)
	bare := startEcho(b)
	fresh, written := load.NewDisk(b, true), load.NewDisk(b, false)
	run := strconv.Itoa(b.N)
	for i := range 200 { // what is done once is done before
		reserve(b, node, "warm-"+strconv.Itoa(i))
		reserve(b, bare, "warm-"+strconv.Itoa(i))
	}
	var syncs, rewrites, echoes, reserves load.Latencies
	for i := 0; b.Loop(); i++ {
		key := run + "-" + strconv.Itoa(i)
		syncs = append(syncs, syncOnce(b, fresh))
		echoes = append(echoes, reserve(b, bare, key))
		reserves = append(reserves, reserve(b, node, key))
		rewrites = append(rewrites, syncOnce(b, written))
	}
	b.ReportMetric(0, "ns/op") // of all four: it says nothing
	report(b, syncs.Median(), "sync-µs")
	report(b, rewrites.Median(), "rewrite-µs")
	report(b, echoes.Median(), "echo-µs")
	report(b, reserves.Median(), "reserve-µs")
	report(b, syncs.Quantile(0.99), "sync-p99-µs")
	report(b, echoes.Quantile(0.99), "echo-p99-µs")
	report(b, reserves.Quantile(0.99), "reserve-p99-µs")
	b.ReportMetric(float64(reserves.Median())/float64(syncs.Median()+echoes.Median()), "ratio")
}
