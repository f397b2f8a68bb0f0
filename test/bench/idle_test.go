package bench

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
)

// BenchmarkIdle measures what three nodes cost that nobody calls: without records, and
// with a thousand whose deadlines are a day off. Together they should take less than
// 3 % of one core.
func BenchmarkIdle(b *testing.B) {
	built := programs(b)
	for _, records := range []int{0, 1000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			c := load.Start(b, built, 3, 3)
			c.Fill(b, 16, records, func(i int) *coordinatorv1.ReserveRequest {
				return &coordinatorv1.ReserveRequest{
					Identity:   &coordinatorv1.Identity{Key: fmt.Sprintf("idle-%d", i)},
					PendingTtl: durationpb.New(24 * time.Hour),
				}
			})
			time.Sleep(5 * time.Second) // until what was begun is done
			for b.Loop() {              // once: it takes longer than any usual -benchtime
				idle(b, c)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

const idleFor = 30 * time.Second

func idle(b *testing.B, c *load.Cluster) {
	used := func() (total time.Duration) {
		for _, n := range c.Nodes {
			cpu, err := load.ReadCPU(n.PID())
			if err != nil {
				b.Skipf("processor time is not known here: %v", err)
			}
			total += cpu
		}
		return total
	}
	before, began := used(), time.Now()
	time.Sleep(idleFor)
	spent, took := used()-before, time.Since(began)
	b.ReportMetric(100*float64(spent)/float64(took), "%core")
}
