package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/oneline"
	"github.com/atmostonce/coordinator/internal/stopsignal"
	"github.com/atmostonce/coordinator/internal/version"
)

// The exit codes.
const (
	exitFailed = 1 // it could not start, or not go on
	exitUsage  = 2 // a flag or a setting is wrong
)

func main() {
	received := stopSignals() // first of all: until then they end the process as if it had failed
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, received))
}

// run is main without the process around it.
func run(arguments []string, environment []string, stdout, stderr io.Writer, received chan os.Signal) int {
	code := 0
	out := &lastWord{to: stderr}
	command := newCommand(environment, received, func(o *options) error {
		var err error
		code, err = serve(o, out, received)
		return err
	})
	command.SetArgs(arguments)
	command.SetOut(lastOutput{stdout, received})
	command.SetErr(stderr)
	if err := command.Execute(); err != nil {
		out.say("coordinator: " + oneline.Of(disk.Once(err).Error()))
		if code == 0 {
			code = exitUsage // cobra's own errors are about flags
		}
	}
	return code
}

// newCommand returns the command line. Every flag comes from the table. A signal that comes before
// serve is called ends it without an error: nothing has been started.
func newCommand(environment []string, received <-chan os.Signal, serve func(*options) error) *cobra.Command {
	flags := make(map[string]*raw)
	command := &cobra.Command{
		Use:   "coordinator [flags]",
		Short: "A replicated admission coordinator: admits each key once",
		Long: `A replicated admission coordinator: admits each key once.

Without flags it is a cluster of its own on 127.0.0.1:7420, with its data in
./coordinator-data. Three nodes are started with the same --peers each, in any
order; the first listed one begins the cluster.`,
		Version:       version.Of(),
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			var (
				o    *options
				err  error
				read = make(chan struct{})
			)
			go func() {
				defer close(read)
				o, err = resolve(flags, environment)
			}()
			select {
			case <-read:
			case <-received: // the file of settings may be a pipe, or on a disk that hangs
				return nil
			}
			if err != nil {
				return err
			}
			return serve(o)
		},
	}
	addFlags(command.Flags(), flags)
	command.SetFlagErrorFunc(flagError)
	command.SetUsageTemplate("{{.UseLine}}\n")
	command.SetHelpFunc(func(c *cobra.Command, _ []string) { writeHelp(c.OutOrStdout(), c.Long) })
	return command
}

// noArguments refuses what is no flag, such as a switch's value with a space before it.
func noArguments(_ *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	return fmt.Errorf("%q is no flag, and there are only flags; a switch is turned off by --NAME=false", arguments[0])
}

// flagError is a flag that cannot be parsed. Those of the table say so themselves; for the two that
// are cobra's, the parser's own words speak of the functions it uses.
func flagError(_ *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && (invalid.GetFlag().Name == "help" || invalid.GetFlag().Name == "version") {
		return fmt.Errorf("--%s takes no value", invalid.GetFlag().Name)
	}
	return err
}

// serve runs a node until a signal ends it or it cannot go on.
func serve(o *options, out *lastWord, received <-chan os.Signal) (code int, err error) {
	if os.Getenv("GOGC") == "" {
		pacing, stop := context.WithCancel(context.Background())
		defer stop()
		go pace(pacing)
	}
	logger := newLogger(o, out, out.isTerminal())
	out.leftOut = func(lines int) []byte {
		var line bytes.Buffer
		newLogger(o, &line, out.isTerminal()).Warn("nobody took the log for a while; lines of it were left out here", "lines", lines)
		return line.Bytes()
	}
	o.node.Logger = logger
	o.node.Version = version.Of()
	select {
	case which := <-received:
		logger.Info("received a signal before the start", "signal", stopsignal.Name(which))
		return 0, nil
	default:
	}
	// Whoever reads the log may go away: a node goes on without it. Nor does it wait for one
	// that stands still, see lastWord.
	signal.Ignore(syscall.SIGPIPE)

	code, err = begin(func(ctx context.Context) (running, error) { return node.Start(ctx, o.node) }, o.node.StopTimeout, received, logger)
	if wrong := (*node.SettingError)(nil); errors.As(err, &wrong) {
		return exitUsage, o.explain(wrong)
	}
	return code, err
}

// running is a node that was started.
type running interface {
	Done() <-chan struct{}
	Err() error
	Stop(ctx context.Context) error
}

// started is what came of a start.
type started struct {
	node running
	err  error
}

// begin starts a node and returns when a signal has ended it, or it cannot go on. A start may hang,
// as a disk or a name server does: signals are heard all the same, and patience bounds what
// is left of it after one.
func begin(start func(context.Context) (running, error), patience time.Duration, received <-chan os.Signal, logger *slog.Logger) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan started, 1)
	go func() {
		n, err := start(ctx)
		over <- started{n, err}
	}()
	select {
	case s := <-over:
		if s.err != nil {
			return exitFailed, s.err
		}
		return await(s.node, received, logger)
	case which := <-received:
		announce(logger, which)
	}
	cancel()
	return end(func() error {
		select {
		case s := <-over:
			switch {
			case errors.Is(s.err, context.Canceled):
				return nil
			case s.err != nil:
				return s.err
			}
			return s.node.Stop(context.Background())
		case <-time.After(patience):
			return fmt.Errorf("the node had not started by then, and did not stop within %v; what is left ends with the process", patience)
		}
	}, nil, received)
}

// await returns when a signal has ended the node, or it cannot go on.
func await(n running, received <-chan os.Signal, logger *slog.Logger) (code int, err error) {
	select {
	case <-n.Done():
		// No graceful stop: the disk that ended the node would hang it, and the
		// other nodes elect leaders without being asked.
		return exitFailed, n.Err()
	case which := <-received:
		announce(logger, which)
	}
	return end(func() error { return n.Stop(context.Background()) }, n, received)
}

func announce(logger *slog.Logger, which os.Signal) {
	logger.Info("received a signal; another one ends the process at once", "signal", stopsignal.Name(which))
}

// end stops what a signal is to end, and returns when that has been done, or another signal
// comes, or the node cannot go on; n is nil where there is none yet.
func end(stop func() error, n running, received <-chan os.Signal) (code int, err error) {
	first := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	var failed <-chan struct{}
	if n != nil {
		failed = n.Done()
	}
	for {
		select {
		case err := <-stopped:
			if err != nil {
				return exitFailed, err
			}
			return 0, nil
		case <-failed:
			return exitFailed, n.Err()
		case which := <-received:
			if time.Since(first) >= stopsignal.SameWithin {
				return exitFailed, fmt.Errorf("received %s while stopping; ended at once", stopsignal.Name(which))
			}
		}
	}
}

// newLogger returns what the node logs with.
func newLogger(o *options, out io.Writer, terminal bool) *slog.Logger {
	handlerOptions := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == formatText || o.logFormat == formatAuto && terminal {
		return slog.New(slog.NewTextHandler(out, handlerOptions))
	}
	// As in text: without this a duration is a bare number, of nanoseconds.
	handlerOptions.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(out, handlerOptions))
}
