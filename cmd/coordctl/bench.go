package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atmostonce/coordinator/client"
)

// Bounds of a benchmark, so that one that is forgotten ends.
const (
	benchCallersMax  = 1024
	benchDurationMax = time.Hour
	benchCountMax    = 100_000_000
	benchKeysMax     = 1_000_000
	benchBytesMax    = 256 << 10
	benchTTLMin      = time.Second
	benchTTLMax      = 24 * time.Hour
)

const benchLong = `Measure the cluster with calls of this program's own: so many callers that each wait for
their answer before they send the next call. It ends with --duration or --count, whichever
comes first, and on SIGINT, and shows what it has by then. Calls that are under way then
have --timeout to be answered. What a storm commits first is a part of --duration; one that
does not get beyond it has no result: it ends with 1 if its time was over or it was
interrupted, and otherwise with the code of the call that failed.

If any call failed the exit code is not 0: that of the failures where they are of one
kind, such as 8 if no answer came, and otherwise 1. The result is shown all the same, with
how many failed for which reason, unless no node was reached to begin with; an interrupted
one without failures ends with 0. Should a
storm be granted a key that it has committed, it ends at once with ADMITTED_TWICE and 1: the
coordinator has broken its promise.

The keys are under an operation that is drawn for the run, so that no other key can be
met. They count against the quota of their namespace, and are forgotten after --ttl; what
a storm commits first is, after --ttl, --duration, --timeout and a minute.

It is load: what else the cluster does gets slower meanwhile.`

// benchFlags are the flags of all benchmarks.
type benchFlags struct {
	namespace  string
	callers    int
	duration   time.Duration
	count      int64
	keys       int
	ttl        time.Duration
	bytes      int
	noProgress bool
}

func (c *control) bench() *cobra.Command {
	command := &cobra.Command{
		Use:   "bench",
		Short: "Measure how many calls the cluster answers, and how fast",
		Long:  benchLong,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("which benchmark? `coordctl bench --help` lists them")
		},
	}
	command.AddCommand(
		c.benchmark("pairs", "Reserve a new key, and commit a response to it; a stream for each call",
			`  coordctl bench pairs --callers 64 --duration 30s`,
			"draw keys from so many, so that callers meet; 0: each key is new", 0,
			func(b *benchRun) benchJob { return b.pair }, client.WithSessions(false)),
		c.benchmark("stream", "The same with calls that share a stream, as the Go client makes them",
			`  coordctl bench stream --callers 256 -o json`,
			"draw keys from so many, so that callers meet; 0: each key is new", 0,
			func(b *benchRun) benchJob { return b.pair }),
		c.benchmark("storm", "Reserve keys that are committed: all calls are refused duplicates",
			`  coordctl bench storm --callers 64 --keys 1`,
			"how many keys are committed first, within --duration", 1,
			func(b *benchRun) benchJob { return b.duplicate }),
	)
	for _, each := range command.Commands() {
		once(each.Flags())
	}
	return command
}

// benchmark returns the command of one benchmark. With keys of 0 none is needed.
func (c *control) benchmark(name, short, example, keysHelp string, keys int, job func(*benchRun) benchJob, options ...client.DialOption) *cobra.Command {
	f := &benchFlags{}
	command := &cobra.Command{
		Use:     name,
		Short:   short,
		Long:    short + ".\n\n" + benchLong,
		Example: example,
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := f.check(keys); err != nil {
				return err
			}
			b, err := c.newBenchRun(name, f, options)
			if err != nil {
				return err
			}
			defer b.close()
			return b.run(command.Context(), job(b), keys > 0)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.namespace, "namespace", "", `the tenant (default "default")`)
	flags.IntVar(&f.callers, "callers", 16, fmt.Sprintf("how many callers there are, 1 to %d", benchCallersMax))
	flags.DurationVar(&f.duration, "duration", 10*time.Second, fmt.Sprintf("how long it takes at most, what is committed first included, up to %v", benchDurationMax))
	flags.Int64Var(&f.count, "count", 1_000_000, fmt.Sprintf("how often it is done at most, 1 to %d", benchCountMax))
	flags.IntVar(&f.keys, "keys", keys, keysHelp)
	flags.DurationVar(&f.ttl, "ttl", time.Minute, fmt.Sprintf("how long reservations hold, and what is committed is kept, %v to %v", benchTTLMin, benchTTLMax))
	flags.IntVar(&f.bytes, "response-bytes", 100, fmt.Sprintf("how large a response is committed, 0 to %d", benchBytesMax))
	flags.BoolVar(&f.noProgress, "no-progress", false, "say nothing on stderr meanwhile")
	return command
}

func (f *benchFlags) check(keysLeast int) error {
	switch {
	case f.callers < 1 || f.callers > benchCallersMax:
		return usagef("--callers is %d, it must be 1 to %d", f.callers, benchCallersMax)
	case f.duration <= 0 || f.duration > benchDurationMax:
		return usagef("--duration is %v, it must be more than 0 and at most %v", f.duration, benchDurationMax)
	case f.count < 1 || f.count > benchCountMax:
		return usagef("--count is %d, it must be 1 to %d", f.count, benchCountMax)
	case f.keys < keysLeast || f.keys > benchKeysMax:
		return usagef("--keys is %d, it must be %d to %d", f.keys, keysLeast, benchKeysMax)
	case f.ttl < benchTTLMin || f.ttl > benchTTLMax:
		return usagef("--ttl is %v, it must be %v to %v", f.ttl, benchTTLMin, benchTTLMax)
	case f.bytes < 0 || f.bytes > benchBytesMax:
		return usagef("--response-bytes is %d, it must be 0 to %d", f.bytes, benchBytesMax)
	}
	return nil
}

// benchJob is what a caller does again and again. It notes what it has done.
type benchJob func(ctx context.Context) error
