package cluster_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/test/cluster"
	"github.com/atmostonce/coordinator/test/scenario"
	"github.com/atmostonce/coordinator/test/scenario/served"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestScenarios(t *testing.T) {
	all, err := scenario.All()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{})
		for i, s := range all {
			if length(s) > time.Hour {
				continue
			}
			runner := scenario.Runner{
				Target:    &served.Target{Nodes: c.Conns(), Sleep: time.Sleep},
				Namespace: func(name string) string { return fmt.Sprintf("%s-%d", name, i) },
				Tolerance: time.Second,
			}
			began := time.Now()
			if err := runner.Run(t.Context(), s); err != nil {
				t.Error(err)
			}
			t.Logf("%-60s %v", s.Name, time.Since(began)-length(s))
		}
	})
}
