//go:build unix

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// drainOf runs a shell script under signals that come with its end, and returns what was kept once
// it is drained.
func drainOf(t *testing.T, stdout io.Writer, stopped error, script string, signals ...os.Signal) *capture {
	t.Helper()
	r := &runner{control: &control{world: world{stdout: stdout, stderr: &bytes.Buffer{}, signals: make(chan os.Signal, signalsMost)}}}
	kept := newCapture()
	s := &supervision{command: exec.Command("sh", "-c", script), stopped: stopped}
	if err := s.pipes(r, kept); err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	drained := s.pump(true)
	if err := s.command.Wait(); err != nil {
		t.Error(err)
	}
	for _, received := range signals {
		r.signals <- received
	}
	s.drain(drained, r)
	return kept
}

// long is a script that says nearly as much as is kept and as a pipe holds.
const (
	long      = `head -c 60000 /dev/zero | tr '\0' a; printf END; printf err >&2`
	longBytes = 60003
)

// One signal with the end of the command is one that the command had too: all of the output is
// passed on and recorded.
func TestASignalWithTheEndLosesNoOutput(t *testing.T) {
	leakless(t)
	for range 20 {
		stdout := &bytes.Buffer{}
		kept := drainOf(t, stdout, nil, long, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR1)
		if stdout.Len() != longBytes || len(kept.response(0).Body) != longBytes+3 || kept.brokenOffs() != [2]error{} {
			t.Fatalf("%d bytes passed on, %v", stdout.Len(), kept.brokenOffs())
		}
	}
}

// Output that nobody takes is not waited for after a second signal, nor after a stop. What was
// written is recorded all the same, and what was not passed on is noted.
func TestOutputThatNobodyTakesIsRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		stopped error
		signals []os.Signal
	}{
		"signals": {nil, []os.Signal{syscall.SIGTERM, syscall.SIGINT}},
		"a stop":  {errUnrenewed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			leakless(t)
			reader, stdout := io.Pipe()
			defer reader.Close()
			began := time.Now()
			kept := drainOf(t, stdout, test.stopped, long, test.signals...)
			if recorded := kept.response(0).Body; len(recorded) != longBytes+3 {
				t.Errorf("%d bytes recorded", len(recorded))
			}
			if broken := kept.brokenOffs(); !errors.Is(broken[streamStdout], errUntaken) {
				t.Errorf("noted %v", broken)
			}
			if took := time.Since(began); took > outputGrace+10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Who takes no output may not take what is said of that either: the outcome is recorded.
func TestWhatNobodyIsToldIsRecorded(t *testing.T) {
	leakless(t)
	commits := 0
	r, reservation, _ := reserved(t, &stub{commit: func() error { commits++; return nil }}, time.Minute)
	reader, stderr := io.Pipe()
	defer reader.Close() // goleak looks later
	r.stderr = stderr
	kept := newCapture()
	kept.add(streamStderr, []byte("text"))
	if code := r.report(r.settle(reservation, ending{status: 3}, kept)); code != 3 || commits != 1 {
		t.Errorf("exit code %d after %d commits", code, commits)
	}
}

// fullDisk is an output that takes nothing, and refuses to be given nothing too, as a full disk does.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Who writes nothing loses nothing, and neither does who gets a replay of that.
func TestNoOutputIsPassedOnAsNone(t *testing.T) {
	leakless(t)
	for script, want := range map[string]error{"printf err >&2": nil, "printf x": syscall.ENOSPC} {
		kept := drainOf(t, fullDisk{}, nil, script)
		if broken := kept.brokenOffs(); !errors.Is(broken[streamStdout], want) {
			t.Errorf("%s: noted %v", script, broken)
		}
		r := &runner{control: &control{world: world{stdout: fullDisk{}, stderr: &bytes.Buffer{}}}, flags: &runFlags{}}
		err := r.replay(&client.CommittedError{Response: kept.response(0)})
		if (err == nil) != (want == nil) {
			t.Errorf("%s: replayed: %v", script, err)
		}
	}
}
