// Package e2e runs the broker, the hypervisor and the coordinator as real processes, cuts
// connections and kills processes at every step, and counts at the hypervisor what was
// done.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/atmostonce/coordinator/test/process"
)

// The programs, which TestMain has built.
var (
	programs           process.Programs
	broker, hypervisor string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "leasebroker-")
	if err == nil {
		defer os.RemoveAll(dir)
		programs, err = process.Build(dir)
	}
	if err == nil {
		broker, err = process.BuildProgram(dir, "examples/leasebroker")
	}
	if err == nil {
		hypervisor, err = process.BuildProgram(dir, "examples/leasebroker/hypervisor")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// These tests wait for processes most of the time.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
