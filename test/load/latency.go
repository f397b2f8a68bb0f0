package load

import (
	"fmt"
	"slices"
	"time"
)

// Latencies are durations of which the order does not matter.
type Latencies []time.Duration

// Quantile returns the q-th part from below, 0 for none.
func (l Latencies) Quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Median is the middle one.
func (l Latencies) Median() time.Duration { return l.Quantile(0.5) }

// String says what is usually asked for.
func (l Latencies) String() string {
	round := func(q float64) time.Duration { return l.Quantile(q).Round(10 * time.Microsecond) }
	return fmt.Sprintf("%d calls, p50 %v, p99 %v, max %v", len(l), round(0.5), round(0.99), round(1))
}
