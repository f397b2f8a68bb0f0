package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
)

// BenchmarkPairs measures Reserve followed by Commit of 100 bytes on three nodes,
// each call sent to its shard's leader.
func BenchmarkPairs(b *testing.B) {
	built := programs(b)
	for _, shards := range []int{1, 3, 6} {
		b.Run("shards="+strconv.Itoa(shards), func(b *testing.B) {
			c := load.Start(b, built, 3, shards)
			d := newDisk(b, true)
			for _, callers := range []int{1, 16, 64, 256} {
				b.Run("callers="+strconv.Itoa(callers), func(b *testing.B) { pairs(b, c, d, callers) })
			}
		})
	}
}

const barePerMeasurement = 100

func pairs(b *testing.B, c *load.Cluster, d *disk, callers int) {
	leaders := c.LeaderAddresses(b)
	response := &coordinatorv1.Response{Code: 201, ContentType: "application/json", Body: make([]byte, 100)}
	run := rand.Text()
	var syncs load.Latencies
	for range barePerMeasurement {
		syncs = append(syncs, d.write(b))
	}
	var next atomic.Int64
	var mu sync.Mutex
	var all load.Latencies
	var work sync.WaitGroup
	b.ResetTimer()
	for caller := range callers {
		work.Go(func() {
			var mine load.Latencies
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				id := &coordinatorv1.Identity{Operation: "POST /v1/orders", Key: fmt.Sprintf("%s-%d", run, i)}
				began := time.Now()
				if err := pair(c.Service(leaders[c.ShardOf(id)], caller), id, response); err != nil {
					b.Error(err)
					return
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	work.Wait()
	b.StopTimer()
	for range barePerMeasurement {
		syncs = append(syncs, d.write(b))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	report(b, all.Median(), "p50-µs")
	report(b, all.Quantile(0.99), "p99-µs")
	report(b, syncs.Median(), "sync-µs")
	b.ReportMetric(0, "ns/op") // the inverse of the first
}

func pair(service coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, response *coordinatorv1.Response) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: id, AttemptId: load.AttemptID()})
	if err != nil {
		return fmt.Errorf("reserve %s: %w", id.GetKey(), err)
	}
	token := answer.GetGranted().GetToken()
	if _, err := service.Commit(ctx, &coordinatorv1.CommitRequest{Identity: id, Token: token, Response: response}); err != nil {
		return fmt.Errorf("commit %s: %w", id.GetKey(), err)
	}
	return nil
}
