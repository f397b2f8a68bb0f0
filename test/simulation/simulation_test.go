package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the simulation; 0 draws one")
	hoursFlag = flag.Int("hours", 0, "busy hours to simulate; 0 is the short set")
	storyFlag = flag.Bool("story", false, "print what befalls the clusters")
)

// hoursEach is how many hours one cluster lives.
const hoursEach = 5

// summary is what a long simulation came to. It is printed last.
var summary string

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	fmt.Print(summary)
	os.Exit(code)
}

// scratch returns a directory that is gone after the test: in memory where there is such
// a place and nobody has said otherwise, because a bubble waits for every sync.
func scratch(t *testing.T) string {
	t.Helper()
	const memory = "/dev/shm"
	if os.Getenv("TMPDIR") != "" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "simulation-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// drawSeed returns the seed that a flag names, or else SIMULATION_SEED, or else a fresh one.
func drawSeed(t *testing.T) uint64 {
	t.Helper()
	if *seedFlag != 0 {
		return *seedFlag
	}
	set := os.Getenv("SIMULATION_SEED")
	if set == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(set, 10, 64)
	if err != nil {
		t.Fatalf("SIMULATION_SEED: %v", err)
	}
	return seed
}

// TestSimulate lives through as many busy hours as it is told, in clusters of a few hours
// each. The seed of a cluster is printed and tells the same story again, as far as there
// is one: see the package's documentation.
func TestSimulate(t *testing.T) {
	hours := max(1, *hoursFlag)
	seed := drawSeed(t)
	var all figures
	lived, counted := 0, 0
	defer func() {
		if t.Failed() && all.violations == 0 {
			all.violations = 1 // replicas that disagree, or a cluster that does not serve
		}
		if *hoursFlag > 0 {
			summary = fmt.Sprintf("hours: %d (of %d)\noperations: %d\nelections: %d\nfaults: %d\nundecided: %d\nviolations: %d\n",
				counted, lived, all.operations, all.elections, all.faults, all.undecided, all.violations)
		}
	}()
	for counted < hours && !t.Failed() {
		dir := filepath.Join(scratch(t), "nodes")
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, dir)
			defer func() { all.add(w.close()) }()
			fmt.Printf("seed: %d, shards: %d\n", seed, w.shards)
			for number := range min(hoursEach, hours-counted) {
				f := w.hour(number)
				lived++
				fmt.Printf("hour %d: %v\n", lived, f)
				if f.counts() {
					counted++
				} else {
					fmt.Println("it does not count")
					f = figures{violations: f.violations, undecided: f.undecided}
				}
				all.add(f)
				if t.Failed() {
					return
				}
			}
		})
		seed++
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if lived > counted+1+hours/10 {
			t.Fatalf("only %d of %d hours count", counted, lived)
		}
	}
}
