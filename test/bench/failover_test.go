package bench

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/load"
)

// failoverRounds is how often a leader is killed.
const failoverRounds = 5

// BenchmarkFailover kills the leader of a shard in three nodes with SIGKILL and
// measures, for every shard, the time until it grants a Reserve again. Callers dial
// the others as soon as a call fails.
func BenchmarkFailover(b *testing.B) {
	c := load.Start(b, programs(b), 3, 3)
	var led, others load.Latencies
	for b.Loop() {
		for round := range failoverRounds {
			failover(b, c, round, &led, &others)
		}
	}
	b.ReportMetric(0, "ns/op")
	report(b, led.Median(), "led-p50-µs")
	report(b, led.Quantile(1), "led-max-µs")
	report(b, others.Median(), "others-p50-µs")
	report(b, others.Quantile(1), "others-max-µs")
}

func failover(b *testing.B, c *load.Cluster, round int, led, others *load.Latencies) {
	leaders := c.LeaderAddresses(b)
	victim := c.Nodes[round%len(c.Nodes)]
	began := time.Now()
	if err := victim.Kill(); err != nil {
		b.Fatal(err)
	}
	served := c.AwaitServing(b, 30*time.Second)
	for shard, at := range served {
		took := at.Sub(began)
		if leaders[shard] == victim.Client {
			*led = append(*led, took)
		} else {
			*others = append(*others, took)
		}
		b.Logf("round %d, %s killed: shard %d, led by it: %v, serves again after %v",
			round+1, victim.Name, shard, leaders[shard] == victim.Client, took.Round(time.Millisecond))
	}
	if err := victim.Start(); err != nil {
		b.Fatal(err)
	}
	c.AwaitServing(b, 30*time.Second)
	c.Spread(b)
}
