package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
	"github.com/atmostonce/coordinator/test/process"
)

// programs are what all tests run; TestMain has built them.
var programs process.Programs

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		programs, err = process.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// newSeed returns what the test draws from, and logs it.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if set := os.Getenv("E2E_SEED"); set != "" {
		var err error
		if seed, err = strconv.ParseUint(set, 10, 64); err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
	}
	t.Logf("E2E_SEED=%d", seed)
	return seed
}

// drawFrom returns the random numbers of one user of a seed.
func drawFrom(seed, user uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, user)) }

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// verify checks what the callers were told.
func verify(t *testing.T, log *history.Recorder) {
	t.Helper()
	events := log.Events()
	counts, unknown := history.Count(events)
	t.Logf("%d answers: %v; %d calls without one", len(events)-unknown, counts, unknown)
	began := time.Now()
	found := linearizability.Check(events, linearizability.Options{Artifacts: t.ArtifactDir()})
	t.Logf("checked in %v", time.Since(began).Round(time.Millisecond))
	for i, violation := range found {
		if i == 20 {
			t.Errorf("… and %d more violations", len(found)-i)
			break
		}
		t.Error(violation)
	}
}
