package e2e

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// TestChaos: three nodes are killed and paused at random, one or two at a time, most times
// before the others have recovered from the last one. It takes a few seconds;
// E2E_CHAOS=10m makes it longer.
func TestChaos(t *testing.T) {
	t.Parallel() // it waits more than it works
	lasts := 12 * time.Second
	if set := os.Getenv("E2E_CHAOS"); set != "" {
		var err error
		lasts, err = time.ParseDuration(set)
		must(t, err)
	}
	c := process.Start(t, programs, 3, "--balance-every", "1s")
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	l := startLoad(t, c, seed, 16)
	kills, pauses := 0, 0
	for began := time.Now(); time.Since(began) < lasts; {
		below(random, 900*time.Millisecond)
		if random.IntN(3) == 0 {
			time.Sleep(2500 * time.Millisecond) // time for a leader to be found
		}
		n, other := c.Nodes[random.IntN(3)], c.Nodes[random.IntN(3)]
		switch random.IntN(10) {
		case 0, 1, 2:
			pauses++
			must(t, n.Pause())
			below(random, 2500*time.Millisecond)
			must(t, n.Resume())
		case 3, 4:
			if other != n {
				kills++
				must(t, other.Kill())
				below(random, 300*time.Millisecond)
				must(t, other.Start())
			}
			fallthrough
		default:
			kills++
			must(t, n.Kill())
			below(random, 300*time.Millisecond)
			must(t, n.Start())
		}
	}
	must(t, c.Serving(30*time.Second))
	t.Logf("%d kills and %d pauses in %v", kills, pauses, lasts)
	l.finish(t)
}

// below sleeps for a random time.
func below(random *rand.Rand, limit time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(limit))))
}
