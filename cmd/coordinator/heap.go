package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector looks for garbage when there is as much of it as there is memory in use,
// which suits a node at neither end. The heap of one with few records is small, and nearly
// everything that a call allocates is garbage when it has been answered: the collector
// would run dozens of times a second for a few megabytes each, and take a fifth of the
// processor time that a busy node has for a call. The heap of one with millions of records
// is their index, and would be allowed as much again in garbage.
//
// So a node lets a fixed amount come together, whatever there is in use. The index holds no
// pointers: looking at it costs next to nothing. Where GOGC is set it is the operator's.
const (
	// heapSlack is that amount: 64 MiB.
	heapSlack = 64 << 20
	// heapLook is how often the size of what is in use is looked at.
	heapLook = time.Second

	gcPercentMin, gcPercentMax = 10, 2000
)

// pace keeps the collector at heapSlack until ctx ends.
func pace(ctx context.Context) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(heapLook)
	defer ticker.Stop()
	set := 100
	for {
		metrics.Read(live)
		// Setting it stops the world for a moment: small changes are not worth it.
		if percent := gcPercent(live[0].Value.Uint64()); percent < set*4/5 || percent > set*5/4 {
			debug.SetGCPercent(percent)
			set = percent
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// gcPercent is the collector's setting for so many bytes in use.
func gcPercent(live uint64) int {
	return int(min(max(heapSlack*100/max(live, 1), gcPercentMin), gcPercentMax))
}
