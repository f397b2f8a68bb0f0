package linearizability

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// mutations each change one thing in a history in which every call was answered and
// delivered once, such that the contract does not allow it any more. They report false where
// the history has no such thing.
var mutations = []struct {
	name   string
	mutate func(random *rand.Rand, events []history.Event) ([]history.Event, bool)
}{
	{"a replay of something else", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Replayed })
		if e == nil {
			return nil, false
		}
		e.Response = history.Digest{0xee}
		return events, true
	}},
	{"a replay under another principal", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Replayed })
		if e == nil {
			return nil, false
		}
		e.Principal, e.Holder = "q", ""
		return events, true
	}},
	{"a commit that nobody sent", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		replay := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Replayed })
		if replay == nil {
			return nil, false
		}
		return slices.DeleteFunc(events, func(e history.Event) bool {
			kind, asked := e.Asked()
			return asked && (kind == history.Committed || kind == history.Resolved) && e.Response == replay.Response
		}), true
	}},
	{"a fence that was used before", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool {
			return fresh(e) && slices.ContainsFunc(events, func(o history.Event) bool {
				return fresh(&o) && o.Answered < e.Sent && o.Attempt != e.Attempt
			})
		})
		if e == nil {
			return nil, false
		}
		for i := range events {
			if o := &events[i]; fresh(o) && o.Answered < e.Sent && o.Attempt != e.Attempt {
				e.Fence = o.Fence
				break
			}
		}
		return events, true
	}},
	{"a number too many", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, fresh)
		if e == nil {
			return nil, false
		}
		e.Number++
		return events, true
	}},
	{"waiting for somebody unheard of", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Pending })
		if e == nil {
			return nil, false
		}
		e.Number += 1000
		return events, true
	}},
	{"a grant that was lost", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		// Somebody else was told of it.
		next := pick(random, events, func(e *history.Event) bool { return fresh(e) && e.PreviousFence != 0 })
		if next == nil {
			return nil, false
		}
		fence := next.PreviousFence
		return slices.DeleteFunc(events, func(e history.Event) bool { return e.Kind == history.Granted && e.Fence == fence }), true
	}},
	{"released, said to have lapsed, and the other way round", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return fresh(e) && e.Previous != history.EndNone })
		if e == nil {
			return nil, false
		}
		e.Previous, e.Note = history.EndReleased+history.EndLapsed-e.Previous, ""
		return events, true
	}},
	{"no record where there is one", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		commit := pick(random, events, func(e *history.Event) bool {
			grant := grantOf(events, e)
			return e.Kind == history.Committed && !e.Repeated && grant != nil && grant.Answered+2 < e.Sent
		})
		if commit == nil {
			return nil, false
		}
		sent, answered := grantOf(events, commit).Answered+1, commit.Sent-1
		missing := history.Event{
			Kind: history.Missing, Namespace: commit.Namespace, Principal: commit.Principal, Operation: commit.Operation, Key: commit.Key,
			Sent: sent, LastSent: sent, Answered: answered, Tries: 1,
		}
		return append(events, missing), true
	}},
	{"ended before it began", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Pending && e.Attempt != history.Attempt{} })
		if e == nil {
			return nil, false
		}
		e.Kind, e.Attempt, e.Number, e.Holder = history.Ended, newAttempt(random), 0, ""
		return events, true
	}},
	{"an early lapse", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool {
			before := byFence(events, e.PreviousFence)
			return fresh(e) && e.Previous == history.EndLapsed && before != nil && early(e, before) && !slices.ContainsFunc(events, func(o history.Event) bool {
				return fresh(&o) && o.Attempt == e.Attempt && o.Answered != e.Answered
			})
		})
		if e == nil {
			return nil, false
		}
		before := byFence(events, e.PreviousFence)
		e.Sent = before.Answered + 1
		e.LastSent, e.Answered = e.Sent, before.Sent+least(before.TTL)-1
		return events, true
	}},
	{"a commit late in time", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool {
			grant := grantOf(events, e)
			return e.Kind == history.Committed && !e.Repeated && !e.Late && grant != nil && e.Answered < grant.Sent+least(grant.TTL)
		})
		if e == nil {
			return nil, false
		}
		e.Late = true
		return events, true
	}},
	{"waiting for a committed key", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool {
			commit := committedAs(events, e)
			return commit != nil && !slices.ContainsFunc(events, func(o history.Event) bool {
				return fresh(&o) && o.Fence > commit.Fence && o.Sent <= e.Answered
			})
		})
		if e == nil {
			return nil, false
		}
		number := grantOf(events, committedAs(events, e)).Number
		e.Kind, e.Response, e.Number = history.Pending, history.Digest{}, number
		return events, true
	}},
	{"two fingerprints", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Pending && e.Attempt != history.Attempt{} })
		if e == nil {
			return nil, false
		}
		e.Fingerprint = "a third"
		return events, true
	}},
	{"shown to be somebody's who is not the holder", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Holder != "" })
		if e == nil {
			return nil, false
		}
		e.Holder = "c"
		return events, true
	}},
	{"acknowledged to who had lost it", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool {
			return e.Kind == history.Refused && e.Reason == "RESERVATION_LOST" && e.Call == history.Committed
		})
		if e == nil {
			return nil, false
		}
		e.Kind, e.Reason, e.Call = history.Committed, "", 0
		e.Response = history.Digest{0xdd}
		return events, true
	}},
	{"refused to who still had it", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		purged := slices.ContainsFunc(events, func(e history.Event) bool { return e.Kind == history.Purged })
		e := pick(random, events, func(e *history.Event) bool {
			grant := grantOf(events, e)
			return e.Kind == history.Extended && !purged && grant != nil && !settled(events, e.Attempt) && grant.Answered < e.Sent && e.Answered < grant.Sent+least(grant.TTL)
		})
		if e == nil {
			return nil, false
		}
		e.Kind, e.Call, e.Reason = history.Refused, history.Extended, "RESERVATION_NOT_FOUND"
		return events, true
	}},
	{"a release that was taken for none", func(random *rand.Rand, events []history.Event) ([]history.Event, bool) {
		e := pick(random, events, func(e *history.Event) bool { return e.Kind == history.Released && !e.Repeated })
		if e == nil {
			return nil, false
		}
		// Nobody but its owner can have ended it like that.
		e.Kind, e.Call, e.Reason = history.Refused, history.Released, "ALREADY_COMMITTED"
		return events, true
	}},
}

// fresh reports whether the attempt was granted by this call.
func fresh(e *history.Event) bool { return e.Kind == history.Granted && !e.Repeated }

// pick draws one of the events that fit.
func pick(random *rand.Rand, events []history.Event, fits func(*history.Event) bool) *history.Event {
	var all []*history.Event
	for i := range events {
		if fits(&events[i]) {
			all = append(all, &events[i])
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[random.IntN(len(all))]
}

func byFence(events []history.Event, fence uint64) *history.Event {
	for i := range events {
		if e := &events[i]; fresh(e) && e.Fence == fence {
			return e
		}
	}
	return nil
}

// grantOf returns the grant under whose token a call was made.
func grantOf(events []history.Event, e *history.Event) *history.Event {
	return byFence(events, e.Fence)
}

// committedAs returns the Commit that had been acknowledged when a Reserve was sent that was told
// of it.
func committedAs(events []history.Event, e *history.Event) *history.Event {
	if e.Kind != history.Replayed || e.Attempt == (history.Attempt{}) {
		return nil
	}
	for i := range events {
		if c := &events[i]; c.Kind == history.Committed && c.Response == e.Response && c.Answered < e.Sent {
			return c
		}
	}
	return nil
}

// settled reports whether somebody tried to end an attempt.
func settled(events []history.Event, attempt history.Attempt) bool {
	return slices.ContainsFunc(events, func(e history.Event) bool {
		kind, _ := e.Asked()
		return e.Attempt == attempt && (kind == history.Committed || kind == history.Released)
	})
}

// early reports whether there is room between a grant and its deadline.
func early(_, before *history.Event) bool { return before.Answered+3 < before.Sent+least(before.TTL) }

// TestMutationsAreFound: one change makes a history one that the checker refuses. Each
// history passes before it is changed.
func TestMutationsAreFound(t *testing.T) {
	const histories = 40
	seed := uint64(time.Now().UnixNano())
	t.Logf("seeds from %d", seed)
	for _, mutation := range mutations {
		t.Run(mutation.name, func(t *testing.T) {
			tried := 0
			for i := uint64(0); tried < histories && i < 50*histories; i++ {
				random := rand.New(rand.NewPCG(seed+i, 1))
				events := legal(random, recipe{calls: 10 + random.IntN(40), short: random.IntN(3) == 0, principal: "p"})
				bad, ok := mutation.mutate(random, slices.Clone(events))
				if !ok {
					continue
				}
				tried++
				if found := CheckAll(events); len(found) != 0 {
					t.Fatalf("seed %d: before: %v", seed+i, found[0])
				}
				found := CheckAll(bad)
				if len(found) == 0 {
					t.Fatalf("seed %d passes:\n%s", seed+i, story(bad))
				}
				if found[0].Rule == Undecided {
					t.Fatalf("seed %d: %v", seed+i, found)
				}
			}
			if tried < histories {
				t.Errorf("only %d histories have what is changed", tried)
			}
		})
	}
}

// TestOrderDoesNotMatter: events may come in any order (invariant 3), and stay as they are.
func TestOrderDoesNotMatter(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	events := legal(random, recipe{calls: 60, unsure: true, principal: "p"})
	events = append(events, waits(9, 1, 2, 500), replays(8, 3, 4, 200))
	want := CheckAll(events)
	if len(want) == 0 {
		t.Fatal("nothing is wrong with it")
	}
	for range 10 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		before := slices.Clone(events)
		got := CheckAll(events)
		if !slices.Equal(got, want) {
			t.Fatalf("%v, not %v", got, want)
		}
		if !slices.Equal(events, before) {
			t.Fatal("the events were changed")
		}
	}
}
