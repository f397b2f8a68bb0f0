package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// suite is one cluster with everything around it.
type suite struct {
	t       testing.TB
	c       *process.Cluster
	links   *links
	clocks  clocks
	random  *rand.Rand
	seed    uint64
	shards  int
	callers callers
	checks  *checks
	summary *summary
	round   int
	// violated is told of each violation; most times it fails the test.
	violated func(format string, arguments ...any)
	// kept is where histories are written that broke a rule, for whoever looks why.
	kept string

	claims sync.Mutex
	taken  map[string]bool // nodes that something is being done to
}

const (
	shardsOfSuite = 3
	servesWithin  = 30 * time.Second // after everything is mended; it takes two seconds or so
)

// newSuite starts three nodes of a program behind links.
func newSuite(t testing.TB, programs process.Programs, seed uint64, many callers, summary *summary, arguments ...string) *suite {
	t.Helper()
	s := &suite{
		t: t, links: newLinks(), clocks: clocks{t.TempDir()}, random: rand.New(rand.NewPCG(seed, 0)), seed: seed,
		shards: shardsOfSuite, callers: many, summary: summary, violated: t.Errorf, kept: os.TempDir(), taken: make(map[string]bool),
	}
	t.Cleanup(s.links.close)
	s.checks = newChecks(s)
	s.c = process.NewBehind(t, programs, 3, s.links.listen, append([]string{"--shards", fmt.Sprint(s.shards), "--balance-every", "2s"}, arguments...)...)
	for _, n := range s.c.Nodes {
		s.clocks.use(n)
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.c.Serving(servesWithin); err != nil {
		t.Fatal(err)
	}
	return s
}

// run makes one round: load, in it what do does, and the judgement of it.
func (s *suite) run(kind string, do func(context.Context, *scene) error) {
	s.t.Helper()
	s.round++
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	log := history.NewRecorder()
	seen := newSeen(s.shards)
	l, err := startLoad(ctx, s.round, s.c.Endpoints(), s.shards, s.callers, s.seed, log, seen)
	if err != nil {
		s.t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(300 * time.Millisecond)
	seen.restart()
	sc := &scene{suite: s, load: l, random: rand.New(rand.NewPCG(s.seed, uint64(s.round)<<8|1)), done: make(map[string]int)}
	err = do(ctx, sc)
	if err == nil {
		err = s.recovered(seen)
	}
	sight := seen.sofar()
	if err == nil {
		time.Sleep(300 * time.Millisecond)
	}
	l.finish(ctx)
	violations := seen.impossible()
	for i := range violations {
		violations[i] = "an error that nobody may see: " + violations[i]
	}
	if err != nil {
		violations = append(violations, fmt.Sprintf("round %d, %s: %v", s.round, kind, err))
	}
	for _, n := range s.c.Nodes {
		if !n.Running() {
			violations = append(violations, fmt.Sprintf("%s is down, and nobody ended it: %s", n.Name, lastLine(n.Output())))
			if err := n.Start(); err != nil && !errors.Is(err, process.ErrRunning) {
				s.t.Fatal(err)
			}
		}
	}
	if s.c.Serving(servesWithin) == nil {
		violations = append(violations, s.agreed()...)
	}
	events := log.Events()
	s.t.Logf("round %d: %s %v: %d operations in %v, %d late copies, %d over sessions, %d given up; longest refusal %v; users saw: %v",
		s.round, kind, sc.details(), len(events), time.Since(began).Round(time.Millisecond), seen.copies.Load(), seen.shared.Load(), l.gaveUp.Load(),
		sight.refusal.Round(time.Millisecond), sight)
	s.summary.add(kind, sc.done, sight, len(events), int(seen.copies.Load()), len(violations))
	s.complain(violations)
	s.checks.submit(s.round, kind, events)
	// A node that ended by itself was started again; if it ends again there is nothing left
	// to go on with.
	for _, n := range s.c.Nodes {
		if err := n.Serving(servesWithin); err != nil {
			s.checks.finish()
			s.t.Fatalf("the cluster cannot go on: %v", err)
		}
	}
}

// complain reports violations.
func (s *suite) complain(violations []string) {
	s.t.Helper()
	for i, violation := range violations {
		if i == 20 {
			s.violated("… and %d more", len(violations)-i)
			break
		}
		s.violated("%s", violation)
	}
}

// recovered waits until every shard has answered somebody, now that all is mended.
func (s *suite) recovered(seen *seen) error {
	mended := time.Now()
	for !seen.serves(mended) {
		if time.Since(mended) > servesWithin {
			return fmt.Errorf("a shard has not served for %v after everything was mended", servesWithin)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s.c.Serving(servesWithin)
}

// agreed compares the states of the three nodes, each shard at an index at which all were.
func (s *suite) agreed() (violations []string) {
	for shard := range s.shards {
		err := agree(s.c, shard)
		if err != nil {
			violations = append(violations, err.Error())
		}
		s.summary.agreement(err == nil)
	}
	return violations
}

// claim takes a node for something that is done to it alone; false if it is taken.
func (s *suite) claim(n *process.Node) bool {
	s.claims.Lock()
	defer s.claims.Unlock()
	if s.taken[n.Name] {
		return false
	}
	s.taken[n.Name] = true
	return true
}

func (s *suite) letGo(n *process.Node) {
	s.claims.Lock()
	defer s.claims.Unlock()
	delete(s.taken, n.Name)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// checks are the histories that wait to be checked, beside the next rounds.
type checks struct {
	s     *suite
	queue chan recorded
	done  chan struct{}
}

type recorded struct {
	round  int
	kind   string
	events []history.Event
}

func newChecks(s *suite) *checks {
	c := &checks{s: s, queue: make(chan recorded, 1), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for r := range c.queue {
			c.check(r)
		}
	}()
	return c
}

func (c *checks) submit(round int, kind string, events []history.Event) {
	c.queue <- recorded{round, kind, events}
}

// finish waits until everything is checked.
func (c *checks) finish() {
	close(c.queue)
	<-c.done
}

func (c *checks) check(r recorded) {
	began := time.Now()
	found := check(r.events)
	took := time.Since(began)
	c.s.summary.checked(r.kind, len(found), took)
	if len(found) == 0 {
		return
	}
	path, err := keep(c.s.kept, c.s.seed, r)
	c.s.violated("round %d, %s: %d violations in %d events; the events are in %s (%v)", r.round, r.kind, len(found), len(r.events), path, err)
	for i, violation := range found {
		if i == 10 {
			break
		}
		c.s.violated("round %d, %s: %v", r.round, r.kind, violation)
	}
}

// keep writes the events of a history to a file.
func keep(dir string, seed uint64, r recorded) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("history-%d-%d.json", seed, r.round))
	file, err := os.Create(path)
	if err != nil {
		return path, err
	}
	encoder := json.NewEncoder(file)
	for _, e := range r.events {
		if err := encoder.Encode(e); err != nil {
			_ = file.Close()
			return path, err
		}
	}
	return path, file.Close()
}

// scene is what a fault has to do with.
type scene struct {
	*suite
	load   *load
	random *rand.Rand

	mu   sync.Mutex
	done map[string]int
}

// did counts something that was done.
func (sc *scene) did(what string) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.done[what]++
}

func (sc *scene) details() string {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(sc.done)) {
		parts = append(parts, fmt.Sprintf("%s ×%d", name, sc.done[name]))
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// between draws a duration.
func (sc *scene) between(least, most time.Duration) time.Duration {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return least + time.Duration(sc.random.Int64N(int64(most-least)))
}

func (sc *scene) draw(n int) int {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.random.IntN(n)
}

// sleep waits for a drawn time.
func (sc *scene) sleep(ctx context.Context, least, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(sc.between(least, most)):
	}
}

// leader returns the node that leads most shards and the two others, in drawn order.
func (sc *scene) leader() (leader *process.Node, others []*process.Node, err error) {
	leader, err = sc.c.LeaderOfMost(servesWithin)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range sc.c.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	if sc.draw(2) == 0 {
		slices.Reverse(others)
	}
	return leader, others, nil
}
