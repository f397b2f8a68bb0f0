package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const module = "github.com/atmostonce/coordinator/"

// Programs are where the built programs are.
type Programs struct {
	Coordinator, Coordctl string
}

// Build builds the programs into a directory, with the race detector if the test binary
// has it: a race in a node then ends that node with exit code 66 and shows in its
// output.
func Build(dir string) (Programs, error) {
	arguments := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceDetector {
		arguments = append(arguments, "-race")
	}
	arguments = append(arguments, module+"cmd/coordinator", module+"cmd/coordctl")
	if out, err := exec.CommandContext(context.Background(), "go", arguments...).CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("go %s: %w\n%s", strings.Join(arguments, " "), err, out)
	}
	return Programs{Coordinator: filepath.Join(dir, "coordinator"), Coordctl: filepath.Join(dir, "coordctl")}, nil
}

// environment is what the programs are run in: without settings of theirs, and variables
// of the tests, that a shell or a Makefile may have.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "COORDINATOR_") || strings.HasPrefix(variable, "COORDCTL_")
	})
}

// Result is how a program ended.
type Result struct {
	Code           int
	Stdout, Stderr string
	Took           time.Duration
}

// Run runs a program to its end, and kills it when that takes longer than within.
func Run(within time.Duration, program string, arguments ...string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.SysProcAttr = attributes()
	command.Env = environment()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	began := time.Now()
	err := command.Run()
	result := Result{Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(began)}
	if ctx.Err() != nil {
		return result, fmt.Errorf("%s did not end within %v; stderr: %s", filepath.Base(program), within, result.Stderr)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return result, err
	}
	result.Code = command.ProcessState.ExitCode()
	return result, nil
}

// Control runs coordctl against some nodes.
func (p Programs) Control(within time.Duration, endpoints []string, arguments ...string) (Result, error) {
	return Run(within, p.Coordctl, append([]string{"--endpoints", strings.Join(endpoints, ",")}, arguments...)...)
}

// ControlJSON runs coordctl with -o json and decodes the one value that it prints. An
// exit code that is not 0 is an error.
func (p Programs) ControlJSON(into any, within time.Duration, endpoints []string, arguments ...string) error {
	result, err := p.Control(within, endpoints, append(arguments, "-o", "json")...)
	if err != nil {
		return err
	}
	if result.Code != 0 {
		return fmt.Errorf("coordctl %s ended with %d: %s%s", strings.Join(arguments, " "), result.Code, result.Stdout, result.Stderr)
	}
	return json.Unmarshal([]byte(result.Stdout), into)
}
