package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const second = time.Second

// at returns an event of the key "k" that took place between two seconds.
func at(kind Kind, attempt byte, sent, answered int) Event {
	return Event{
		Kind: kind, Key: "k", Attempt: Attempt{attempt},
		Sent: time.Duration(sent) * second, Answered: time.Duration(answered) * second,
	}
}

func grant(attempt byte, sent, answered int, fence uint64, number uint32, until int) Event {
	e := at(Granted, attempt, sent, answered)
	e.Fence, e.Number, e.Deadline = fence, number, time.Duration(until)*second
	return e
}

func after(e Event, end End, fence uint64) Event {
	e.Previous, e.PreviousFence = end, fence
	return e
}

func answer(e Event, response byte) Event {
	e.Response = Digest{response}
	return e
}

func holder(e Event, number uint32) Event {
	e.Number = number
	return e
}

func refused(e Event, call Kind, reason string) Event {
	e.Call, e.Reason = call, reason
	return e
}

func extended(e Event, until int) Event {
	e.Deadline = time.Duration(until) * second
	return e
}

func unknown(e Event) Event {
	e.Unknown = true
	return e
}

func repeated(e Event) Event {
	e.Repeated = true
	return e
}

func by(principal string, e Event) Event {
	e.Principal = principal
	return e
}

func of(key string, e Event) Event {
	e.Key = key
	return e
}

// TestCheckAccepts: what may happen is no violation (invariant 1).
func TestCheckAccepts(t *testing.T) {
	histories := map[string][]Event{
		"nothing": nil,
		"granted, committed, replayed": {
			grant(1, 0, 1, 1, 1, 100), holder(at(Pending, 2, 2, 3), 1),
			answer(at(Committed, 1, 4, 5), 7), answer(at(Replayed, 3, 6, 7), 7),
		},
		"released, granted again": {
			grant(1, 0, 1, 1, 1, 100), at(Released, 1, 2, 3), after(grant(2, 4, 5, 3, 2, 104), EndReleased, 1),
		},
		"granted while the release is under way": {
			grant(1, 0, 1, 1, 1, 100), at(Released, 1, 2, 9), after(grant(2, 3, 4, 3, 2, 104), EndReleased, 1),
		},
		"a release without an answer": {
			grant(1, 0, 1, 1, 1, 100), unknown(at(Released, 1, 2, 3)), after(grant(2, 8, 9, 3, 2, 104), EndReleased, 1),
		},
		"a release whose answer was lost, and whose retry came after the next grant": {
			grant(1, 0, 1, 1, 1, 100), after(grant(2, 4, 5, 3, 2, 104), EndReleased, 1),
			refused(at(Refused, 1, 2, 7), Released, "RESERVATION_LOST"),
		},
		"lapsed, granted again, the old owner refused": {
			grant(1, 0, 1, 1, 1, 5), after(grant(2, 4, 6, 3, 2, 104), EndLapsed, 1),
			refused(at(Refused, 1, 6, 7), Committed, "RESERVATION_LOST"),
		},
		"extended, then lapsed": {
			grant(1, 0, 1, 1, 1, 5), extended(at(Extended, 1, 4, 5), 9), after(grant(2, 9, 10, 3, 2, 104), EndLapsed, 1),
		},
		"a grant whose answer was lost": {
			unknown(grant(1, 0, 1, 0, 0, 0)), after(grant(2, 8, 9, 3, 2, 104), EndLapsed, 1),
		},
		"a commit without an answer, replayed": {
			grant(1, 0, 1, 1, 1, 5), unknown(answer(at(Committed, 1, 2, 3), 7)), answer(at(Replayed, 2, 2, 4), 7),
		},
		"a commit that was seen, and not what it said": {
			grant(1, 0, 1, 1, 1, 5), answer(at(Committed, 1, 2, 3), 7), at(Replayed, 0, 4, 5),
			answer(at(Replayed, 2, 6, 7), 7), at(Replayed, 0, 8, 9),
		},
		"a commit that overlaps with a pending answer": {
			grant(1, 0, 1, 1, 1, 100), answer(at(Committed, 1, 2, 5), 7), holder(at(Pending, 2, 4, 6), 1),
		},
		"overlapping grants in either order": {
			grant(1, 0, 5, 2, 1, 100), of("l", grant(2, 1, 4, 1, 1, 100)), of("m", grant(3, 2, 6, 3, 1, 100)),
		},
		"a second commit is refused": {
			grant(1, 0, 1, 1, 1, 100), answer(at(Committed, 1, 2, 3), 7),
			answer(refused(at(Refused, 1, 4, 5), Committed, "COMMIT_CONFLICT"), 8),
		},
		"refused for what has nothing to do with the record": {
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 2, 3), Committed, "OVERLOADED"),
			refused(at(Refused, 2, 2, 3), Granted, "FINGERPRINT_MISMATCH"),
		},
		"refused to somebody with any token": {
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 2, 2, 3), Released, "RESERVATION_LOST"),
		},
		"granted with the second delivery, told of it with the first": {
			of("l", grant(2, 1, 2, 3, 1, 100)), unknown(grant(1, 0, 1, 0, 0, 0)), repeated(grant(1, 4, 5, 1, 1, 100)),
		},
		"an id that is forgotten": {
			grant(1, 0, 1, 1, 1, 100), at(Released, 1, 2, 3), after(grant(1, 700, 701, 3, 2, 800), EndReleased, 1),
		},
		"keys of two principals": {
			grant(1, 0, 1, 1, 1, 100), by("q", grant(2, 2, 3, 3, 1, 104)),
		},
		"a grant that was answered twice": {
			grant(1, 0, 1, 1, 1, 100), grant(1, 0, 3, 1, 1, 100),
		},
	}
	for name, events := range histories {
		t.Run(name, func(t *testing.T) {
			if found := Check(events); len(found) != 0 {
				t.Errorf("%v", found)
			}
		})
	}
}

// TestCheckCatches: the checker can fail, and does so for the right reason.
func TestCheckCatches(t *testing.T) {
	histories := []struct {
		name   string
		rule   Rule
		events []Event
	}{
		{"granted to two", DoubleGrant, []Event{
			grant(1, 0, 1, 1, 1, 100), after(grant(2, 2, 3, 3, 2, 104), EndLapsed, 1)}},
		{"granted to two at once", DoubleGrant, []Event{
			grant(1, 0, 5, 1, 1, 100), after(grant(2, 0, 5, 3, 2, 104), EndLapsed, 1)}},
		{"granted before the deadline of an acknowledged extension", DoubleGrant, []Event{
			grant(1, 0, 1, 1, 1, 5), extended(at(Extended, 1, 3, 4), 20), after(grant(2, 8, 9, 3, 2, 104), EndLapsed, 1)}},
		{"granted anew after the record was forgotten", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 100), grant(2, 2, 3, 3, 1, 104)}},
		{"granted anew after a lapse, but the record was forgotten", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 5), grant(2, 8, 9, 3, 1, 104)}},
		{"the first grant is not the first", LostGrant, []Event{
			after(grant(2, 8, 9, 3, 2, 104), EndLapsed, 1)}},
		{"an older holder is seen", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 100), at(Released, 1, 2, 3), after(grant(2, 4, 5, 3, 2, 104), EndReleased, 1),
			holder(at(Pending, 3, 6, 7), 1)}},
		{"told of a fence that nobody had", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 5), after(grant(2, 8, 9, 5, 2, 104), EndLapsed, 3)}},
		{"held, but no record", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 100), at(Missing, 0, 2, 3)}},
		{"held, but seen as lapsed", LostGrant, []Event{
			grant(1, 0, 1, 1, 1, 100), holder(at(Free, 0, 2, 3), 1)}},
		{"granted after a commit", LostCommit, []Event{
			grant(1, 0, 1, 1, 1, 2), answer(at(Committed, 1, 2, 3), 7), after(grant(2, 4, 5, 3, 2, 104), EndLapsed, 1)}},
		{"pending after a commit", LostCommit, []Event{
			grant(1, 0, 1, 1, 1, 100), answer(at(Committed, 1, 2, 3), 7), holder(at(Pending, 2, 4, 5), 1)}},
		{"a commit that was seen and is gone", LostCommit, []Event{
			grant(1, 0, 1, 1, 1, 5), unknown(answer(at(Committed, 1, 2, 3), 7)), answer(at(Replayed, 2, 4, 5), 7),
			holder(at(Pending, 3, 6, 7), 1)}},
		{"the replay differs from the commit", WrongReplay, []Event{
			grant(1, 0, 1, 1, 1, 100), answer(at(Committed, 1, 2, 3), 7), answer(at(Replayed, 2, 4, 5), 8)}},
		{"a replay of what nobody committed", WrongReplay, []Event{
			grant(1, 0, 1, 1, 1, 100), answer(at(Replayed, 2, 4, 5), 8)}},
		{"a replay from the future", WrongReplay, []Event{
			grant(1, 0, 1, 1, 1, 100), answer(at(Replayed, 2, 2, 3), 7), answer(at(Committed, 1, 4, 5), 7)}},
		{"seen as committed, which nobody asked for", WrongReplay, []Event{
			grant(1, 0, 1, 1, 1, 100), at(Replayed, 0, 2, 3)}},
		{"seen as committed, then as gone", LostCommit, []Event{
			grant(1, 0, 1, 1, 1, 100), unknown(answer(at(Committed, 1, 2, 3), 7)), at(Replayed, 0, 4, 5), at(Missing, 0, 6, 7)}},
		{"two replays that differ, and a look between", WrongReplay, []Event{
			grant(1, 0, 1, 1, 1, 100), unknown(answer(at(Committed, 1, 2, 3), 7)), unknown(answer(at(Committed, 1, 2, 3), 8)),
			answer(at(Replayed, 2, 4, 5), 7), at(Replayed, 0, 6, 7), answer(at(Replayed, 2, 8, 9), 8)}},
		{"one fence for two keys", RepeatedFence, []Event{
			grant(1, 0, 1, 1, 1, 100), of("l", grant(2, 2, 3, 1, 1, 104))}},
		{"two fences for one attempt", RepeatedFence, []Event{
			grant(1, 0, 1, 1, 1, 100), grant(1, 0, 3, 3, 1, 104)}},
		{"a lower fence later", FenceOrder, []Event{
			grant(1, 0, 1, 5, 1, 100), of("l", grant(2, 2, 3, 3, 1, 104))}},
		{"pending after a release", LostRelease, []Event{
			grant(1, 0, 1, 1, 1, 100), at(Released, 1, 2, 3), holder(at(Pending, 2, 4, 5), 1)}},
		{"lapsed after a release", LostRelease, []Event{
			grant(1, 0, 1, 1, 1, 5), at(Released, 1, 2, 3), after(grant(2, 8, 9, 3, 2, 104), EndLapsed, 1)}},
		{"released, said nobody", LostRelease, []Event{
			grant(1, 0, 1, 1, 1, 5), after(grant(2, 8, 9, 3, 2, 104), EndReleased, 1)}},
		{"the owner's record is gone", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 5), refused(at(Refused, 1, 6, 7), Committed, "RESERVATION_NOT_FOUND")}},
		{"the owner is lost within its time", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 6, 7), Committed, "RESERVATION_LOST")}},
		{"released by nobody", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 6, 7), Committed, "ALREADY_RELEASED")}},
		{"committed by nobody", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 6, 7), Released, "ALREADY_COMMITTED")}},
		{"settled by nobody", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 6, 7), Extended, "RESERVATION_LAPSED")}},
		{"its own commit conflicts", WrongRefusal, []Event{
			grant(1, 0, 1, 1, 1, 100), refused(at(Refused, 1, 6, 7), Committed, "COMMIT_CONFLICT")}},
	}
	for _, history := range histories {
		t.Run(history.name, func(t *testing.T) {
			found := Check(history.events)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == history.rule }) {
				t.Errorf("no %s in %v", history.rule, found)
			}
		})
	}
}

// TestCheckIgnoresOrder: events may come in any order (invariant 2).
func TestCheckIgnoresOrder(t *testing.T) {
	events := []Event{
		grant(1, 0, 1, 1, 1, 100), after(grant(2, 2, 3, 3, 2, 104), EndLapsed, 1), answer(at(Committed, 2, 4, 5), 7),
		answer(at(Replayed, 3, 6, 7), 8), of("l", grant(4, 8, 9, 3, 1, 104)),
	}
	want := Check(events)
	if len(want) != 4 {
		t.Fatalf("%v", want)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		if got := Check(events); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v, not %v", got, want)
		}
	}
}
