package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/test/process"
	"github.com/atmostonce/coordinator/test/scenario"
	"github.com/atmostonce/coordinator/test/scenario/served"
)

// The scenarios that are marked live, unchanged, in real time: the third level. Each has
// namespaces of its own; those with waiters are played one after the other, since
// waiters are counted.
func TestLiveScenarios(t *testing.T) {
	all, err := scenario.All()
	must(t, err)
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", size), func(t *testing.T) {
			c := process.Start(t, programs, size)
			var nodes []grpc.ClientConnInterface
			for _, n := range c.Nodes {
				nodes = append(nodes, n.Conn())
			}
			play := func(i int) {
				runner := scenario.Runner{
					// A machine that is busy may take long enough to sync for a leader to lose
					// its lease. Nobody else is concerned: the caller tries again.
					Target:    &served.Target{Nodes: nodes, Sleep: time.Sleep, Retry: 10 * time.Second},
					Namespace: func(name string) string { return fmt.Sprintf("%s-%d", name, i) },
					Tolerance: 10 * time.Second,
				}
				if err := runner.Run(t.Context(), all[i]); err != nil {
					t.Error(err)
				}
			}
			played := 0
			var running sync.WaitGroup
			var waits []int
			for i, s := range all {
				switch {
				case !s.Live:
					continue
				case waiting(s):
					waits = append(waits, i)
				default:
					running.Go(func() { play(i) })
				}
				played++
			}
			running.Wait()
			for _, i := range waits {
				play(i)
			}
			if played < 15 {
				t.Errorf("only %d scenarios are live", played)
			}
		})
	}
}

func waiting(s scenario.Scenario) bool {
	for _, step := range s.Steps {
		if step.Start != nil {
			return true
		}
	}
	return false
}
