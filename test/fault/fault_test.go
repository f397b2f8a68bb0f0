package fault

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// dir is where programs are built; it goes with the tests.
var dir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if dir, err = os.MkdirTemp("", "fault-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	return m.Run()
}

var build = sync.OnceValues(func() (process.Programs, error) { return process.Build(dir) })

// built returns the programs as they are.
func built(t *testing.T) process.Programs {
	t.Helper()
	programs, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return programs
}

// whole says whether all of the suite is asked for.
func whole() bool { return os.Getenv("COORDINATOR_FAULT") != "" }

func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if set := os.Getenv("COORDINATOR_FAULT_SEED"); set != "" {
		var err error
		if seed, err = strconv.ParseUint(set, 10, 64); err != nil {
			t.Fatalf("COORDINATOR_FAULT_SEED: %v", err)
		}
	}
	t.Logf("COORDINATOR_FAULT_SEED=%d", seed)
	return seed
}

// edited builds the coordinator with edits.
func edited(t *testing.T, name string, edits ...process.Edit) process.Programs {
	t.Helper()
	program, err := process.BuildEdited(dir, name, edits...)
	if err != nil {
		t.Fatal(err)
	}
	return process.Programs{Coordinator: program, Coordctl: built(t).Coordctl}
}

// plenty is how many callers there are where nothing else is said.
var plenty = callers{raw: 80, public: 160}

// finish waits for the last judgement and prints the summary.
func (s *suite) finish(t *testing.T) {
	t.Helper()
	s.checks.finish()
	t.Logf("seed %d\n%v", s.seed, s.summary)
}

// TestSome is the reduced set: a few drawn faults and a mixture, in less than a minute.
func TestSome(t *testing.T) {
	if whole() {
		t.Skip("TestWhole does more")
	}
	s := newSuite(t, built(t), newSeed(t), callers{raw: 32, public: 8}, newSummary())
	table := faults()
	for _, i := range s.random.Perm(len(table))[:2] {
		if table[i].edited {
			continue
		}
		s.run(table[i].kind, table[i].do)
	}
	all := attacks()
	a := all[s.random.IntN(len(all))]
	s.run("attack: "+a.kind, hostile(a))
	s.run(mixed, mixture(6*time.Second))
	s.finish(t)
}

// TestWhole is the whole table, each fault alone and then mixtures of them, until there
// were enough operations.
func TestWhole(t *testing.T) {
	if !whole() {
		t.Skip("COORDINATOR_FAULT=1, or make fault, runs the whole table")
	}
	seed := newSeed(t)
	summary := newSummary()
	shifted := edited(t, "coordinator-shifted", shiftedClock()...)
	short := edited(t, "coordinator-short", append(shiftedClock(), shortLog()...)...)
	next := edited(t, "coordinator-next", append(shiftedClock(), nextEntry()...)...)
	t.Run("each alone", func(t *testing.T) {
		s := newSuite(t, shifted, seed, plenty, summary)
		for _, f := range faults() {
			s.run(f.kind, f.do)
		}
		s.run("two processes on one directory", twice)
		s.run("a wiped node under its old id", wiped)
		for _, a := range attacks() {
			s.run("attack: "+a.kind, hostile(a))
		}
		s.run("all nodes with the log of the version before", upgraded(next.Coordinator))
		s.run("one node with the log of a version to come", downgraded(shifted.Coordinator, next.Coordinator))
		s.finish(t)
	})
	t.Run("short log", func(t *testing.T) {
		s := newSuite(t, short, seed+1, plenty, summary, "--log-level", "debug")
		s.run("a follower far behind: killed", farBehind(awayKilled))
		s.run("a follower far behind: SIGSTOP", farBehind(awayPaused))
		s.run("a follower far behind: cut off", farBehind(awayCut))
		for range 4 {
			s.run(mixed+", logs short", mixture(20*time.Second))
		}
		s.finish(t)
	})
	t.Run("forged terms", func(t *testing.T) {
		forgedTerms(t, seed+2, summary)
	})
	t.Run("mixtures", func(t *testing.T) {
		s := newSuite(t, shifted, seed+3, plenty, summary)
		for summary.mixed() < operationsWanted(t) && time.Since(summary.began) < wholeWithin {
			s.run(mixed, mixture(35*time.Second))
		}
		s.finish(t)
	})
	t.Logf("seed %d, the whole run:\n%v", seed, summary)
	if summary.mixed() < operationsWanted(t) {
		t.Errorf("%d operations under mixed faults in %v: this machine is too slow, or too busy, for %d", summary.mixed(), wholeWithin, operationsWanted(t))
	}
}

// wholeWithin bounds the whole run: no mixture is begun after it.
const wholeWithin = 25 * time.Minute

// operationsWanted is how many operations the whole run makes under mixed faults.
func operationsWanted(t *testing.T) int {
	t.Helper()
	set := os.Getenv("COORDINATOR_FAULT_OPERATIONS")
	if set == "" {
		return 1_000_000
	}
	wanted, err := strconv.Atoi(set)
	if err != nil {
		t.Fatalf("COORDINATOR_FAULT_OPERATIONS: %v", err)
	}
	return wanted
}

// forgedTerms: who reaches the peer port can set a term, and cause an election by that. A
// term that no elections can have led to is not taken: it would bring the last one near,
// after which nobody can be elected any more.
func forgedTerms(t *testing.T, seed uint64, summary *summary) {
	t.Helper()
	s := newSuite(t, built(t), seed, callers{raw: 16, public: 4, within: 5 * time.Second}, summary)
	s.run("forged leader, term 1,000,000", func(_ context.Context, sc *scene) error {
		return forge(sc, 1_000_000)
	})
	for _, term := range []uint64{1 << 40, math.MaxInt64, math.MaxUint64} {
		s.run(fmt.Sprintf("forged leader, term %d", term), func(_ context.Context, sc *scene) error {
			err := forge(sc, term)
			if err == nil || strings.Count(err.Error(), "is not to be believed") != shardsOfSuite {
				return fmt.Errorf("a shard has taken the term: %w", err)
			}
			time.Sleep(2 * time.Second)
			return nil
		})
	}
	for _, n := range s.c.Nodes {
		for shard := range s.shards {
			own, err := replicaOf(n, shard)
			if err != nil || own.GetTerm() > 1_100_000 {
				t.Errorf("%s: shard %d is in term %d: %v", n.Name, shard, own.GetTerm(), err)
			}
		}
	}
	s.finish(t)
}

func forge(sc *scene, term uint64) error {
	f, err := newForger(sc.c)
	if err != nil {
		return err
	}
	sc.did("forged leader")
	return forgedLeader(f, sc.c.Nodes[sc.draw(3)], stranger(), term)
}

// TestClocks shows that the wall clock of a node is wrong by what it was told, in what it
// prints, while its answers hold.
func TestClocks(t *testing.T) {
	if !whole() {
		t.Skip("it needs a build of its own; COORDINATOR_FAULT=1, or make fault")
	}
	s := newSuite(t, edited(t, "coordinator-shifted", shiftedClock()...), newSeed(t), callers{raw: 8}, newSummary())
	n := s.c.Nodes[0]
	if err := s.clocks.set(n.Name, -30*time.Hour); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	before := len(n.Output())
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := saidSince(n, before, `"msg":"listening"`); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(n.Output()[before:], "\n")
	var line struct{ Time time.Time }
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		t.Fatalf("%s: %v", first, err)
	}
	if off := time.Until(line.Time); off > -29*time.Hour || off < -31*time.Hour {
		t.Errorf("its log is %v off, not 30 hours back: %s", off, first)
	}
	s.run("one clock 30 hours back", jumpingClocks)
	s.finish(t)
}

// TestFindsWhatIsWrong: nodes that say "not applied" of what they do not know are found
// out by what their callers see.
func TestFindsWhatIsWrong(t *testing.T) {
	if !whole() {
		t.Skip("it needs a build of its own; COORDINATOR_FAULT=1, or make fault")
	}
	lying := edited(t, "coordinator-lying", process.Edit{
		File: "internal/actor/judge.go",
		Old:  "\tdefault:\n\t\treturn ErrOutcomeUnknown, ErrNoLeader\n\t}\n",
		New:  "\tdefault:\n\t\treturn ErrNoLeader, ErrNoLeader\n\t}\n",
	})
	s := newSuite(t, lying, newSeed(t), plenty, newSummary())
	s.kept = t.TempDir()
	var mu sync.Mutex
	var found []string
	s.violated = func(format string, arguments ...any) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, fmt.Sprintf(format, arguments...))
	}
	// What is under way at the cut reaches the others, who carry it out, and the leader never
	// hears of it.
	deaf := partitions[slices.IndexFunc(partitions, func(p partition) bool { return p.kind == "the leader hears nobody" })]
	for round := 0; round < 30 && s.summary.wrong() == 0; round++ {
		s.run(deaf.kind, parted(deaf))
	}
	s.checks.finish()
	if len(found) == 0 {
		t.Error("nothing was found")
	}
	for _, violation := range found[:min(len(found), 3)] {
		t.Log(violation)
	}
}
