package simulation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

const second = time.Second

// asked returns a call of the key "k" that was sent and answered at those seconds.
func asked(what call, by byte, sent, answered int, outcome string) told {
	return told{
		call: what, key: "k", caller: string('a' - 1 + by), attempt: history.Attempt{by}, outcome: outcome, tries: 1,
		first: time.Duration(sent) * second, last: time.Duration(sent) * second, answered: time.Duration(answered) * second,
		ttl: 10 * second, retention: 100 * second,
	}
}

// grantTo returns a grant for ten seconds, with a retention of a hundred.
func grantTo(by byte, sent, answered int, fence uint64, number uint32) told {
	t := asked(reserveCall, by, sent, answered, "granted")
	t.fence, t.number, t.remaining = fence, number, 10*second
	return t
}

func left(t told, seconds int) told {
	t.remaining = time.Duration(seconds) * second
	return t
}

func holding(t told, by byte) told {
	t.holder = string('a' - 1 + by)
	return t
}

func held(t told) told {
	t.hold = true
	return t
}

func settles(t told, fence uint64) told {
	t.of, t.attempt = fence, history.Attempt{}
	return t
}

func lost(t told) told {
	t.unknown, t.outcome = true, ""
	return t
}

func waitedFor(t told, seconds int) told {
	t.waited = time.Duration(seconds) * second
	return t
}

func triedTwice(t told) told {
	t.tries = 2
	return t
}

func denied(t told) told {
	t.never, t.outcome = true, ""
	return t
}

// TestJudgeAccepts: what the contract allows is held against nobody.
func TestJudgeAccepts(t *testing.T) {
	for name, all := range map[string][]told{
		"nothing":                     nil,
		"the next after the deadline": {grantTo(1, 0, 1, 1, 1), grantTo(2, 10, 11, 3, 2)},
		"an answer that came late":    {grantTo(1, 0, 9, 1, 1), grantTo(2, 10, 11, 3, 2)},
		"extended":                    {grantTo(1, 0, 1, 1, 1), left(asked(extendCall, 1, 5, 6, "ok"), 10), grantTo(2, 15, 16, 3, 2)},
		"released":                    {grantTo(1, 0, 1, 1, 1), asked(releaseCall, 1, 2, 3, "ok"), grantTo(2, 3, 4, 3, 2)},
		"a release without an answer": {grantTo(1, 0, 1, 1, 1), lost(asked(releaseCall, 1, 2, 3, "")), grantTo(2, 3, 4, 3, 2)},
		"committed, and over":         {grantTo(1, 0, 1, 1, 1), left(asked(commitCall, 1, 2, 3, "ok"), 100), grantTo(2, 102, 103, 3, 1)},
		"a commit without an answer":  {grantTo(1, 0, 1, 1, 1), lost(asked(commitCall, 1, 2, 3, "")), grantTo(2, 11, 12, 3, 2)},
		"forgotten":                   {grantTo(1, 0, 1, 1, 1), grantTo(2, 110, 111, 3, 1)},
		"released, and forgotten": {
			grantTo(1, 0, 1, 1, 1), asked(releaseCall, 1, 2, 3, "ok"), asked(getCall, 9, 602, 603, "none"), grantTo(2, 603, 604, 3, 1)},
		"held, settled":         {held(grantTo(1, 0, 1, 1, 1)), settles(asked(resolveCall, 0, 12, 13, "ok"), 1), grantTo(2, 13, 14, 3, 2)},
		"held, and released":    {held(grantTo(1, 0, 1, 1, 1)), asked(releaseCall, 1, 12, 13, "ok"), grantTo(2, 13, 14, 3, 2)},
		"pending until the end": {grantTo(1, 0, 1, 1, 1), holding(asked(reserveCall, 2, 11, 12, "pending"), 1)},
		"lapsed after the end":  {grantTo(1, 0, 1, 1, 1), holding(asked(getCall, 2, 10, 11, "STATE_LAPSED"), 1)},
		"an attempt that nobody heard of, in between": {
			grantTo(1, 0, 1, 1, 1), grantTo(2, 30, 31, 5, 3), left(triedTwice(asked(reserveCall, 3, 12, 41, "committed")), 90)},
		"lapsed, and then extended": {
			grantTo(1, 0, 1, 1, 1), holding(asked(getCall, 2, 12, 13, "STATE_LAPSED"), 1), left(asked(extendCall, 1, 11, 15, "ok"), 10), grantTo(2, 21, 22, 3, 2)},
		"extended by a try that nobody heard of, and lost by the next": {
			grantTo(1, 0, 1, 1, 1), triedTwice(asked(extendCall, 1, 5, 21, "RESERVATION_LOST")), holding(asked(reserveCall, 2, 13, 14, "pending"), 1)},
		"who waited is admitted": {grantTo(1, 0, 1, 1, 1), waitedFor(grantTo(2, 5, 11, 3, 2), 6)},
		"told that nothing was applied, and nothing was": {
			grantTo(1, 0, 1, 1, 1), denied(asked(reserveCall, 2, 1, 2, "")), holding(asked(reserveCall, 3, 2, 3, "pending"), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			if wrong := judgeKey(all); len(wrong) != 0 {
				t.Errorf("%s", strings.Join(wrong, "\n"))
			}
		})
	}
}

// TestJudgeCatches: each rule can fail, and does so for the right reason.
func TestJudgeCatches(t *testing.T) {
	for _, test := range []struct {
		name, rule string
		all        []told
	}{
		{"the next before the deadline", "EARLY", []told{grantTo(1, 0, 1, 1, 1), grantTo(2, 8, 9, 3, 2)}},
		{"the next before the deadline of an extension", "EARLY", []told{
			grantTo(1, 0, 1, 1, 1), left(asked(extendCall, 1, 5, 6, "ok"), 10), grantTo(2, 13, 14, 3, 2)}},
		{"the next before what remains, told on the way", "EARLY", []told{
			waitedFor(grantTo(1, 0, 4, 1, 1), 3), grantTo(2, 11, 12, 3, 2)}},
		{"the next before a commit is over", "EARLY", []told{
			grantTo(1, 0, 1, 1, 1), left(asked(commitCall, 1, 2, 3, "ok"), 100), grantTo(2, 99, 100, 3, 2)}},
		{"the next before a replay said that it is over", "EARLY", []told{
			grantTo(1, 0, 1, 1, 1), lost(asked(commitCall, 1, 2, 3, "")), left(asked(reserveCall, 2, 5, 6, "committed"), 95), grantTo(3, 90, 91, 3, 1)}},
		{"the next although it is held", "EARLY", []told{held(grantTo(1, 0, 1, 1, 1)), grantTo(2, 50, 51, 3, 2)}},
		{"the next before it is settled", "EARLY", []told{
			held(grantTo(1, 0, 1, 1, 1)), grantTo(2, 50, 51, 3, 2), settles(asked(resolveCall, 0, 52, 53, "ok"), 1)}},
		{"counted from one again", "FORGOTTEN EARLY", []told{grantTo(1, 0, 1, 1, 1), grantTo(2, 50, 51, 3, 1)}},
		{"released, and gone", "FORGOTTEN EARLY", []told{
			grantTo(1, 0, 1, 1, 1), asked(releaseCall, 1, 2, 3, "ok"), asked(getCall, 9, 300, 301, "none")}},
		{"gone", "FORGOTTEN EARLY", []told{grantTo(1, 0, 1, 1, 1), asked(getCall, 9, 50, 51, "none")}},
		{"fences that do not grow", "FENCE ORDER", []told{grantTo(1, 50, 51, 1, 2), grantTo(2, 0, 1, 3, 1)}},
		{"lapsed before the deadline", "LAPSED EARLY", []told{grantTo(1, 0, 1, 1, 1), holding(asked(getCall, 2, 8, 9, "STATE_LAPSED"), 1)}},
		{"in doubt before the deadline", "LAPSED EARLY", []told{
			held(grantTo(1, 0, 1, 1, 1)), held(holding(asked(reserveCall, 2, 8, 9, "in doubt"), 1))}},
		{"pending after a commit", "LOST COMMIT", []told{
			grantTo(1, 0, 1, 1, 1), left(asked(commitCall, 1, 2, 3, "ok"), 100), holding(asked(reserveCall, 2, 4, 5, "pending"), 1)}},
		{"pending long after the deadline", "LATE", []told{grantTo(1, 0, 1, 1, 1), holding(asked(reserveCall, 2, 13, 14, "pending"), 1)}},
		{"replayed long after it was over", "LATE", []told{
			grantTo(1, 0, 1, 1, 1), left(asked(commitCall, 1, 2, 3, "ok"), 100), asked(reserveCall, 2, 105, 106, "committed")}},
		{"who waited is admitted late", "LATE", []told{grantTo(1, 0, 1, 1, 1), waitedFor(grantTo(2, 5, 14, 3, 2), 9)}},
		{"told that nothing was applied, and it was", "APPLIED", []told{
			denied(asked(reserveCall, 1, 0, 1, "")), holding(asked(reserveCall, 2, 2, 3, "pending"), 1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			wrong := judgeKey(test.all)
			if !slices.ContainsFunc(wrong, func(text string) bool { return strings.HasPrefix(text, test.rule+":") }) {
				t.Errorf("no %s in %q", test.rule, wrong)
			}
		})
	}
}

// judgeKey judges what was told of one key, where a second of lateness is allowed.
func judgeKey(all []told) []string {
	return judge(map[string][]told{"k": all}, func(string, time.Duration, time.Duration, time.Duration) time.Duration { return second }, 0)
}

// TestEffects: the world outside notices owners that act out of turn.
func TestEffects(t *testing.T) {
	e := newEffects()
	if err := e.acted("k", act{by: "a", fence: 3, at: second}); err != nil {
		t.Error(err)
	}
	if err := e.acted("k", act{by: "b", fence: 5, at: 2 * second}); err != nil {
		t.Error(err)
	}
	if e.acted("k", act{by: "a", fence: 3, at: 3 * second}) == nil {
		t.Error("an owner acts after the next one has")
	}
	if err := e.finished("k", done{by: "b", body: "x", at: 4 * second}); err != nil {
		t.Error(err)
	}
	if err := e.finished("k", done{by: "c", body: "x", at: 5 * second}); err != nil {
		t.Error(err)
	}
	if e.finished("k", done{by: "d", body: "y", at: 6 * second}) == nil {
		t.Error("another response")
	}
	if e.acted("k", act{by: "e", fence: 7, at: 7 * second}) == nil {
		t.Error("an owner acts on what is done")
	}
	if err := e.acted("l", act{by: "e", fence: 4, at: 7 * second}); err != nil {
		t.Error(err)
	}
}

// TestAllowed: a change of leader allows what the contract says, and nothing is allowed
// without one.
func TestAllowed(t *testing.T) {
	w := newWatcher(1)
	for at := time.Duration(0); at < 100*second; at += lookEvery {
		if at < 40*second || at >= 43*second {
			term := uint64(2)
			if at >= 43*second {
				term = 3
			}
			w.saw(0, term, at)
		}
	}
	if got := w.allowed(0, 10*second, 10*second, 30*second); got != slack {
		t.Errorf("while nothing happened: %v", got)
	}
	if got := w.allowed(0, 10*second, 30*second, 60*second); got < 4*second || got > 6*second {
		t.Errorf("over an outage of 3 s and a change of leader: %v", got)
	}
	if got := w.allowed(0, 1000*second, 30*second, 60*second); got < 13*second || got > 15*second {
		t.Errorf("the same with a far deadline: %v", got)
	}
	if got := w.allowed(0, 10*second, 60*second, 90*second); got != slack {
		t.Errorf("after it: %v", got)
	}
	if got := w.elections(); got != 2 {
		t.Errorf("%d elections", got)
	}
}

// TestPlan: the seed decides what befalls the cluster and who calls, and every hour has
// enough of it.
func TestPlan(t *testing.T) {
	seen := map[kind]bool{}
	for seed := range uint64(20) {
		p := planHour(seed, int(seed%7), 3)
		if again := planHour(seed, int(seed%7), 3); !slices.Equal(again.Steps, p.Steps) || !slices.Equal(again.Callers, p.Callers) ||
			!slices.Equal(again.Owners, p.Owners) || !slices.Equal(again.Long, p.Long) {
			t.Errorf("seed %d: two plans", seed)
		}
		if other := planHour(seed, 9, 3); slices.Equal(other.Steps, p.Steps) {
			t.Errorf("seed %d: another hour, the same plan", seed)
		}
		if p.faults() < faultsLeast {
			t.Errorf("seed %d: %d faults", seed, p.faults())
		}
		for _, s := range p.Steps {
			seen[s.Kind] = true
			if s.At < 0 || s.At > hourLength-4*time.Minute || s.Node == s.Other || s.Links < 1 || s.Links > 63 {
				if s.Kind != repair {
					t.Errorf("seed %d: %+v", seed, s)
				}
			}
		}
	}
	for _, k := range deck {
		if !seen[k] {
			t.Errorf("%q never happens", k)
		}
	}
}
