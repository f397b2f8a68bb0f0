package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/reason"
)

// benchOperation begins the operation that the keys of a benchmark are under.
const benchOperation = "coordctl bench "

// What a benchmark counts, in the order in which it is shown.
const (
	benchPair    = "pair"
	benchReserve = "reserve"
	benchCommit  = "commit"
	benchRefused = "refused" // committed or pending, and answered so
)

var benchCalls = []string{benchPair, benchReserve, benchCommit, benchRefused}

// benchRun is one run of a benchmark. Its callers share it.
type benchRun struct {
	*control
	name     string
	flags    *benchFlags
	words    *runner // what failures are called
	client   *client.Client
	identity client.Identity // without a key
	options  []client.ReserveOption
	response client.Response

	begun atomic.Int64 // jobs
	taken map[string]*histogram

	mu     sync.Mutex
	failed map[string]uint64 // by reason
	first  error             // of the failures, a breach before all others
	exit   int               // of the failures: their own where they are of one kind
}

func (c *control) newBenchRun(name string, f *benchFlags, options []client.DialOption) (*benchRun, error) {
	b := &benchRun{
		control: c, name: name, flags: f, words: &runner{control: c},
		identity: client.Identity{Namespace: f.namespace, Principal: "coordctl", Operation: benchOperation + rand.Text()},
		options:  []client.ReserveOption{client.WithPendingTTL(f.ttl), client.WithRetention(f.ttl), client.WithOwner("coordctl bench")},
		response: client.Response{ContentType: "text/plain", Body: []byte(strings.Repeat("b", f.bytes))},
		taken:    make(map[string]*histogram), failed: make(map[string]uint64),
	}
	for _, call := range benchCalls {
		b.taken[call] = &histogram{}
	}
	made, err := c.newClient(append(options, client.WithCallTimeout(c.timeout))...)
	if err != nil {
		return nil, err
	}
	b.client = made
	return b, nil
}

func (b *benchRun) close() { _ = b.client.Close() }

// key returns the key of the next job.
func (b *benchRun) key() client.Identity {
	id := b.identity
	if b.flags.keys == 0 {
		id.Key = rand.Text()
	} else {
		id.Key = numbered(mathrand.IntN(b.flags.keys)) //nolint:gosec // which one need not be unguessable
	}
	return id
}

func numbered(i int) string { return fmt.Sprint("key-", i) }

// pair reserves and commits. Where callers meet, being refused is an answer too.
func (b *benchRun) pair(ctx context.Context) error {
	began := time.Now()
	reservation, err := b.client.Reserve(ctx, b.key(), b.options...)
	reserved := time.Now()
	switch {
	case b.flags.keys > 0 && (errors.Is(err, client.ErrCommitted) || errors.Is(err, client.ErrPending)):
		b.taken[benchRefused].add(reserved.Sub(began))
		return nil
	case err != nil:
		return err
	}
	b.taken[benchReserve].add(reserved.Sub(began))
	if err := reservation.Commit(ctx, b.response); err != nil {
		return err
	}
	done := time.Now()
	b.taken[benchCommit].add(done.Sub(reserved))
	b.taken[benchPair].add(done.Sub(began))
	return nil
}

// errGranted reports a key that is committed and was given out again, or forgotten.
var errGranted = errors.New("a key that was committed is granted again")

// admittedTwice is the reason of errGranted: no server gives it.
const admittedTwice = "ADMITTED_TWICE"

// duplicate reserves a key that is committed. That another attempt has it, or had it, is as
// bad as to get it.
func (b *benchRun) duplicate(ctx context.Context) error {
	began := time.Now()
	id := b.key()
	_, err := b.client.Reserve(ctx, id, b.options...)
	switch {
	case err == nil || errors.Is(err, client.ErrPending) || errors.Is(err, client.ErrInDoubt):
		return fmt.Errorf("%w: %s", errGranted, id.Key)
	case !errors.Is(err, client.ErrCommitted):
		return err
	}
	b.taken[benchRefused].add(time.Since(began))
	return nil
}

// retentionMax is the longest time that a record may be kept.
const retentionMax = 30 * 24 * time.Hour

// commitAll commits the keys of a storm, for longer than the storm and its last call take. It
// ends with the context, and the calls that are under way then are given up: nobody else
// asks for their keys.
func (b *benchRun) commitAll(ctx context.Context) error {
	least := b.flags.ttl + b.flags.duration + time.Minute
	keep := client.WithRetention(least + min(b.timeout, retentionMax-least))
	var committed atomic.Int64
	err := b.each(ctx, int64(b.flags.keys), func(ctx context.Context, i int64) error {
		id := b.identity
		id.Key = numbered(int(i))
		reservation, err := b.client.Reserve(ctx, id, append(b.options[:len(b.options):len(b.options)], keep)...)
		if err == nil {
			err = reservation.Commit(ctx, b.response)
		}
		if err == nil {
			committed.Add(1)
		}
		return err
	})
	if err == nil {
		return nil
	}
	sofar := fmt.Sprintf("when %d of %d keys were committed", committed.Load(), b.flags.keys)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return localError{err: fmt.Errorf("interrupted %s", sofar)}
	case errors.Is(err, context.DeadlineExceeded):
		text := fmt.Sprintf("the time of --duration (%v) was over %s", b.flags.duration, sofar)
		if failure := b.words.failure(err); failure.Code == codes.Unavailable {
			text += ": " + failure.Message
		}
		return localError{err: errors.New(text)}
	}
	failure := b.words.failure(err)
	failure.Message += ", " + sofar
	return callError{failure: failure, told: true}
}

// each does something so many times, shared by the callers, until it fails or the context
// ends.
func (b *benchRun) each(ctx context.Context, times int64, do func(context.Context, int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var work sync.WaitGroup
	for range b.flags.callers {
		work.Go(func() {
			for i := next.Add(1) - 1; i < times && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// run lets the callers work and shows what came of it. All of it, what is committed first
// included, ends by the duration.
func (b *benchRun) run(ctx context.Context, job benchJob, prepares bool) error {
	ends, stop := context.WithTimeout(ctx, b.flags.duration)
	defer stop()
	if prepares {
		if err := b.commitAll(ends); err != nil {
			return err
		}
	}
	// A call that has begun is not cut off: its caller would not know what it came to.
	// It has the time that every call has.
	calls, hurry := context.WithCancel(context.WithoutCancel(ctx))
	defer hurry()
	began := time.Now()
	var work sync.WaitGroup
	for range b.flags.callers {
		work.Go(func() {
			for ends.Err() == nil && b.begun.Add(1) <= b.flags.count {
				err := job(calls)
				if err != nil {
					b.fail(err)
				}
				if errors.Is(err, errGranted) {
					stop() // nothing is worth measuring any more
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	b.watch(ends, done, began)
	late := time.AfterFunc(b.timeout, hurry)
	<-done
	late.Stop()
	return b.showResult(time.Since(began), ctx.Err() != nil)
}

// watch says every second how far it is, until the callers have ended or should.
func (b *benchRun) watch(ends context.Context, done <-chan struct{}, began time.Time) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	before := uint64(0)
	for {
		select {
		case <-done:
			return
		case <-ends.Done():
			return
		case <-ticks.C:
			if b.flags.noProgress {
				continue
			}
			total := b.taken[benchPair].count() + b.taken[benchRefused].count()
			line := fmt.Sprintf("%4.0fs  %d done, %d in the last second, %d failed", time.Since(began).Seconds(), total, total-before, b.failures())
			if b.output == "json" {
				b.note(line)
			} else {
				b.say(line + "\n")
			}
			before = total
		}
	}
}

func (b *benchRun) fail(err error) {
	failure := b.failure(err)
	name := cmp.Or(string(failure.Reason), reason.CodeName(failure.Code))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[name]++
	if b.first == nil || errors.Is(err, errGranted) && !errors.Is(b.first, errGranted) {
		b.first = err
	}
	if b.exit = cmp.Or(b.exit, failure.ExitCode); b.exit != failure.ExitCode {
		b.exit = reason.ExitFailure
	}
}

// failure is what a failed job is called.
func (b *benchRun) failure(err error) reason.Failure {
	if errors.Is(err, errGranted) {
		return reason.Failure{
			Reason: admittedTwice, Code: codes.DataLoss, ExitCode: reason.ExitFailure, Applied: reason.No,
			Message: fmt.Sprintf("the coordinator broke its promise never to admit twice: %v, under operation %q. "+
				"Unless somebody has purged it meanwhile: stop the nodes, keep their data directories, and report it", err, b.identity.Operation),
		}
	}
	return b.words.failure(err)
}

func (b *benchRun) failures() (total uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, count := range b.failed {
		total += count
	}
	return total
}

// benchJSON is the result of a benchmark.
type benchJSON struct {
	Benchmark   string           `json:"benchmark"`
	Namespace   string           `json:"namespace"`
	Operation   string           `json:"operation"`
	Callers     int              `json:"callers"`
	Took        string           `json:"took"`
	Interrupted bool             `json:"interrupted"`
	Calls       []benchCallJSON  `json:"calls"`
	Errors      []benchErrorJSON `json:"errors"`
}

type benchCallJSON struct {
	Call      string  `json:"call"`
	Count     uint64  `json:"count"`
	PerSecond float64 `json:"per_second"`
	P50       string  `json:"p50"`
	P95       string  `json:"p95"`
	P99       string  `json:"p99"`
	Max       string  `json:"max"`
}

type benchErrorJSON struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
}

// showResult shows what was done, and fails where something has failed: it says so behind
// the result, or instead of one where nobody was reached.
func (b *benchRun) showResult(took time.Duration, interrupted bool) error {
	shown := benchJSON{
		Benchmark: b.name, Namespace: cmp.Or(b.identity.Namespace, "default"), Operation: b.identity.Operation,
		Callers: b.flags.callers, Took: took.Round(time.Millisecond).String(), Interrupted: interrupted,
		Calls: []benchCallJSON{}, Errors: []benchErrorJSON{},
	}
	var rows [][]string
	for _, call := range benchCalls {
		h := b.taken[call]
		count := h.count()
		if count == 0 {
			continue
		}
		one := benchCallJSON{
			Call: call, Count: count, PerSecond: float64(count) / took.Seconds(),
			P50: h.quantile(0.5).String(), P95: h.quantile(0.95).String(), P99: h.quantile(0.99).String(), Max: h.quantile(1).String(),
		}
		shown.Calls = append(shown.Calls, one)
		rows = append(rows, []string{one.Call, fmt.Sprint(one.Count), fmt.Sprintf("%.0f", one.PerSecond), brief(one.P50), brief(one.P95), brief(one.P99), brief(one.Max)})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(shown.Calls) > 0 || b.first != nil && b.contacts.any():
	case b.first != nil:
		return callError{failure: b.failure(b.first), exit: b.exit, told: true}
	case interrupted:
		return localError{err: errors.New("interrupted before anything was done")}
	default:
		return localError{err: fmt.Errorf("the time of --duration (%v) was over before anything was measured", b.flags.duration)}
	}
	var (
		failures [][]string
		failed   uint64
	)
	for _, name := range slices.Sorted(maps.Keys(b.failed)) {
		shown.Errors = append(shown.Errors, benchErrorJSON{name, b.failed[name]})
		failures = append(failures, []string{name, fmt.Sprint(b.failed[name])})
		failed += b.failed[name]
	}
	var err error
	if len(rows) > 0 || b.output == "json" {
		err = b.showTable(shown, []string{"CALL", "COUNT", "A SECOND", "P50", "P95", "P99", "MAX"}, rows)
	}
	if err == nil && failed > 0 && b.output != "json" {
		err = b.wrote(writeTable(b.stdout, []string{"FAILED", "COUNT"}, failures))
	}
	if err != nil || failed == 0 {
		return err
	}
	failure := b.failure(b.first)
	if failure.Reason != admittedTwice {
		failure.Message = fmt.Sprintf("%d of %d failed, the first of them so: %s", failed, min(b.begun.Load(), b.flags.count), failure.Message)
	}
	return callError{failure: failure, exit: b.exit, told: true}
}
