//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// drained is how a command ended whose output was read, which took so long.
type drained struct {
	ending
	took time.Duration
}

// drainOf runs a shell script under signals that come with its end, and returns what was kept and
// how it ended once its output was read.
func drainOf(t *testing.T, stdout io.Writer, stopped error, script string, signals ...os.Signal) (*capture, drained) {
	t.Helper()
	r := &runner{control: &control{world: world{stdout: stdout, stderr: &bytes.Buffer{}, signals: newSignals()}}}
	kept := newCapture()
	s := &supervision{command: exec.Command("sh", "-c", script), stopped: stopped}
	if err := s.pipes(r, kept); err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	s.pump(true)
	if err := s.command.Wait(); err != nil {
		t.Error(err)
	}
	for _, received := range signals {
		r.signals.come <- received
	}
	began := time.Now()
	e := ending{signals: s.drain(r), passOn: func() { <-s.passed }, breakOff: s.breakOff}
	return kept, drained{e, time.Since(began)}
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
		kept, e := drainOf(t, stdout, nil, long, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR1)
		e.passOn()
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
		why     error
	}{
		"signals": {nil, []os.Signal{syscall.SIGTERM, syscall.SIGINT}, errCutOff},
		"a stop":  {errUnrenewed, nil, errUntaken},
	} {
		t.Run(name, func(t *testing.T) {
			leakless(t)
			reader, stdout := io.Pipe()
			defer reader.Close()
			began := time.Now()
			kept, e := drainOf(t, stdout, test.stopped, long, test.signals...)
			e.passOn()
			if recorded := kept.response(0).Body; len(recorded) != longBytes+3 {
				t.Errorf("%d bytes recorded", len(recorded))
			}
			if broken := kept.brokenOffs(); !errors.Is(broken[streamStdout], test.why) {
				t.Errorf("noted %v", broken)
			}
			if took := time.Since(began); took > outputGrace+10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Once the command has ended and its output was read, its end is recorded, whoever takes that: then
// it is passed on, as a whole or until a second signal, whenever the first has come.
func TestTheEndIsRecordedBeforeItsOutputIsTaken(t *testing.T) {
	const most = backlogBytesMax + 60000 // and a pipe
	for name, test := range map[string]struct {
		script   string
		with     []os.Signal // the end
		after    []os.Signal // it is recorded
		recorded int
		taken    int // afterwards; 0: it is cut off
	}{
		"taken":                {long, nil, nil, longBytes + 3, longBytes},
		"all that may wait":    {fmt.Sprintf("head -c %d /dev/zero", most), nil, nil, outputBytesMax, most},
		"one signal":           {long, nil, []os.Signal{syscall.SIGTERM}, longBytes + 3, longBytes},
		"one with the end":     {long, []os.Signal{syscall.SIGTERM}, nil, longBytes + 3, longBytes},
		"a second one":         {long, []os.Signal{syscall.SIGTERM}, []os.Signal{syscall.SIGINT}, longBytes + 3, 0},
		"two signals":          {long, nil, []os.Signal{syscall.SIGTERM, syscall.SIGINT}, longBytes + 3, 0},
		"what goes on writing": {"yes &", nil, []os.Signal{syscall.SIGTERM, syscall.SIGINT}, outputBytesMax, 0},
	} {
		t.Run(name, func(t *testing.T) {
			leakless(t)
			reader, stdout := io.Pipe()
			defer reader.Close()
			kept, e := drainOf(t, stdout, nil, test.script, test.with...)
			e.status = 3
			if waited := e.took >= outputGrace; waited != strings.HasSuffix(test.script, "&") {
				t.Errorf("the grace was waited for: %t", waited)
			}
			var (
				recorded int
				taken    = make(chan int64, 1)
			)
			r, reservation, said := reserved(t, &stub{commit: func() error {
				recorded = len(kept.response(0).Body)
				go func() {
					n, _ := io.CopyN(io.Discard, reader, int64(test.taken)) // it is compared
					taken <- n
				}()
				return nil
			}}, time.Minute)
			passOn := e.passOn
			e.passOn = func() {
				for _, received := range test.after {
					r.signals.come <- received
				}
				passOn()
			}
			code := r.report(r.settle(reservation, e.ending, kept))
			if n := int(<-taken); code != 3 || recorded != test.recorded || n != test.taken {
				t.Errorf("exit code %d, %d bytes recorded, %d taken", code, recorded, n)
			}
			want := ""
			if test.taken == 0 {
				want = "coordctl: not all of the command's stdout could be passed on: it was cut off by a second signal\n"
			}
			if said.String() != want {
				t.Errorf("%q", said)
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
		kept, e := drainOf(t, fullDisk{}, nil, script)
		e.passOn()
		if broken := kept.brokenOffs(); !errors.Is(broken[streamStdout], want) {
			t.Errorf("%s: noted %v", script, broken)
		}
		r := &runner{control: &control{world: world{stdout: fullDisk{}, stderr: &bytes.Buffer{}, signals: newSignals()}}, flags: &runFlags{}}
		err := r.replay(&client.CommittedError{Response: kept.response(0)})
		if (err == nil) != (want == nil) {
			t.Errorf("%s: replayed: %v", script, err)
		}
	}
}
