package linearizability

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// hot is one key that 64 callers want at a time, for many rounds: one is admitted, the
// others wait for it; every fourth call is never answered.
func hot(random *rand.Rand, rounds int) []history.Event {
	var all []history.Event
	number, fence := uint32(0), uint64(0)
	previous := after(history.EndNone, 0)
	for round := range rounds {
		began := float64(round) * 10
		holder := newAttempt(random)
		number++
		fence += 3
		at := func() (float64, float64) { return began + random.Float64(), began + 6 + random.Float64() }
		sent, answered := at()
		won := grant(0, sent, answered, fence, number, previous, ttl(60))
		won.Attempt = holder
		all = append(all, won)
		for range 63 {
			sent, answered := at()
			e := waits(0, sent, answered, number)
			e.Attempt = newAttempt(random)
			e.TTL = 60 * time.Second
			if random.IntN(4) == 0 {
				e.Kind, e.Unknown, e.Number = history.Granted, true, 0
			}
			all = append(all, e)
		}
		e := event(history.Released, 0, began+7, began+8)
		e.Attempt = holder
		all = append(all, e)
		previous = after(history.EndReleased, fence)
	}
	return all
}

// TestHotKey: calls that overlap by the dozen, many of them without an answer, are decided.
func TestHotKey(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	events := hot(random, 40)
	began := time.Now()
	if found := CheckAll(events); len(found) != 0 {
		t.Fatal(found[0])
	}
	t.Logf("%d events in %v", len(events), time.Since(began))

	// One who was told to wait for somebody who had long released: nothing explains that.
	bad := slices.Clone(events)
	for i := range bad {
		if e := &bad[i]; e.Kind == history.Pending && e.Number == 20 {
			e.Sent += 20 * time.Second
			e.LastSent += 20 * time.Second
			e.Answered += 20 * time.Second
			break
		}
	}
	if !slices.ContainsFunc(CheckAll(bad), func(v history.Violation) bool { return v.Rule == NotLinearizable }) {
		t.Errorf("not found: %v", CheckAll(bad))
	}
}

// TestHotKeyWithoutAnswers: eighteen callers of whom one heard what came of his first call, as
// the fault suite recorded it. A purge that was refused leaves it known who was granted, so
// that the others need not be tried.
func TestHotKeyWithoutAnswers(t *testing.T) {
	recorded, err := os.Open(filepath.Join("testdata", "hot-key.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = recorded.Close() }()
	var events []history.Event
	for lines := json.NewDecoder(recorded); lines.More(); {
		var e history.Event
		if err := lines.Decode(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if found := Check(events, Options{StepsMax: 10_000}); len(found) != 0 {
		t.Error(found[0])
	}
}

// TestManyKeys: a hundred thousand events take seconds, not minutes.
func TestManyKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var events []history.Event
	for key := 0; len(events) < 100_000; key++ {
		r := recipe{calls: 20 + random.IntN(40), unsure: key%2 == 0, principal: fmt.Sprint(key)}
		some := legal(random, r)
		for i := range some {
			some[i].Shard = key // fences are drawn for each by itself
			some[i].Response = responseOf(&some[i], key)
		}
		events = append(events, some...)
	}
	began := time.Now()
	found := CheckAll(events)
	t.Logf("%d events in %v", len(events), time.Since(began))
	if len(found) != 0 {
		t.Fatalf("%d: %v", len(found), found[0])
	}
}

// responseOf makes a response that is of its identity alone.
func responseOf(e *history.Event, key int) history.Digest {
	response := e.Response
	if response != (history.Digest{}) {
		copy(response[8:], fmt.Sprint(key))
	}
	return response
}

// TestUndecidedIsNoPass: a search that is given up is reported (invariant 2).
func TestUndecidedIsNoPass(t *testing.T) {
	events := []history.Event{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 9)}
	for _, options := range []Options{{StepsMax: 1}, {StepsMax: 3}} {
		found := Check(events, options)
		if len(found) != 1 || found[0].Rule != Undecided {
			t.Errorf("%+v: %v", options, found)
		}
	}
}

// TestDrawing: what has no order is drawn, and a drawing that fails is said.
func TestDrawing(t *testing.T) {
	dir := t.ArtifactDir()
	bad := []history.Event{grant(1, 0, 1, 5, 1, ttl(3)), event(granted, 2, 0, 9, unknown), commits(1, 2, 3, 9), waits(3, 4, 5, 1)}
	find := func(dir string) string {
		for _, v := range Check(bad, Options{Artifacts: dir}) {
			if v.Rule == NotLinearizable {
				return v.Text
			}
		}
		t.Fatal("it has an order")
		return ""
	}
	text := find(dir)
	_, path, drawn := strings.Cut(text, "drawn in ")
	if !drawn {
		t.Fatal(text)
	}
	page, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(page), "<html") || !strings.Contains(string(page), "pending") {
		t.Errorf("%v: %.200s", err, page)
	}
	if filepath.Dir(path) != dir {
		t.Errorf("%s is not in %s", path, dir)
	}
	if text := find(filepath.Join(dir, "none")); !strings.Contains(text, "not drawn: ") {
		t.Error(text)
	}
}
