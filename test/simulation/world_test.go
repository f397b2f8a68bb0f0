package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/test/cluster"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
)

// world is a cluster, its callers and who watches them, for some hours.
type world struct {
	t      *testing.T
	c      *cluster.Cluster
	seed   uint64
	shards int
	began  time.Time
	ctx    context.Context // ends with the world
	end    context.CancelFunc

	book     *book
	watcher  *watcher
	effects  *effects
	programs []*client.Client
	log      *tail

	work       sync.WaitGroup // all that calls
	long       sync.WaitGroup // those that outlast their hour
	callers    int
	operations atomic.Int64 // of the programs
	slowest    atomic.Int64 // how long anything may take over a link at most

	kept    map[string][]uint64      // by node, the entries that were applied when its state was set aside
	away    map[string]time.Duration // by node, until when it stays away
	rewind  map[string]bool          // by node, whether it is to find an older state
	rewound int
	fences  map[int]uint64 // by shard, the highest of the hours before

	mu         sync.Mutex
	story      []string // what befell the cluster, this hour
	violations []string
	undecided  int // keys whose calls are too many to be put in order
}

// tail keeps the end of what the nodes log.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailMost = 4000

// Write implements [io.Writer].
func (l *tail) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= tailMost {
		l.lines = append(l.lines[:0], l.lines[tailMost/2:]...)
	}
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}

// newWorld starts a cluster in the bubble that it is called in.
func newWorld(t *testing.T, seed uint64, dir string) *world {
	random := rand.New(rand.NewPCG(seed, 1<<32))
	w := &world{
		t: t, seed: seed, shards: one(random, 1, 1, 2, 3), began: time.Now(), log: &tail{},
		book: newBook(), effects: newEffects(),
		kept: map[string][]uint64{}, away: map[string]time.Duration{}, rewind: map[string]bool{}, fences: map[int]uint64{},
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	w.watcher = newWatcher(w.shards)
	w.c = cluster.Start(t, cluster.Options{Dir: dir, Change: func(c *node.Config) {
		c.Shards = w.shards
		c.FreeBytesMin = 0
		c.Logger = slog.New(slog.NewTextHandler(w.log, nil)).With("node", c.NodeID)
	}})
	w.c.Network.Seed(seed)
	w.calm()
	w.programs = w.dialPrograms()
	return w
}

// now is the true time.
func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) service(name string) coordinatorv1.CoordinatorServiceClient {
	return coordinatorv1.NewCoordinatorServiceClient(w.c.Conn(name))
}

func (w *world) trace(format string, arguments ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf(format, arguments...))
}

func (w *world) violation(format string, arguments ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, arguments...))
}

// figures is what an hour came to.
type figures struct {
	operations, faults, elections, acts, rewound, installed int
	violations, undecided                                   int
	took                                                    time.Duration // real time
}

func (f *figures) add(o figures) {
	f.operations += o.operations
	f.faults += o.faults
	f.elections += o.elections
	f.acts += o.acts
	f.rewound += o.rewound
	f.installed += o.installed
	f.violations += o.violations
	f.undecided += o.undecided
	f.took += o.took
}

// counts reports whether it was a busy hour that was judged to the end.
func (f *figures) counts() bool {
	return f.undecided == 0 && f.operations >= operationsLeast && f.faults >= faultsLeast && f.elections >= electionsLeast
}

// String shows the figures in one line.
func (f figures) String() string {
	return fmt.Sprintf("operations %d, elections %d, faults %d (states rewound %d, snapshots sent %d), acts of owners %d, undecided %d, violations %d, in %.1f s",
		f.operations, f.elections, f.faults, f.rewound, f.installed, f.acts, f.undecided, f.violations, f.took.Seconds())
}

// realTime reads the clock outside of the bubble.
func realTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return time.Duration(at.Nano())
}

// hour lives through an hour and judges it.
func (w *world) hour(number int) figures {
	w.t.Helper()
	began, real := w.now(), realTime()
	before := figures{
		operations: w.book.operations() + int(w.operations.Load()), elections: w.watcher.elections(), acts: w.effects.actions, rewound: w.rewound,
		installed: w.watcher.snapshots(),
	}
	p := planHour(w.seed, number, w.shards)
	w.slowest.Store(0)
	w.calm()
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(stop) })
	unwatch := sync.OnceFunc(func() {
		close(stop)
		watching.Wait()
	})
	defer unwatch() // for a test that ends in the middle
	w.call(p, began)
	var f figures
	for _, s := range p.Steps {
		time.Sleep(began + s.At - w.now())
		if w.do(s) {
			f.faults++
		}
	}
	time.Sleep(began + hourLength - 3*time.Minute - w.now())
	w.mend()
	w.work.Wait()
	w.readBack(number)
	time.Sleep(began + hourLength - w.now())
	w.c.Agree()
	unwatch()

	f.operations = w.book.operations() + int(w.operations.Load()) - before.operations
	f.elections = w.watcher.elections() - before.elections
	f.acts, f.rewound = w.effects.actions-before.acts, w.rewound-before.rewound
	f.installed = w.watcher.snapshots() - before.installed
	keys := w.book.take(isLong)
	w.grow(keys)
	w.undecided = 0
	w.judge(keys)
	f.undecided = w.undecided
	f.violations = len(w.violations)
	f.took = realTime() - real
	w.tell(fmt.Sprintf("hour %d", number))
	return f
}

// call starts all who call in an hour.
func (w *world) call(p plan, began time.Duration) {
	for _, plan := range p.Callers {
		w.callers++
		c := &caller{w: w, plan: plan, random: rand.New(rand.NewPCG(plan.Seed, 0)), who: fmt.Sprintf("caller %d", w.callers)}
		w.work.Go(func() {
			time.Sleep(began + plan.At - w.now())
			c.run()
		})
	}
	for _, plan := range p.Owners {
		w.callers++
		number := w.callers
		w.work.Go(func() {
			time.Sleep(began + plan.At - w.now())
			w.program(plan, number)
		})
	}
	for _, plan := range p.Long {
		w.callers++
		number := w.callers
		w.long.Go(func() {
			if sleep(w.ctx, began+plan.At-w.now()) {
				w.reserveLong(plan, number)
			}
		})
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// readBack looks at every key of the hour once more.
func (w *world) readBack(number int) {
	keys := map[string]bool{}
	w.book.mu.Lock()
	for key := range w.book.keys {
		keys[key] = true
	}
	w.book.mu.Unlock()
	for key := range keys {
		c := &caller{w: w, plan: callerPlan{Key: key}, who: "reader", random: rand.New(rand.NewPCG(w.seed, uint64(number)))}
		c.get()
	}
}

// judge checks what callers of some keys were told.
func (w *world) judge(keys map[string][]told) {
	var events []history.Event
	for _, all := range keys {
		for _, t := range all {
			if e, ok := t.event(w.shards); ok {
				events = append(events, e)
			}
		}
	}
	for _, v := range linearizability.Check(events, linearizability.Options{Lateness: w.lateness}) {
		text := v.String()
		for key, all := range keys {
			if regexp.MustCompile(`\b` + regexp.QuoteMeta(key) + `\b`).MatchString(v.Text) {
				text += lines(all)
			}
		}
		if v.Rule == linearizability.Undecided {
			w.undecided++
			fmt.Println(text)
			continue
		}
		w.violation("%s", text)
	}
	for _, text := range judge(keys, w.allowed, 4*time.Duration(w.slowest.Load())) {
		w.violation("%s", text)
	}
}

// grow checks that the fences of an hour are larger than all before, and notes them.
func (w *world) grow(keys map[string][]told) {
	highest := maps.Clone(w.fences)
	for key, all := range keys {
		shard := shardOf(key, w.shards)
		for _, t := range all {
			if t.call != reserveCall || t.outcome != "granted" {
				continue
			}
			if t.fence <= w.fences[shard] {
				w.violation("a fence of an earlier hour, which had reached %d: %v", w.fences[shard], t)
			}
			highest[shard] = max(highest[shard], t.fence)
		}
	}
	w.fences = highest
}

// lateness is allowed for whatever began and ended then.
func (w *world) lateness(shard int, from, until time.Duration) time.Duration {
	return w.watcher.allowed(shard, until-from, from, until)
}

// allowed is how late a key's window may end.
func (w *world) allowed(key string, length, from, to time.Duration) time.Duration {
	return w.watcher.allowed(shardOf(key, w.shards), length, from, to)
}

// tell fails the test and tells what happened, if anything is wrong.
func (w *world) tell(when string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.violations) > 0 || w.t.Failed() {
		log := "it could not be kept"
		if file, err := os.CreateTemp("", "simulation-*.log"); err == nil {
			_, failed := file.WriteString(w.log.String())
			if errors.Join(failed, file.Close()) == nil {
				log = file.Name()
			}
		}
		w.t.Errorf("seed %d, %s:\n%s\nwhat befell the cluster:\n%s\nthe end of the nodes' log: %s", w.seed, when,
			strings.Join(w.violations, "\n"), strings.Join(w.story, "\n"), log)
	}
	if *storyFlag {
		fmt.Println(strings.Join(w.story, "\n"))
	}
	w.violations, w.story = nil, nil
}

// close ends the world, and judges what has outlasted its hour: it returns what that came
// to.
func (w *world) close() figures {
	w.t.Helper()
	w.end()
	w.long.Wait()
	w.work.Wait() // what long callers have begun
	for _, c := range w.programs {
		_ = c.Close()
	}
	w.undecided = 0
	w.judge(w.book.take(func(string) bool { return false }))
	f := figures{violations: len(w.violations), undecided: w.undecided}
	w.tell("reservations that outlast their hour")
	return f
}
