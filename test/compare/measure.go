package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/load"
)

// callWithin bounds one call of a contender.
const callWithin = 20 * time.Second

// contender is one way to do a job.
type contender struct {
	name string
	// do does the job once, as one of the callers that are numbered from 0.
	do func(ctx context.Context, caller int) error
	// before is called ahead of each turn; nil: nothing is to be done.
	before func(t testing.TB)
	// servers returns the processes that do it, for their processor time.
	servers func() []int
	// entries returns how many entries its logs have; nil: that is not known.
	entries func(t testing.TB) uint64
}

// turn is what came of one turn.
type turn struct {
	rate     float64 // jobs a second
	p50, p99 time.Duration
	done     int
	failed   int
	why      error         // the first failure
	servers  time.Duration // processor time of the servers for a job
	load     time.Duration // and of this process
	entries  float64       // log entries for a job
}

// take runs a turn: callers that each do one job after the other. What is done in the
// first fifth of the time is not counted; of what has begun then, what ends in the rest is.
func (c contender) take(t testing.TB, callers int, lasts time.Duration) turn {
	t.Helper()
	if c.before != nil {
		c.before(t)
	}
	entries := uint64(0)
	if c.entries != nil {
		entries = c.entries(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lasts+callWithin)
	defer cancel()
	began := time.Now()
	counted, ends := began.Add(lasts/5), began.Add(lasts)
	var (
		mu   sync.Mutex
		got  turn
		all  load.Latencies
		jobs int // counted or not
		work sync.WaitGroup
	)
	var used [2]struct{ servers, own time.Duration } // when counting begins and ends
	work.Go(func() {
		for i, at := range []time.Time{counted, ends} {
			time.Sleep(time.Until(at))
			used[i].servers, used[i].own = processorTime(c.servers()), ownTime()
		}
	})
	for caller := range callers {
		work.Go(func() {
			var mine load.Latencies
			done, failed, why := 0, 0, error(nil)
			for at := time.Now(); at.Before(ends); {
				err := c.do(ctx, caller)
				ended := time.Now()
				done++
				switch {
				case err != nil:
					failed++
					why = errors.Join(why, err)
					if failed == 10 {
						at = ends // it will not get better
						continue
					}
				case ended.After(counted) && ended.Before(ends):
					mine = append(mine, ended.Sub(at))
				}
				at = ended
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			jobs += done
			got.failed += failed
			if got.why == nil {
				got.why = why
			}
		})
	}
	work.Wait()
	slices.Sort(all)
	got.done = len(all)
	got.rate = float64(got.done) / ends.Sub(counted).Seconds()
	got.p50, got.p99 = all.Median(), all.Quantile(0.99)
	if got.done > 0 {
		got.servers = (used[1].servers - used[0].servers) / time.Duration(got.done)
		got.load = (used[1].own - used[0].own) / time.Duration(got.done)
	}
	if c.entries != nil && jobs > 0 {
		got.entries = float64(c.entries(t)-entries) / float64(jobs)
	}
	return got
}

// processorTime is what processes have used, with children of theirs that have ended, 0
// where that is not known.
func processorTime(pids []int) (total time.Duration) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything; utime, stime, cutime and cstime are
		// the 12th and following fields after it.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		for _, field := range fields[11:15] {
			if ticks, err := strconv.ParseInt(field, 10, 64); err == nil {
				total += time.Duration(ticks) * clockTick
			}
		}
	}
	return total
}

// clockTick is the unit of /proc/PID/stat on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// ownTime is what this process has used.
func ownTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// table is one job, and those that do it.
type table struct {
	name       string
	callers    []int
	contenders []contender
	ratios     []ratio
}

// ratio is a goal: of something that ours does against another.
type ratio struct {
	ours, theirs string
	callers      []int
	latency      bool // of the medians of one job, and less is better
	floor, goal  float64
}

// String is the goal in short.
func (r ratio) String() string {
	than := "≥"
	if r.latency {
		than = "≤"
	}
	return fmt.Sprintf("%s / %s: floor %s %.2f, goal %s %.2f", r.ours, r.theirs, than, r.floor, than, r.goal)
}

func (r ratio) of(ours, theirs turn) float64 {
	if r.latency {
		return float64(ours.p50) / float64(theirs.p50)
	}
	return ours.rate / theirs.rate
}

func (r ratio) verdict(median float64) string {
	better := func(than float64) bool {
		if r.latency {
			return median <= than
		}
		return median >= than
	}
	switch {
	case better(r.goal):
		return "goal met"
	case better(r.floor):
		return "floor met"
	}
	return "NOT MET"
}

// cell is one contender with so many callers.
type cell struct {
	table, contender string
	callers          int
}

// spread is the middle of some numbers, and their ends.
type spread struct{ median, least, most float64 }

func spreadOf(numbers []float64) spread {
	if len(numbers) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(numbers))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}
