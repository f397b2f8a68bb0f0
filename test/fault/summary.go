package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// summary is what a run has come to.
type summary struct {
	began time.Time

	mu         sync.Mutex
	kinds      map[string]*tally
	order      []string
	faults     map[string]int
	operations int
	copies     int
	histories  int
	checking   time.Duration
	agreements int
	violations int
}

// mixed begins the names of rounds with more than one kind of fault.
const mixed = "mixture"

// tally is the line of one kind of round.
type tally struct {
	rounds, operations, violations int
	sight                          sight
}

func newSummary() *summary {
	return &summary{began: time.Now(), kinds: make(map[string]*tally), faults: make(map[string]int)}
}

func (s *summary) tally(kind string) *tally {
	if s.kinds[kind] == nil {
		s.kinds[kind] = &tally{}
		s.order = append(s.order, kind)
	}
	return s.kinds[kind]
}

func (s *summary) add(kind string, done map[string]int, sight sight, operations, copies, violations int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tally(kind)
	k.rounds++
	k.operations += operations
	k.violations += violations
	k.sight.add(sight)
	for name, count := range done {
		s.faults[name] += count
	}
	s.operations += operations
	s.copies += copies
	s.violations += violations
}

func (s *summary) checked(kind string, violations int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.histories++
	s.checking += took
	s.violations += violations
	s.tally(kind).violations += violations
}

// agreement notes that a shard's three states were compared.
func (s *summary) agreement(same bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same {
		s.agreements++
	}
}

// mixed returns the number of operations under mixed faults so far.
func (s *summary) mixed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underMixed()
}

// underMixed is mixed with s.mu held.
func (s *summary) underMixed() (operations int) {
	for kind, tally := range s.kinds {
		if strings.HasPrefix(kind, mixed) {
			operations += tally.operations
		}
	}
	return operations
}

// wrong returns the number of violations so far.
func (s *summary) wrong() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violations
}

// String is the summary that a run ends with.
func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%-44s %6s %10s %15s %10s  %s\n", "round", "times", "operations", "longest refusal", "violations", "users saw")
	for _, kind := range s.order {
		k := s.kinds[kind]
		fmt.Fprintf(&b, "%-44s %6d %10d %15v %10d  %v\n", kind, k.rounds, k.operations, k.sight.refusal.Round(10*time.Millisecond), k.violations, k.sight)
	}
	total := 0
	fmt.Fprintf(&b, "faults by kind:\n")
	for _, name := range slices.Sorted(maps.Keys(s.faults)) {
		fmt.Fprintf(&b, "  %6d  %s\n", s.faults[name], name)
		total += s.faults[name]
	}
	fmt.Fprintf(&b, "faults: %d\noperations: %d (%d of them under mixed faults, %d of them late copies)\nhistories checked: %d (in %v)\nequal states on three nodes: %d\ntook: %v\nviolations: %d\n",
		total, s.operations, s.underMixed(), s.copies, s.histories, s.checking.Round(time.Millisecond), s.agreements, time.Since(s.began).Round(time.Second), s.violations)
	return b.String()
}
