package linearizability

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// recipeOf draws a recipe.
func recipeOf(random *rand.Rand) recipe {
	r := recipe{
		calls: 5 + random.IntN(80), unsure: random.IntN(3) > 0, terse: random.IntN(4) == 0, short: random.IntN(3) == 0,
		late: time.Duration(random.IntN(2)*random.IntN(2000)) * time.Millisecond, principal: "p",
	}
	// Where windows end and nobody knows how often a call was delivered, nearly everything
	// may be so, and the search is not worth it.
	r.short = r.short && !r.terse
	return r
}

// made is a history that was made from a seed, and how it may be checked.
type made struct {
	recipe  recipe
	events  []history.Event
	options Options
}

func newMade(seed uint64) made {
	random := rand.New(rand.NewPCG(seed, 0))
	m := made{recipe: recipeOf(random)}
	m.events = legal(random, m.recipe)
	m.options.TimeMax = time.Minute
	if !m.recipe.terse {
		// Deadlines are late each by itself; a window after a deadline is late twice.
		m.options.Lateness = func(int, time.Duration, time.Duration) time.Duration { return 2*m.recipe.late + time.Millisecond }
	}
	return m
}

// judge returns the violations, and whether all could be decided.
func (m made) judge() (found []history.Violation, decided bool) {
	found = Check(m.events, m.options)
	others := slices.DeleteFunc(slices.Clone(found), func(v history.Violation) bool { return v.Rule == Undecided })
	return others, len(others) == len(found)
}

func story(events []history.Event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintln(&text, e)
	}
	return text.String()
}

// TestLegalHistoriesPass: what a coordinator did, one thing after the other, is never held
// against it, however its answers overlapped or were lost (invariant 1); and hardly ever is a
// search given up.
func TestLegalHistoriesPass(t *testing.T) {
	const histories = 400
	seed := uint64(time.Now().UnixNano())
	t.Logf("seeds from %d", seed)
	undecided := 0
	for i := range uint64(histories) {
		m := newMade(seed + i)
		found, decided := m.judge()
		if len(found) != 0 {
			t.Fatalf("seed %d, %+v: %v\n%s", seed+i, m.recipe, found[0], story(m.events))
		}
		if !decided {
			undecided++
			t.Logf("seed %d, %+v: undecided", seed+i, m.recipe)
		}
	}
	if undecided > histories/100 {
		t.Errorf("%d of %d are undecided", undecided, histories)
	}
}

// FuzzLegalHistoriesPass is the same for as long as one likes.
func FuzzLegalHistoriesPass(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		m := newMade(seed)
		if found, _ := m.judge(); len(found) != 0 {
			t.Fatalf("%+v: %v\n%s", m.recipe, found[0], story(m.events))
		}
	})
}
