package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// histogramParts is into how many equal parts each power of two is divided, so that a
	// quantile is off by less than 1/64 of itself.
	histogramParts = 1 << histogramBits
	histogramBits  = 5
	// histogramPowers is how many powers of two there are: up to 2^42 ns, more than an hour.
	histogramPowers = 42
)

// histogram counts durations. Its size does not depend on how many, and any number of
// goroutines may add to it.
type histogram struct {
	counts [(histogramPowers - histogramBits + 1) * histogramParts]atomic.Uint64
	most   atomic.Int64
}

// add counts a duration.
func (h *histogram) add(d time.Duration) {
	h.counts[histogramSlot(d)].Add(1)
	for {
		most := h.most.Load()
		if int64(d) <= most || h.most.CompareAndSwap(most, int64(d)) {
			return
		}
	}
}

// histogramSlot is where a duration is counted: the shorter ones each in a slot of their
// own, then histogramParts slots for each power of two.
func histogramSlot(d time.Duration) int {
	n := uint64(min(max(d, 0), 1<<histogramPowers-1))
	if n < histogramParts {
		return int(n)
	}
	power := bits.Len64(n) - 1
	part := n >> (power - histogramBits) & (histogramParts - 1)
	return (power-histogramBits+1)*histogramParts + int(part)
}

// histogramMiddle is the middle of what a slot counts.
func histogramMiddle(slot int) time.Duration {
	if slot < histogramParts {
		return time.Duration(slot)
	}
	power := slot/histogramParts + histogramBits - 1
	width := time.Duration(1) << (power - histogramBits)
	return time.Duration(1)<<power + time.Duration(slot%histogramParts)*width + width/2
}

// count is how many durations were added.
func (h *histogram) count() (total uint64) {
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	return total
}

// quantile returns the q-th part from below, 0 for none; of 1 it is the exact maximum.
// Nothing may be added meanwhile.
func (h *histogram) quantile(q float64) time.Duration {
	total := h.count()
	most := time.Duration(h.most.Load())
	if q >= 1 || total == 0 {
		return most
	}
	rank := uint64(q * float64(total))
	seen := uint64(0)
	for slot := range h.counts {
		if seen += h.counts[slot].Load(); seen > rank {
			return min(histogramMiddle(slot), most)
		}
	}
	return most
}
