// Package histogram counts how long things took, in buckets.
//
// It is for what happens all the time: counting costs two atomic additions, no lock and
// no memory, and reading holds nobody up. What is read is a plain value; how it is shown
// is somebody else's affair.
package histogram

import (
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of the buckets: a duration is in the first one whose bound
// it does not exceed. They fit what is measured here, from the sync of a good disk to a
// call that has waited for a new leader. There is one more bucket, for what took longer.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Durations is what was counted so far. The zero value is ready. All methods may be
// called by several goroutines.
type Durations struct {
	buckets [len(bounds) + 1]atomic.Uint64
	nanos   atomic.Int64 // the sum
}

// Observe counts a duration. One that is negative counts as none at all.
func (d *Durations) Observe(took time.Duration) {
	took = max(0, took)
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	d.buckets[i].Add(1)
	d.nanos.Add(int64(took))
}

// Counts returns what has been counted. While others count, the parts may be one
// observation apart.
func (d *Durations) Counts() Counts {
	var c Counts
	for i := range d.buckets {
		c.Buckets[i] = d.buckets[i].Load()
	}
	c.Sum = time.Duration(d.nanos.Load())
	return c
}

// Counts is what was counted at one moment.
type Counts struct {
	// Buckets are the numbers of durations above one bound and up to the next: the first
	// is up to Bounds()[0], the last above all bounds.
	Buckets [len(bounds) + 1]uint64
	Sum     time.Duration
}

// Bounds returns the upper bounds of all buckets but the last, ascending.
func Bounds() []time.Duration { return append([]time.Duration(nil), bounds[:]...) }

// Count is the number of durations.
func (c *Counts) Count() (n uint64) {
	for _, b := range c.Buckets {
		n += b
	}
	return n
}

// Add adds what was counted elsewhere.
func (c *Counts) Add(other *Counts) {
	for i, n := range other.Buckets {
		c.Buckets[i] += n
	}
	c.Sum += other.Sum
}
