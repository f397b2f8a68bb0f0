package e2e

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// TestReturn: a node that was away for a while counts as soon as it is back, as in
// a rolling restart: the next one that goes costs no more than a change of leader.
func TestReturn(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 3)
	log := history.NewRecorder()
	probes := startProbes(t, c, log)
	first, err := c.LeaderOfMost(30 * time.Second)
	must(t, err)
	must(t, first.Kill())
	time.Sleep(7 * time.Second)
	must(t, first.Start())
	must(t, first.Serving(serviceWithin))
	leader, err := c.LeaderOfMost(30 * time.Second)
	must(t, err)
	second := c.Nodes[0]
	for _, n := range c.Nodes {
		if n != first && n != leader {
			second = n
		}
	}
	killed := log.Now()
	must(t, second.Kill())
	gaps, err := without(log, probes, killed, killed+50*time.Millisecond)
	must(t, err)
	t.Logf("back after 7 s, and %s killed: each shard without service for %v", second.Name, gaps)
	verify(t, log)
}
