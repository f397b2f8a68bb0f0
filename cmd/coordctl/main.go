package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
)

// world is what a run sees of the outside.
type world struct {
	stdin       io.Reader
	stdout      io.Writer
	stderr      io.Writer
	environment []string // as [os.Environ] has it
	signals     *signals // nil: there are none
	dial        dialer   // nil: by the network of this machine
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == guardArgument {
		if piped(os.Stdin) {
			runGuard(os.Stdin, os.Stdout)
		}
		// A guard of a run has ended itself by now, with its group.
		_, _ = fmt.Fprintf(os.Stderr, "coordctl: %s is what `coordctl run` starts by itself, and nothing for people\n", guardArgument)
		os.Exit(exitOfRun)
	}
	os.Exit(run(context.Background(), world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environment: os.Environ(), signals: catchSignals(),
	}, os.Args[1:]))
}

// piped reports whether a file is a pipe, as what tells a guard its deadline is.
func piped(file *os.File) bool {
	about, err := file.Stat()
	return err == nil && about.Mode()&os.ModeNamedPipe != 0
}

// run carries one command line out and returns its exit code.
func run(ctx context.Context, w world, arguments []string) int {
	if w.signals == nil {
		w.signals = newSignals()
	}
	defer w.signals.close()
	ctx = w.signals.interrupt(ctx)
	w.stdout, w.stderr = &outlet{to: w.stdout, signals: w.signals}, &outlet{to: w.stderr, signals: w.signals}
	c := &control{world: w, arguments: arguments, contacts: contacts{through: w.dial}}
	defer c.close()
	root := c.root()
	root.SetArgs(arguments)
	root.SetIn(w.stdin)
	var texts bytes.Buffer // of cobra, which does not say whether it could write them
	root.SetOut(&texts)
	root.SetErr(w.stderr)
	err := cmp.Or(root.ExecuteContext(ctx), c.unhelped)
	if err == nil && texts.Len() > 0 {
		if _, failed := c.stdout.Write(texts.Bytes()); failed != nil {
			err = localError{err: fmt.Errorf("the text cannot be written: %w", failed)}
		}
	}
	return c.report(err)
}
