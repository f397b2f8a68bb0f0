// Command coordctl is the coordinator at the command line: for scripts that want to
// be admitted once, and for operators.
//
// Results go to stdout and everything else to stderr, so that a script can read one
// without the other. The exit code says what happened; `coordctl --help` lists them.
//
// Invariants:
//
//  1. A call that is sent more than once is the same call: coordctl draws the attempt
//     id of a Reserve itself, and everything else names a token or a revision.
//  2. If any delivery of a call may have been applied and no later one told the
//     truth, the error says so, whatever the last delivery said.
//  3. Listings hold one page in memory.
//  4. `run` starts nothing without a reservation, and what it started does not outlive
//     the reservation: see [runner] and [guard].
package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// world is what a run sees of the outside.
type world struct {
	stdin       io.Reader
	stdout      io.Writer
	stderr      io.Writer
	environment []string // as [os.Environ] has it
	// signals are those that came since the start; nobody but `run` reads them.
	signals chan os.Signal
	// restoreSignals makes signals do what they do where nobody asks for them. Nil: nothing is
	// to be done for that.
	restoreSignals func()
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == guardArgument {
		os.Exit(runGuard(os.Stdin, os.Stdout))
	}
	// Whoever is told to end tells what has become of a call, whichever way it is told.
	var ends []os.Signal
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // as nohup has it, and a shell's background jobs
			ends = append(ends, s)
		}
	}
	signals := make(chan os.Signal, signalsMost)
	signal.Notify(signals, ends...)
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	code := run(ctx, world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environment: os.Environ(), signals: signals,
		restoreSignals: func() {
			signal.Stop(signals)
			stop()
		},
	}, os.Args[1:])
	stop()
	os.Exit(code)
}

// run carries one command line out and returns its exit code.
func run(ctx context.Context, w world, arguments []string) int {
	c := &control{world: w, arguments: arguments}
	defer c.close()
	root := c.root()
	root.SetArgs(arguments)
	root.SetIn(w.stdin)
	root.SetOut(w.stdout)
	root.SetErr(w.stderr)
	err := root.ExecuteContext(ctx)
	return c.report(cmp.Or(err, c.unhelped))
}
