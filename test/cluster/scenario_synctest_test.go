package cluster_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/test/cluster"
	"github.com/atmostonce/coordinator/test/scenario"
	"github.com/atmostonce/coordinator/test/scenario/served"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// All scenarios, a month of virtual time, against one node. It is one node because
// three that talk for a month are an hour of real time.
func TestScenariosOnOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Nodes: 1, Change: func(c *node.Config) {
			c.Shards = 1
			// Nobody looks at the disk, at others or at itself every second of the month.
			c.FreeBytesMin, c.BalanceEvery = 0, 0
			c.Timing.Heartbeat, c.Timing.Election, c.Timing.Lease = time.Minute, time.Minute, time.Minute
			c.Timing.Commit, c.Timing.Call = time.Minute, time.Minute
		}})
		playAll(t, c, 365*24*time.Hour)
	})
}

// The scenarios of up to an hour, against three nodes in turn.
func TestScenariosOnThreeNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		playAll(t, cluster.Start(t, cluster.Options{}), time.Hour)
	})
}

// playAll plays the scenarios up to a length side by side, each in namespaces of its
// own; those with waiters one after the other, since waiters are counted.
func playAll(t *testing.T, c *cluster.Cluster, most time.Duration) {
	t.Helper()
	all, err := scenario.All()
	if err != nil {
		t.Fatal(err)
	}
	play := func(i int) {
		runner := scenario.Runner{
			Target:    &served.Target{Nodes: c.Conns(), Sleep: time.Sleep},
			Namespace: func(name string) string { return fmt.Sprintf("%s-%d", name, i) },
			Tolerance: time.Second,
		}
		if err := runner.Run(t.Context(), all[i]); err != nil {
			t.Error(err)
		}
	}
	c.Conns() // are made once, before they are shared
	var running sync.WaitGroup
	var waits []int
	played := 0
	for i, s := range all {
		switch {
		case length(s) > most:
		case hasWaiters(s):
			waits = append(waits, i)
			played++
		default:
			running.Go(func() { play(i) })
			played++
		}
	}
	running.Wait()
	for _, i := range waits {
		play(i)
	}
	t.Logf("played %d of %d scenarios", played, len(all))
}

// length is how much time a scenario moves.
func length(s scenario.Scenario) time.Duration {
	total := time.Duration(0)
	for _, step := range s.Steps {
		if step.Advance != nil {
			total += time.Duration(*step.Advance)
		}
	}
	return total
}

func hasWaiters(s scenario.Scenario) bool {
	for _, step := range s.Steps {
		if step.Start != nil {
			return true
		}
	}
	return false
}
