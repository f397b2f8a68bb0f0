package e2e

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// TestKillOne: a single node is killed at random moments under load, again and again.
func TestKillOne(t *testing.T) {
	kills := 50
	if testing.Short() {
		kills = 8
	}
	c := process.Start(t, programs, 1)
	n := c.Nodes[0]
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	l := startLoad(t, c, seed, 16)
	began := time.Now()
	var down time.Duration
	for range kills {
		// From right after it serves, or even before, to well into the load.
		time.Sleep(time.Duration(random.IntN(600)) * time.Millisecond)
		must(t, n.Kill())
		killed := time.Now()
		must(t, n.Start())
		if random.IntN(5) > 0 {
			must(t, n.Serving(30*time.Second))
			down = max(down, time.Since(killed))
		}
	}
	must(t, n.Serving(30*time.Second))
	t.Logf("%d kills in %v; at most %v from a kill to serving", kills, time.Since(began).Round(time.Millisecond), down.Round(time.Millisecond))
	l.finish(t)
}
