package bench

import (
	"context"
	"sync"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
)

// failoverRounds is how often a leader is killed.
const failoverRounds = 5

// BenchmarkFailover kills the leader of a shard in three nodes with SIGKILL and measures
// two things. For every shard that the node led: the time until it grants a Reserve
// again, asked for through the others as soon as a call fails. For every other shard: the
// longest that one of many Reserves took, which were sent to its leader from before the
// kill until a while after all shards served again.
func BenchmarkFailover(b *testing.B) {
	c := load.Start(b, programs(b), 3, 3)
	var led, others, calm load.Latencies
	for b.Loop() {
		for round := range failoverRounds {
			failover(b, c, round, &led, &others, &calm)
		}
	}
	b.ReportMetric(0, "ns/op")
	report(b, led.Median(), "led-p50-µs")
	report(b, led.Quantile(1), "led-max-µs")
	report(b, others.Median(), "others-longest-p50-µs")
	report(b, others.Quantile(1), "others-longest-max-µs")
	report(b, calm.Quantile(1), "calm-longest-max-µs")
}

// askEvery is the time between two Reserves of a shard, and askAfter how long they go on
// once all shards serve.
const (
	askEvery = 5 * time.Millisecond
	askAfter = time.Second
)

func failover(b *testing.B, c *load.Cluster, round int, led, others, calm *load.Latencies) {
	leaders := c.LeaderAddresses(b)
	victim := c.Nodes[round%len(c.Nodes)]
	// What the longest answers are when nobody is killed is measured in the same way.
	ask := func(into *load.Latencies) (stop func()) {
		var stops []func() load.Latencies
		for shard, leader := range leaders {
			if leader != victim.Client {
				stops = append(stops, askShard(b, c, leader, shard))
			}
		}
		return func() {
			for _, stop := range stops {
				*into = append(*into, stop().Quantile(1))
			}
		}
	}
	stop := ask(calm)
	time.Sleep(2 * askAfter)
	stop()

	stop = ask(others)
	time.Sleep(askAfter / 4)
	began := time.Now()
	if err := victim.Kill(); err != nil {
		b.Fatal(err)
	}
	served := c.AwaitServing(b, 30*time.Second)
	time.Sleep(askAfter)
	stop()
	for shard, at := range served {
		took := at.Sub(began)
		if leaders[shard] == victim.Client {
			*led = append(*led, took)
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

// askShard sends a Reserve of a new key of the shard at fixed times, whether or not the
// earlier ones have been answered, and returns what stops it. A call that fails has taken
// as long as any: its caller has no answer.
func askShard(b *testing.B, c *load.Cluster, leader string, shard int) (stop func() load.Latencies) {
	b.Helper()
	ended := make(chan struct{})
	var calls sync.WaitGroup
	var mu sync.Mutex
	var all load.Latencies
	began := time.Now()
	calls.Go(func() {
		for i := 0; ; i++ {
			due := began.Add(time.Duration(i) * askEvery)
			select {
			case <-ended:
				return
			case <-time.After(time.Until(due)):
			}
			request := &coordinatorv1.ReserveRequest{Identity: c.KeyOf(shard, "asked")}
			calls.Go(func() {
				const within = 10 * time.Second
				ctx, cancel := context.WithTimeout(context.Background(), within)
				defer cancel()
				_, err := c.Service(leader, i).Reserve(ctx, request)
				took := time.Since(due)
				if err != nil {
					b.Logf("shard %d: %v", shard, err)
					took = within
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took)
			})
		}
	})
	return func() load.Latencies {
		close(ended)
		calls.Wait()
		return all
	}
}
