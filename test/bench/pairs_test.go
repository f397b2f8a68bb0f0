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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
			d := load.NewDisk(b, true)
			for _, callers := range []int{1, 16, 64, 256} {
				b.Run("callers="+strconv.Itoa(callers), func(b *testing.B) { pairs(b, c, d, callers) })
			}
		})
	}
}

const barePerMeasurement = 100

func pairs(b *testing.B, c *load.Cluster, d *load.Disk, callers int) {
	leaders := c.LeaderAddresses(b)
	response := &coordinatorv1.Response{Code: 201, ContentType: "application/json", Body: make([]byte, 100)}
	run := rand.Text()
	var syncs load.Latencies
	for range barePerMeasurement {
		syncs = append(syncs, syncOnce(b, d))
	}
	var next, repeats atomic.Int64
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
				again, err := pair(c.Service(leaders[c.ShardOf(id)], caller), id, response)
				if err != nil {
					b.Error(err)
					return
				}
				repeats.Add(int64(again))
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
		syncs = append(syncs, syncOnce(b, d))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	report(b, all.Median(), "p50-µs")
	report(b, all.Quantile(0.99), "p99-µs")
	report(b, syncs.Median(), "sync-µs")
	b.ReportMetric(float64(repeats.Load()), "repeats")
	b.ReportMetric(0, "ns/op") // the inverse of the first
}

// pair reserves and commits, and says how often a call had to be sent again.
func pair(service coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, response *coordinatorv1.Response) (repeats int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	attempt := load.AttemptID()
	var token string
	repeats, err = insist(ctx, func() error {
		answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: id, AttemptId: attempt})
		token = answer.GetGranted().GetToken()
		return err
	})
	if err != nil {
		return repeats, fmt.Errorf("reserve %s: %w", id.GetKey(), err)
	}
	more, err := insist(ctx, func() error {
		_, err := service.Commit(ctx, &coordinatorv1.CommitRequest{Identity: id, Token: token, Response: response})
		return err
	})
	if err != nil {
		return repeats, fmt.Errorf("commit %s: %w", id.GetKey(), err)
	}
	return repeats + more, nil
}

// insist repeats a call that was turned away, such as during an election, for as
// long as the context allows.
func insist(ctx context.Context, call func() error) (repeats int, err error) {
	for {
		err := call()
		if code := status.Code(err); err == nil || ctx.Err() != nil || code != codes.Unavailable && code != codes.ResourceExhausted {
			return repeats, err
		}
		repeats++
		time.Sleep(10 * time.Millisecond)
	}
}
