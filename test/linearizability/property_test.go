package linearizability

import (
	"fmt"
	"math/rand/v2"
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

// passes checks that a history made from a seed passes.
func passes(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	r := recipeOf(random)
	all := legal(random, r)
	options := Options{}
	if !r.terse {
		// Deadlines are late each by itself; a window after a deadline is late twice.
		options.Lateness = func(int, time.Duration, time.Duration) time.Duration { return 2*r.late + time.Millisecond }
	}
	began := time.Now()
	defer func() {
		if d := time.Since(began); d > time.Second {
			t.Logf("SLOW seed %d, %+v: %v", seed, r, d)
		}
	}()
	if found := Check(all, options); len(found) != 0 {
		t.Fatalf("seed %d, %+v: %v\n%s", seed, r, found[0], story(all))
	}
}

func story(events []history.Event) string {
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintln(&text, e)
	}
	return text.String()
}

// TestLegalHistoriesPass: what a coordinator did, one thing after the other, is never held
// against it, however its answers overlapped or were lost (invariant 1).
func TestLegalHistoriesPass(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seeds from %d", seed)
	for i := range uint64(1000) {
		passes(t, seed+i)
	}
}

// FuzzLegalHistoriesPass is the same for as long as one likes.
func FuzzLegalHistoriesPass(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { passes(t, seed) })
}
