package scale

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
)

var (
	recordsFlag = flag.Int("records", 0, "TestGrowth: how many records the one cluster has; 0: a few, which measures nothing")
	roundsFlag  = flag.Int("rounds", 5, "TestGrowth, with -records: how often each cluster takes each of its turns")
	turnFlag    = flag.Duration("turn", 3*time.Second, "TestGrowth, with -records: how long a turn lasts; its first fifth is not counted")
	steadyFlag  = flag.Bool("steady", false, "TestGrowth: deadlines as in a cluster that has had such records for more than a day, in place of records that are all new")
)

// The goals of growth.
const (
	throughputFloor = 0.8 // of what there is without records
	throughputGoal  = 0.9
	memoryMax       = 64 // bytes a record, beside the mapped file
)

const (
	openWithin = 5 * time.Minute
	pairWithin = 20 * time.Second
)

// growth is how much is tried.
type growth struct {
	full    bool // say whether the goals are met
	records int
	rounds  int
	callers []int
	turn    time.Duration
	steady  bool
}

func growthTried() growth {
	if *recordsFlag > 0 {
		return growth{full: true, records: *recordsFlag, rounds: *roundsFlag, callers: []int{64, 256}, turn: *turnFlag, steady: *steadyFlag}
	}
	return growth{records: 20_000, rounds: 1, callers: []int{16}, turn: 2 * time.Second, steady: *steadyFlag}
}

// TestGrowth measures three nodes that have many records beside three that have none:
// pairs of Reserve and Commit, turn by turn; memory; and how long opening takes. Both
// clusters have the default settings. Records end all the while.
func TestGrowth(t *testing.T) {
	g := growthTried()
	built := programs(t)
	none := &side{name: "none", cluster: load.Start(t, built, 3, shards)}
	many := &side{name: fmt.Sprint(g.records), cluster: load.Start(t, built, 3, shards)}

	began := time.Now()
	d := &deposit{records: g.records, steady: g.steady}
	d.put(t, many.cluster)
	deposited := time.Since(began)
	putDown(t, none.cluster)

	many.open(t)
	d.check(t, many.cluster, many.opened.Add(-many.grants))
	none.open(t)
	for _, s := range []*side{many, none} {
		s.cluster.Spread(t)
		s.dial(t)
		s.look(t, "opened")
	}

	if g.full && !g.steady {
		time.Sleep(time.Until(many.opened.Add(windowMin))) // from then on records end
	}
	// The first turns are not counted: what happens once happens in them.
	for _, w := range ways {
		for _, s := range []*side{many, none} {
			s.take(t, w, g.callers[0], g.turn/2, nil)
		}
	}
	for _, s := range []*side{many, none} {
		s.terms = s.cluster.Terms(t)
	}
	taken := make(map[cell][]turn)
	for round := range g.rounds {
		for i := range len(ways) * len(g.callers) {
			i = (i + round) % (len(ways) * len(g.callers))
			w, callers := ways[i%len(ways)], g.callers[i/len(ways)]
			order := []*side{many, none}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for j, s := range order {
				at := cell{side: s.name, way: w.name, callers: callers}
				taken[at] = append(taken[at], s.take(t, w, callers, g.turn, order[1-j]))
			}
		}
	}
	for _, s := range []*side{many, none} {
		s.look(t, "after the turns")
	}
	g.report(t, os.Stdout, none, many, taken, deposited)
	first, last := many.looks[0], many.looks[len(many.looks)-1]
	ended := first.records + last.pairs - first.pairs - last.records + last.lapsed - first.lapsed
	fmt.Printf("- ended from the one to the other: %d records; %d were due\n", ended, d.due(last.at.Sub(many.opened))-d.due(first.at.Sub(many.opened)))
}

// side is one of the clusters.
type side struct {
	name    string
	cluster *load.Cluster
	client  *client.Client // with sessions
	leaders []string       // by shard

	opened time.Time       // when every shard granted
	read   []time.Duration // by node: the state file that took longest, as the node says
	served []time.Duration // by node: from its start until it knew all leaders
	grants time.Duration   // until every shard had granted a Reserve
	looks  []look
	pairs  atomic.Uint64 // reserved and committed so far
	failed []error       // of pairs
	terms  []uint64      // by shard, before the turns
}

// look is what is seen of a side at one moment.
type look struct {
	when      string
	at        time.Time
	anonymous []int64 // by node, in bytes; nil where that is not known
	mapped    []int64
	records   uint64
	lapsed    uint64 // of these
	pairs     uint64 // of these, or ended since
	states    uint64 // bytes of the state files of one node
	bytes     int64  // of the three data directories
}

// open starts the nodes, all at the same time.
func (s *side) open(t *testing.T) {
	t.Helper()
	began := time.Now()
	s.served = make([]time.Duration, len(s.cluster.Nodes))
	failures := make([]error, len(s.cluster.Nodes))
	var work sync.WaitGroup
	for i, n := range s.cluster.Nodes {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			failures[i] = n.Serving(openWithin)
			s.served[i] = time.Since(began)
		})
	}
	work.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	s.opened = slices.MaxFunc(s.cluster.AwaitServing(t, openWithin), time.Time.Compare)
	s.grants = s.opened.Sub(began)
	for _, n := range s.cluster.Nodes {
		s.read = append(s.read, readLongest(n.Output()))
	}
}

// readLongest returns how long the reading of a state file took at most, by what a node
// has printed.
func readLongest(output string) (longest time.Duration) {
	for line := range strings.Lines(output) {
		var said struct{ Msg, Took string }
		if json.Unmarshal([]byte(line), &said) != nil || said.Msg != "read the state file" {
			continue
		}
		if took, err := time.ParseDuration(said.Took); err == nil {
			longest = max(longest, took)
		}
	}
	return longest
}

func (s *side) dial(t *testing.T) {
	t.Helper()
	shared, err := client.Dial(s.cluster.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Close() })
	s.client = shared
}

func (s *side) look(t *testing.T, when string) {
	t.Helper()
	l := look{when: when, at: time.Now(), pairs: s.pairs.Load()}
	for _, n := range s.cluster.Nodes {
		memory, err := load.ReadMemory(n.PID())
		if err != nil {
			t.Logf("memory is not known here: %v", err)
			break
		}
		l.anonymous, l.mapped = append(l.anonymous, memory.Anonymous), append(l.mapped, memory.Mapped)
	}
	for _, shard := range s.cluster.List(t) {
		l.records += recordsOf(shard)
		l.lapsed += shard.GetRecords().GetLapsed()
		l.states += shard.GetStateFileBytes()
	}
	for _, n := range s.cluster.Nodes {
		err := filepath.WalkDir(n.Dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return nil //nolint:nilerr // a segment that has been cut off meanwhile
			}
			if info, err := entry.Info(); err == nil {
				l.bytes += info.Size()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.looks = append(s.looks, l)
}

// used is the processor time of the nodes, 0 where that is not known.
func (s *side) used() (total time.Duration) {
	for _, n := range s.cluster.Nodes {
		if cpu, err := load.ReadCPU(n.PID()); err == nil {
			total += cpu
		}
	}
	return total
}

// way is one to reserve a new key and commit 100 bytes.
type way struct {
	name string
	pair func(ctx context.Context, s *side, caller int) error
}

var ways = []way{
	{"a call each", func(ctx context.Context, s *side, caller int) error {
		id := &coordinatorv1.Identity{Principal: "token-7f3a", Operation: "POST /v1/orders", Key: rand.Text()}
		service := s.cluster.Service(s.leaders[s.cluster.ShardOf(id)], caller)
		answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: id, AttemptId: load.AttemptID()})
		if err != nil {
			return err
		}
		_, err = service.Commit(ctx, &coordinatorv1.CommitRequest{
			Identity: id, Token: answer.GetGranted().GetToken(), Response: &coordinatorv1.Response{Code: 201, Body: depositBody},
		})
		return err
	}},
	{"Go client", func(ctx context.Context, s *side, _ int) error {
		owned, err := s.client.Reserve(ctx, client.Identity{Principal: "token-7f3a", Operation: "POST /v1/orders", Key: rand.Text()})
		if err != nil {
			return err
		}
		return owned.Commit(ctx, client.Response{Code: 201, Body: depositBody})
	}},
}

// cell is what is measured again in each round.
type cell struct {
	side, way string
	callers   int
}

// turn is what came of one turn.
type turn struct {
	rate     float64 // pairs a second
	p50, p99 time.Duration
	servers  time.Duration // processor time of the nodes for a pair
	// beside is how much of one core the nodes of the other side used meanwhile, which had
	// nobody to serve: it is what this turn did not have.
	beside float64
}

// take has callers do one pair after another. A caller goes on after a pair that failed,
// such as during an election, and ends with the tenth. Without another side it is a turn
// that is not counted.
func (s *side) take(t *testing.T, w way, callers int, lasts time.Duration, other *side) turn {
	t.Helper()
	s.cluster.Spread(t) // after an election another node would have more to do
	s.leaders = s.cluster.LeaderAddresses(t)
	ctx, cancel := context.WithTimeout(t.Context(), lasts+pairWithin)
	defer cancel()
	began := time.Now()
	counted, ends := began.Add(lasts/5), began.Add(lasts)
	var servers, beside time.Duration
	var mu sync.Mutex
	var all load.Latencies
	var work sync.WaitGroup
	work.Go(func() {
		for _, at := range []time.Time{counted, ends} {
			time.Sleep(time.Until(at))
			servers = s.used() - servers
			if other != nil {
				beside = other.used() - beside
			}
		}
	})
	for caller := range callers {
		work.Go(func() {
			var mine load.Latencies
			var failed []error
			for at := time.Now(); at.Before(ends) && len(failed) < 10; {
				err := w.pair(ctx, s, caller)
				ended := time.Now()
				switch {
				case err != nil:
					failed = append(failed, err)
				case at.After(counted) && ended.Before(ends):
					mine = append(mine, ended.Sub(at))
				}
				if err == nil {
					s.pairs.Add(1)
				}
				at = ended
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			s.failed = append(s.failed, failed...)
		})
	}
	work.Wait()
	switch {
	case other == nil:
		return turn{} // it is not counted
	case len(all) == 0:
		t.Fatalf("%s records, %s, %d callers: no pair in %v", s.name, w.name, callers, lasts)
	}
	measured := ends.Sub(counted).Seconds()
	return turn{
		rate: float64(len(all)) / measured, p50: all.Median(), p99: all.Quantile(0.99),
		servers: servers / time.Duration(len(all)), beside: beside.Seconds() / measured,
	}
}

// report prints what was measured, as Markdown. That a goal is missed fails nothing: the
// machine may be a bad one.
func (g growth) report(t *testing.T, out io.Writer, none, many *side, taken map[cell][]turn, deposited time.Duration) {
	t.Helper()
	deadlines := "all new, their windows log-uniform from 1 min to 24 h"
	if g.steady {
		deadlines = "of all ages, their windows log-uniform from 1 min to 24 h when they were made"
	}
	processorCount := float64(runtime.NumCPU())
	fmt.Fprintf(out, "\n%s/%s, %d processors, %s. %d records, %s, one in %d pending, made in %v.\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), g.records, deadlines, pendingEvery, deposited.Round(time.Second))
	fmt.Fprintf(out, "%d rounds, turns of %v. Median (least–most); the ratio is of the two turns of one round. Processor time is that of the three\n"+
		"nodes for a pair; beside it, how much of a core the other cluster's nodes took meanwhile. *Of what was left* is the ratio of pairs\n"+
		"for the processors' time that this left, which would be the ratio if nothing but processors bound.\n\n", g.rounds, g.turn)
	fmt.Fprintln(out, "| callers | through | pairs a second, no records | with records | ratio | of what was left | p50, p99, no records | with records | processor time, no records | with records |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|---|---|")
	for _, callers := range g.callers {
		for _, w := range ways {
			without, with := taken[cell{none.name, w.name, callers}], taken[cell{many.name, w.name, callers}]
			var ratios, left []float64
			for i := range with {
				ratio := with[i].rate / without[i].rate
				ratios = append(ratios, ratio)
				left = append(left, ratio*(processorCount-without[i].beside)/(processorCount-with[i].beside))
			}
			fmt.Fprintf(out, "| %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", callers, w.name,
				rates(without), rates(with), g.ratio(ratios), g.ratio(left),
				times(without), times(with), processors(without), processors(with))
		}
	}
	fmt.Fprintf(out, "\n- opening, all three nodes at once: the longest of a node's state files was read in %v; each node serves after %v, every shard grants after %v; without records after %v\n",
		many.read, rounded(many.served), many.grants.Round(time.Millisecond), none.grants.Round(time.Millisecond))
	for i, with := range many.looks {
		without := none.looks[i]
		fmt.Fprintf(out, "- %s: %d records, without %d; state files of a node %.1f MiB; three data directories %.2f GB, without records %.2f GB\n",
			with.when, with.records, without.records, mebibytes(int64(with.states)), float64(with.bytes)/1e9, float64(without.bytes)/1e9)
		g.memory(out, with, without)
	}
	for _, s := range []*side{many, none} {
		if len(s.failed) > 0 {
			fmt.Fprintf(out, "- with %s records %d pairs failed, the first with: %v\n", s.name, len(s.failed), s.failed[0])
		}
		if after := s.cluster.Terms(t); !slices.Equal(s.terms, after) {
			fmt.Fprintf(out, "- there were elections among the nodes with %s records: terms were %v before the turns, and are %v\n", s.name, s.terms, after)
		}
	}
}

// memory says what a node has resident beyond one without records.
func (g growth) memory(out io.Writer, with, without look) {
	if with.anonymous == nil || without.anonymous == nil {
		return
	}
	mean := func(bytes []int64) (sum int64) {
		for _, b := range bytes {
			sum += b
		}
		return sum / int64(len(bytes))
	}
	perRecord := float64(mean(with.anonymous)-mean(without.anonymous)) / float64(g.records)
	most := float64(slices.Max(with.anonymous)-slices.Min(without.anonymous)) / float64(g.records)
	verdict := ""
	switch {
	case g.full && perRecord > memoryMax:
		verdict = fmt.Sprintf(", NOT MET: it should be at most %d", memoryMax)
	case g.full:
		verdict = ", goal met"
	}
	fmt.Fprintf(out, "- %s: anonymous memory of a node %.1f MiB, without records %.1f MiB: %.1f bytes a record more (at most %.1f)%s; mapped files %.1f MiB\n",
		with.when, mebibytes(mean(with.anonymous)), mebibytes(mean(without.anonymous)), perRecord, most, verdict, mebibytes(mean(with.mapped)))
}

// spread is the middle of some numbers, and their ends.
type spread struct{ median, least, most float64 }

func spreadOf(numbers []float64) spread {
	sorted := slices.Sorted(slices.Values(numbers))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}

// over is the spread of one figure of some turns.
func over(turns []turn, figure func(turn) float64) spread {
	var numbers []float64
	for _, one := range turns {
		numbers = append(numbers, figure(one))
	}
	return spreadOf(numbers)
}

func rates(turns []turn) string {
	s := over(turns, func(one turn) float64 { return one.rate })
	return fmt.Sprintf("%.0f (%.0f–%.0f)", s.median, s.least, s.most)
}

func times(turns []turn) string {
	middle := func(figure func(turn) time.Duration) time.Duration {
		return time.Duration(over(turns, func(one turn) float64 { return float64(figure(one)) }).median).Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("%v, %v", middle(func(one turn) time.Duration { return one.p50 }), middle(func(one turn) time.Duration { return one.p99 }))
}

func processors(turns []turn) string {
	servers := over(turns, func(one turn) float64 { return float64(one.servers.Microseconds()) })
	beside := over(turns, func(one turn) float64 { return 100 * one.beside })
	return fmt.Sprintf("%.0fµs; %.0f %%", servers.median, beside.median)
}

func rounded(durations []time.Duration) (all []time.Duration) {
	for _, d := range durations {
		all = append(all, d.Round(time.Millisecond))
	}
	return all
}

// ratio says what ratios come to, and whether the goal is met.
func (g growth) ratio(ratios []float64) string {
	s := spreadOf(ratios)
	text := fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.least, s.most)
	switch {
	case !g.full:
		return text
	case s.median >= throughputGoal:
		return text + ", goal met"
	case s.median >= throughputFloor:
		return text + ", floor met"
	}
	return text + ", NOT MET"
}
