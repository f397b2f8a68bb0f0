package planted

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// drawn is how many are planted where not all of them are.
const drawn = 2

// hours is how long a simulated cluster lives with a fault.
const hours = 8

// within bounds one simulation. A fault that has not been caught by then is not.
const within = 5 * time.Minute

var (
	// violations are what the simulation says was broken, and nodesLog where it kept the
	// log of the nodes.
	violations = regexp.MustCompile(`(?s)seed \d+, [^\n]*:\n(.*?)\n\s*what befell the cluster:`)
	nodesLog   = regexp.MustCompile(`the end of the nodes' log: (\S+)`)
	// stopped is how a replica ends itself that finds its state to be wrong, and what is left
	// of a cluster whose replicas have.
	stopped = regexp.MustCompile(`(?m)^.*(the state is not the leader's|do not belong together|it should have \d+ and \d+ with|broken invariant|` +
		`nobody has led shard|n\d has failed:|n\d does not serve:).*$`)
	// places are where a test says why it fails.
	places = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: .*$`)
	// rules are those that the checker says are broken where processes are judged.
	rules = regexp.MustCompile(`(?m)^.*(double grant|lost commit|wrong replay|repeated fence|lost grant|lost release|wrong refusal|not linearizable).*$`)
)

// finding returns what an output says was broken, or "".
func finding(out []byte) string {
	if told := violations.FindSubmatch(out); told != nil {
		for line := range strings.Lines(string(told[1])) {
			// What could not be decided is no finding.
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "undecided") {
				return line
			}
		}
	}
	for _, told := range []*regexp.Regexp{rules, stopped} {
		if line := told.Find(out); line != nil {
			return string(line)
		}
	}
	if path := nodesLog.FindSubmatch(out); path != nil {
		log, err := os.ReadFile(string(path[1]))
		if err == nil {
			return stopped.FindString(string(log))
		}
	}
	return ""
}

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
	var caught atomic.Int32
	t.Run("each", func(t *testing.T) {
		for _, f := range chosen {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel() // a simulation keeps one processor busy
				if plant(t, f) {
					caught.Add(1)
				}
			})
		}
	})
	fmt.Printf("planted: %d\ncaught: %d\n", len(chosen), caught.Load())
}

// plant lets a cluster with the fault live: for some simulated hours at most, or as long as
// another test takes.
func plant(t *testing.T, f fault) bool {
	t.Helper()
	dir, seed := t.TempDir(), rand.Uint64()
	tests, arguments := f.tests, []string{"-test.run=" + f.run, "-test.v"}
	if tests == "" {
		tests, arguments = "test/simulation", []string{"-test.run=^TestSimulate$", "-test.v", fmt.Sprint("-hours=", hours), fmt.Sprint("-seed=", seed)}
	}
	if tests != "test/simulation" {
		// A fault that shows only where a process comes to something first is tried again.
		arguments = append(arguments, "-test.count=5", "-test.failfast")
	}
	program, err := process.BuildEditedTest(dir, "planted.test", tests, f.edit())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = filepath.Join("..", filepath.Base(tests))
	// A test of processes builds them by itself.
	command.Env = append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(dir, "planted.test-edited", "overlay.json"))
	began := time.Now()
	out, err := command.CombinedOutput()
	found := finding(out)
	switch {
	case ctx.Err() != nil:
		t.Errorf("not caught within %v, seed %d\n%s", within, seed, end(out))
	case err == nil:
		t.Errorf("not caught, seed %d\n%s", seed, end(out))
	case found == "":
		t.Errorf("it failed for another reason, seed %d\n%.2000s\n%s", seed, bytes.Join(places.FindAll(out, -1), []byte("\n")), end(out))
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
