package overload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

var dir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if dir, err = os.MkdirTemp("", "overload-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return m.Run()
}

var build = sync.OnceValues(func() (process.Programs, error) { return process.Build(dir) })

const (
	shards        = 3
	times         = 10 // as many callers as saturate the cluster
	memoryEvery   = 250 * time.Millisecond
	memoryMax     = 256 << 20 // anonymous, of one node
	memoryMaxRace = 1 << 30   // what the race detector keeps beside it is several times as large
	askedAgainMax = 2000      // keys
)

// size is how much is tried, and how strictly it is judged.
type size struct {
	step     time.Duration // of the search for the peak
	first    int           // callers, in the first step
	last     int           // callers, in the last one
	length   time.Duration // of the overload
	patience time.Duration // of a caller
	share    float64       // of the peak that must be left
	calm     time.Duration // until one caller must be served as before
	sample   uint64        // one key in how many is written down
	// starved says that the machine may have other things to do. Then leaders may fall
	// silent for so long that others are elected, and how much is done while that happens is
	// not judged.
	starved bool
}

func sizes() size {
	if os.Getenv("COORDINATOR_FAULT") != "" {
		return size{
			step: 5 * time.Second, first: 8, last: 512, length: time.Minute, patience: 2 * time.Second,
			share: 0.8, calm: 5 * time.Second, sample: 4,
		}
	}
	return size{
		step: 1500 * time.Millisecond, first: 16, last: 64, length: 10 * time.Second, patience: 5 * time.Second,
		share: 0.2, calm: 20 * time.Second, sample: 2, starved: true,
	}
}

// TestOverload: ten times the callers that saturate three nodes. As nodes come, calls wait
// and are late. With short queues most are refused; refusals take of the same processors,
// and an owner may be refused that has been admitted, so less has to be left.
func TestOverload(t *testing.T) {
	programs, err := build()
	if err != nil {
		t.Fatal(err)
	}
	size := sizes()
	short := load.Start(t, programs, 3, shards, "--mailbox-commands-max", "8", "--entry-commands-max", "16", "--proposals-max", "2")
	var plain *load.Cluster
	if !size.starved {
		plain = load.Start(t, programs, 3, shards)
	}
	// Only now: nodes that were started later would give way, too.
	if err := giveWay(); err != nil {
		t.Logf("the callers take their share of the processors from the nodes: %v", err)
	}
	t.Run("short queues", func(t *testing.T) {
		size := size
		size.share /= 2
		if refused := overload(t, short, size); refused[string(reason.Overloaded)] == 0 {
			t.Error("nothing was refused as OVERLOADED")
		}
	})
	t.Run("as it comes", func(t *testing.T) {
		if plain == nil {
			t.Skip("COORDINATOR_FAULT=1, or make overload, does this one, too")
		}
		overload(t, plain, size)
	})
}

// overload does all of it to one cluster, and returns what was refused how often.
func overload(t *testing.T, cluster *load.Cluster, size size) map[string]int64 {
	t.Helper()
	c := newCrowd(cluster, cluster.LeaderAddresses(t), size.sample, size.patience)

	c.call(t.Context(), 1, size.step) // connections are made
	alone := c.call(t.Context(), 1, size.step)
	t.Logf("1 caller: %v", alone)
	saturating, peak := c.saturate(t, size)
	before := cluster.Terms(t)
	memory := watchMemory(t, cluster.Nodes)
	crowded := c.call(t.Context(), times*saturating, size.length)
	left := time.Now()
	largest := memory.stop()
	t.Logf("%d callers: %v", times*saturating, crowded)
	calm := c.calm(t, alone.latencies, left, 2*size.calm)
	after := cluster.Terms(t)
	t.Logf("the peak is %.0f/s; %.0f %% of it were left; one caller was served as before %v after they had gone",
		peak, 100*crowded.goodput()/peak, calm.Round(time.Millisecond))
	t.Logf("refusals: %v; terms %v, then %v", c.named, before, after)

	switch elected := !slices.Equal(before, after); {
	case crowded.goodput() >= size.share*peak:
	case elected && size.starved:
		t.Logf("goodput is not judged: leaders were elected meanwhile")
	default:
		t.Errorf("goodput was %.0f/s of %.0f/s, less than %.0f %%", crowded.goodput(), peak, 100*size.share)
	}
	for _, wrong := range c.wrong {
		t.Errorf("refused as nobody may be: %s", wrong)
	}
	if calm > size.calm {
		t.Errorf("one caller was served as before only %v after they had gone", calm)
	}
	judgeMemory(t, largest)
	c.askAgain(t)
	c.judge(t)
	return c.named
}

// saturate returns the fewest callers with which nearly as much is done as with any number
// of them, and how much that is at most.
func (c *crowd) saturate(t *testing.T, size size) (callers int, peak float64) {
	t.Helper()
	var done []float64
	for callers := size.first; callers <= size.last; callers *= 2 {
		r := c.call(t.Context(), callers, size.step)
		t.Logf("%d callers: %v", callers, r)
		done = append(done, r.goodput())
	}
	peak = slices.Max(done)
	callers = size.first
	for _, goodput := range done {
		if goodput >= 0.9*peak {
			break
		}
		callers *= 2
	}
	return callers, peak
}

// calmCalls is how many calls in a row must be as fast as before.
const calmCalls = 20

// calm has one caller at work until it is served as before, and returns when the first call
// of those was made, or when it gave up.
func (c *crowd) calm(t *testing.T, before load.Latencies, since time.Time, within time.Duration) time.Duration {
	t.Helper()
	usual := 2*before.Median() + 5*time.Millisecond
	random := rand.New(rand.NewPCG(1, 2))
	var lately load.Latencies
	var began []time.Duration
	for time.Since(since) < within {
		sent := time.Now()
		took := c.patience
		if c.once(t.Context(), random, 0, c.keys.Add(shared)|1) == committed { // a key of its own
			took = time.Since(sent)
		}
		lately, began = append(lately, took), append(began, sent.Sub(since))
		if n := len(lately); n >= calmCalls && lately[n-calmCalls:].Median() <= usual {
			return began[n-calmCalls]
		}
	}
	return time.Since(since)
}

// memories are the largest that each node had, in the two halves of a time.
type memories struct {
	quit   chan struct{}
	done   chan struct{}
	first  []int64
	second []int64
	err    error
}

// watchMemory looks at the memory of nodes until it is stopped.
func watchMemory(t *testing.T, nodes []*process.Node) *memories {
	t.Helper()
	m := &memories{quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		var seen [][]int64
		for more := true; more; {
			select {
			case <-m.quit:
				more = false
			case <-time.After(memoryEvery):
			}
			of := make([]int64, len(nodes))
			for i, n := range nodes {
				memory, err := load.ReadMemory(n.PID())
				if err != nil {
					m.err = err
					return
				}
				of[i] = memory.Anonymous
			}
			seen = append(seen, of)
		}
		largest := func(of [][]int64) []int64 {
			most := make([]int64, len(nodes))
			for _, one := range of {
				for i := range most {
					most[i] = max(most[i], one[i])
				}
			}
			return most
		}
		m.first, m.second = largest(seen[:len(seen)/2]), largest(seen[len(seen)/2:])
	}()
	return m
}

func (m *memories) stop() *memories {
	close(m.quit)
	<-m.done
	return m
}

func judgeMemory(t *testing.T, m *memories) {
	t.Helper()
	if errors.Is(m.err, fs.ErrNotExist) {
		t.Log("this system does not say how much memory a process has")
		return
	}
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Logf("memory: at most %d MiB in the first half, %d MiB in the second", mebibytes(m.first), mebibytes(m.second))
	bound := int64(memoryMax)
	if raceDetector() {
		bound = memoryMaxRace
	}
	for i := range m.first {
		if most := max(m.first[i], m.second[i]); most > bound {
			t.Errorf("node %d had %d MiB, the bound is %d MiB", i+1, most>>20, bound>>20)
		}
		if m.second[i] > m.first[i]*3/2+64<<20 {
			t.Errorf("the memory of node %d grows: %d MiB and then %d MiB", i+1, m.first[i]>>20, m.second[i]>>20)
		}
	}
}

func mebibytes(of []int64) []int64 {
	var rounded []int64
	for _, bytes := range of {
		rounded = append(rounded, bytes>>20)
	}
	return rounded
}

// raceDetector says whether this program, and so the nodes, have the race detector.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// askAgain asks for keys whose commit was acknowledged: each must be replayed.
func (c *crowd) askAgain(t *testing.T) {
	t.Helper()
	keys := c.done
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	keys = keys[:min(len(keys), askedAgainMax)]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var lost atomic.Int64
	var work sync.WaitGroup
	var next atomic.Int64
	for caller := range 16 {
		random := rand.New(rand.NewPCG(3, uint64(caller)))
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(keys)); i = next.Add(1) - 1 {
				id := c.identity(keys[i])
				answer, err := c.reserve(ctx, random, caller, id, load.AttemptID(), true)
				if answer.GetCommitted() == nil {
					lost.Add(1)
					t.Errorf("%s was committed, and is answered %v, %v", id.GetKey(), answer, err)
				}
			}
		})
	}
	work.Wait()
	t.Logf("%d of the committed keys asked for again, %d lost", len(keys), lost.Load())
	if len(keys) == 0 {
		t.Error("nothing was committed")
	}
}

// judge has the histories of the sample judged.
func (c *crowd) judge(t *testing.T) {
	t.Helper()
	events := c.log.Events()
	// What an attempt was granted already is told again: it was given at its first
	// delivery or later.
	first := make(map[history.Attempt]time.Duration)
	for _, e := range events {
		if sent, ok := first[e.Attempt]; !ok || e.Sent < sent {
			first[e.Attempt] = e.Sent
		}
	}
	for i := range events {
		if e := &events[i]; e.Kind == history.Granted && e.Repeated {
			e.Sent = first[e.Attempt]
		}
	}
	violations := linearizability.CheckAll(events)
	byKind, unknown := history.Count(events)
	t.Logf("%d events judged, %v and %d unknown: %d violations", len(events), byKind, unknown, len(violations))
	for _, violation := range violations[:min(len(violations), 10)] {
		t.Error(violation)
	}
}
