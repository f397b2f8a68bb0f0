package planted

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// drawn is how many are planted where not all of them are.
const drawn = 2

// within bounds one simulation. A fault that has not been caught by then is not.
const within = 5 * time.Minute

// breach is how the simulation tells of a broken rule, and of a replica that ends itself.
var breach = regexp.MustCompile(`(?m)^.*(EARLY: |LATE: |double grant|lost commit|wrong replay|repeated fence|fence order|lost grant|` +
	`lost release|wrong refusal|not linearizable|foreign answer|a fence of an earlier hour|the state is not the leader's|` +
	`log and state do not belong together).*$`)

func TestPlantedFaultsAreCaught(t *testing.T) {
	chosen := faults
	if os.Getenv("COORDINATOR_FAULT") == "" {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		chosen = nil
		for _, i := range random.Perm(len(faults))[:drawn] {
			chosen = append(chosen, faults[i])
		}
	}
	caught := 0
	for _, f := range chosen {
		t.Run(f.name, func(t *testing.T) {
			if plant(t, f) {
				caught++
			}
		})
	}
	fmt.Printf("planted: %d\ncaught: %d\n", len(chosen), caught)
}

// plant lets a cluster with the fault live for two hours at most.
func plant(t *testing.T, f fault) bool {
	t.Helper()
	dir := t.TempDir()
	program, err := process.BuildEditedTest(dir, "simulation.test", "test/simulation", f.edit())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	seed := rand.Uint64()
	command := exec.CommandContext(ctx, program, "-test.run=^TestSimulate$", "-test.v", "-hours=2", fmt.Sprint("-seed=", seed))
	command.Dir = filepath.Join("..", "simulation")
	began := time.Now()
	out, err := command.CombinedOutput()
	found := breach.FindString(string(out))
	switch {
	case ctx.Err() != nil:
		t.Errorf("not caught within %v, seed %d\n%s", within, seed, end(out))
	case err == nil:
		t.Errorf("not caught, seed %d\n%s", seed, end(out))
	case found == "":
		t.Errorf("the simulation failed for another reason, seed %d\n%s", seed, end(out))
	default:
		t.Logf("caught after %v: %.200s", time.Since(began).Round(time.Second), strings.TrimSpace(found))
		return true
	}
	return false
}

// end returns the last lines of an output.
func end(out []byte) string {
	const most = 4000
	if len(out) > most {
		out = out[len(out)-most:]
	}
	return string(out)
}
