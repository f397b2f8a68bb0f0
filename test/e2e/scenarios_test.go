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
				for try := 1; ; try++ {
					// A leader that a busy machine keeps from its followers loses its lease. The
					// caller tries again.
					target := &served.Target{Nodes: nodes, Sleep: time.Sleep, Retry: 10 * time.Second}
					runner := scenario.Runner{
						Target:    target,
						Namespace: func(name string) string { return fmt.Sprintf("%s-%d-%d", name, i, try) },
						Tolerance: 10 * time.Second,
					}
					err := runner.Run(t.Context(), all[i])
					if err == nil {
						return
					}
					// The scripts leave a second at least. Where a call took a good part of it,
					// real time has said nothing about the rules.
					if target.Slowest < 300*time.Millisecond || try == 5 {
						t.Error(err)
						return
					}
					t.Logf("again, since a call took %v: %v", target.Slowest, err)
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
