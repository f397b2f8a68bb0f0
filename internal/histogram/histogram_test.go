package histogram

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// A duration is in the first bucket whose bound it does not exceed.
func TestBuckets(t *testing.T) {
	if !slices.IsSorted(bounds[:]) {
		t.Fatal("the bounds do not ascend")
	}
	for i, bound := range Bounds() {
		var d Durations
		d.Observe(bound)
		d.Observe(bound + 1)
		c := d.Counts()
		if c.Buckets[i] != 1 || c.Buckets[i+1] != 1 || c.Count() != 2 || c.Sum != 2*bound+1 {
			t.Errorf("%v: %+v", bound, c)
		}
	}
	var d Durations
	d.Observe(-time.Second)
	d.Observe(0)
	if c := d.Counts(); c.Buckets[0] != 2 || c.Sum != 0 {
		t.Errorf("%+v", c)
	}
}

func TestAdd(t *testing.T) {
	var a, b Durations
	a.Observe(time.Millisecond)
	b.Observe(time.Millisecond)
	b.Observe(time.Hour)
	all, other := a.Counts(), b.Counts()
	all.Add(&other)
	if all.Count() != 3 || all.Buckets[3] != 2 || all.Buckets[len(bounds)] != 1 || all.Sum != time.Hour+2*time.Millisecond {
		t.Errorf("%+v", all)
	}
}

// Nothing is lost among several who count.
func TestObserveFromManyGoroutines(t *testing.T) {
	var d Durations
	var counting sync.WaitGroup
	for range 8 {
		counting.Go(func() {
			for range 1000 {
				d.Observe(time.Millisecond)
			}
		})
	}
	counting.Wait()
	if c := d.Counts(); c.Count() != 8000 || c.Sum != 8*time.Second {
		t.Errorf("%+v", c)
	}
}

func BenchmarkObserve(b *testing.B) {
	var d Durations
	b.ReportAllocs()
	for range b.N {
		d.Observe(3 * time.Millisecond)
	}
}
