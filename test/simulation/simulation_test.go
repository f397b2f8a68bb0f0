package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the simulation; 0 draws one")
	hoursFlag = flag.Int("hours", 0, "busy hours to simulate; 0 is the short set")
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

func drawSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64()
}

// TestSimulate lives through as many busy hours as it is told, in clusters of a few hours
// each. The seed of a cluster is printed and tells the same story again, as far as there
// is one: see the package's documentation.
func TestSimulate(t *testing.T) {
	hours := max(1, *hoursFlag)
	seed := drawSeed()
	var all figures
	lived, counted := 0, 0
	for counted < hours && !t.Failed() {
		dir := filepath.Join(t.TempDir(), "nodes")
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, dir)
			defer w.close()
			fmt.Printf("seed %d: %d shards\n", seed, w.shards)
			for number := range min(hoursEach, hours-counted) {
				f := w.hour(number)
				lived++
				busy := ""
				if f.counts() {
					counted++
				} else {
					busy = "; not busy enough to count"
				}
				fmt.Printf("hour %d: %v%s\n", lived, f, busy)
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
		if lived > counted+hours/10 {
			t.Fatalf("%d of %d hours were busy enough", counted, lived)
		}
	}
	if *hoursFlag > 0 {
		summary = fmt.Sprintf("hours: %d\noperations: %d\nelections: %d\nfaults: %d\nviolations: %d\n",
			counted, all.operations, all.elections, all.faults, all.violations)
	}
}
