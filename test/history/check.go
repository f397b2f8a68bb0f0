package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rule is what a history may break.
type Rule string

// The rules.
const (
	// DoubleGrant: an attempt was granted while another still held the key.
	DoubleGrant Rule = "double grant"
	// LostCommit: after an acknowledged commit the key was anything but committed.
	LostCommit Rule = "lost commit"
	// WrongReplay: a replay is not what was committed.
	WrongReplay Rule = "wrong replay"
	// RepeatedFence: one fence for two attempts, or two for one.
	RepeatedFence Rule = "repeated fence"
	// FenceOrder: a later grant of the shard has a lower fence.
	FenceOrder Rule = "fence order"
	// LostGrant: a grant was forgotten: a number was used again, or an older holder
	// was seen after it.
	LostGrant Rule = "lost grant"
	// LostRelease: after an acknowledged release the attempt was seen as the holder,
	// or the next one was told of another end.
	LostRelease Rule = "lost release"
	// WrongRefusal: an owner was refused for a reason that cannot be.
	WrongRefusal Rule = "wrong refusal"
)

// rememberedFor is how long the id of an attempt is remembered at least. Then it may be
// granted like any other.
const rememberedFor = 10 * time.Minute

// Violation is one breach of a rule.
type Violation struct {
	Rule Rule
	Text string // the events that do not go together
}

// String returns the rule and the events.
func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

// checker gathers violations.
type checker struct{ found []Violation }

func (c *checker) report(rule Rule, format string, arguments ...any) {
	c.found = append(c.found, Violation{Rule: rule, Text: fmt.Sprintf(format, arguments...)})
}

// Check returns what is wrong with a history.
func Check(events []Event) []Violation {
	found := CheckFences(events)
	keys := make(map[string][]*Event)
	for i := range events {
		id := events[i].Identity()
		keys[id] = append(keys[id], &events[i])
	}
	for _, name := range sorted(keys) {
		found = append(found, CheckKey(keys[name])...)
	}
	return found
}

// CheckFences returns what is wrong with the fences of each shard.
func CheckFences(events []Event) []Violation {
	c := &checker{}
	shards := make(map[int][]*Event)
	asked := make(map[Attempt]time.Duration)
	for i := range events {
		e := &events[i]
		if !e.reserves() {
			continue
		}
		if sent, ok := asked[e.Attempt]; !ok || e.Sent < sent {
			asked[e.Attempt] = e.Sent
		}
		if e.Kind == Granted && !e.Unknown {
			shards[e.Shard] = append(shards[e.Shard], e)
		}
	}
	for _, number := range sorted(shards) {
		c.fences(shards[number], asked)
	}
	return c.found
}

// CheckKey returns what is wrong with the history of one identity.
func CheckKey(events []*Event) []Violation {
	c := &checker{}
	newKey(c, events).check()
	return c.found
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	all := make([]K, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// before reports whether a was answered before b was sent: whatever a said was so
// when b was decided.
func before(a, b *Event) bool { return !a.Unknown && a.Answered < b.Sent }

// fences checks the grants of one shard, of attempts that were first asked for at a
// time: which of several deliveries was granted, nobody knows.
func (c *checker) fences(grants []*Event, asked map[Attempt]time.Duration) {
	byAnswer := slices.Clone(grants)
	slices.SortStableFunc(byAnswer, func(a, b *Event) int { return cmp.Compare(a.Answered, b.Answered) })
	owner := make(map[uint64]*Event)
	fence := make(map[Attempt]*Event)
	first := grants[:0:0] // an attempt's first answer; a repeated grant is older than its call
	for _, g := range byAnswer {
		if other, ok := owner[g.Fence]; ok && (other.Attempt != g.Attempt || other.Identity() != g.Identity()) {
			c.report(RepeatedFence, "shard %d: %v; %v", g.Shard, other, g)
		}
		owner[g.Fence] = g
		if other, ok := fence[g.Attempt]; ok && g.Answered < other.Sent+rememberedFor {
			if other.Fence != g.Fence || other.Number != g.Number {
				c.report(RepeatedFence, "shard %d: one attempt, two grants: %v; %v", g.Shard, other, g)
			}
			continue
		}
		fence[g.Attempt] = g
		first = append(first, g)
	}
	bySent := slices.Clone(first)
	slices.SortStableFunc(bySent, func(a, b *Event) int { return cmp.Compare(asked[a.Attempt], asked[b.Attempt]) })
	answered := 0
	highest := &Event{}
	for _, g := range bySent {
		for answered < len(first) && first[answered].Answered < asked[g.Attempt] {
			if first[answered].Fence > highest.Fence {
				highest = first[answered]
			}
			answered++
		}
		if highest.Fence >= g.Fence && highest.Attempt != g.Attempt {
			c.report(FenceOrder, "shard %d: %v; then %v", g.Shard, highest, g)
		}
	}
}

// key is the history of one key.
type key struct {
	*checker
	events []*Event
	grants []*Event // the first answer to each granted attempt, by fence
	// complete: every grant of the key was seen by its caller.
	complete bool
}

func newKey(c *checker, events []*Event) *key {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b *Event) int { return cmp.Compare(a.Answered, b.Answered) })
	k := &key{checker: c, events: events, complete: true}
	seen := make(map[Attempt]bool)
	for _, e := range events {
		switch {
		case e.Kind == Granted && e.Unknown || e.Kind == Ended || e.Kind != Granted && e.reserves() && e.Tries != 1:
			k.complete = false // for all that is known, it was granted
		case e.Kind == Granted && !seen[e.Attempt]:
			seen[e.Attempt] = true
			k.grants = append(k.grants, e)
		}
	}
	slices.SortStableFunc(k.grants, func(a, b *Event) int { return cmp.Compare(a.Fence, b.Fence) })
	return k
}

func (k *key) check() {
	k.succession()
	k.commits()
	k.sightings()
	for _, e := range k.events {
		if e.Kind == Refused {
			k.refusal(e)
		}
	}
}

// of returns the owner's events of one kind.
func (k *key) of(attempt Attempt, kind Kind) []*Event {
	var found []*Event
	for _, e := range k.events {
		if e.Kind == kind && e.Attempt == attempt {
			found = append(found, e)
		}
	}
	return found
}

// deadline returns until when an attempt was promised the key.
func (k *key) deadline(attempt Attempt) time.Duration {
	var latest time.Duration
	for _, kind := range []Kind{Granted, Extended} {
		for _, e := range k.of(attempt, kind) {
			if !e.Unknown {
				latest = max(latest, e.Deadline)
			}
		}
	}
	return latest
}

// reserves reports whether the call is a Reserve.
func (e *Event) reserves() bool {
	kind, asked := e.Asked()
	return asked && kind == Granted
}

// asks reports whether the owner asked for that, whatever it was answered: an earlier try
// of a call that was refused may have been carried out.
func (e *Event) asks(kind Kind) bool {
	return e.Kind == kind || e.Kind == Refused && e.Call == kind
}

// sentBefore reports whether the owner had asked for that by then.
func (k *key) sentBefore(attempt Attempt, kind Kind, then time.Duration) bool {
	return slices.ContainsFunc(k.events, func(e *Event) bool {
		return e.Attempt == attempt && e.asks(kind) && e.Sent <= then
	})
}

// succession checks each grant against the one before it.
func (k *key) succession() {
	for i := 1; i < len(k.grants); i++ {
		a, b := k.grants[i-1], k.grants[i]
		if k.deadline(a.Attempt) > b.Answered && !k.sentBefore(a.Attempt, Released, b.Answered) {
			k.report(DoubleGrant, "%v, in the end until %v; then %v", a, k.deadline(a.Attempt), b)
		}
		switch {
		case b.Number <= a.Number, k.complete && b.Number != a.Number+1:
			k.report(LostGrant, "%v; then %v", a, b)
		case b.Number == a.Number+1:
			k.end(a, b)
		}
	}
	if k.complete && len(k.grants) > 0 && k.grants[0].Number != 1 {
		k.report(LostGrant, "nobody was granted before %v", k.grants[0])
	}
}

// end checks what the next attempt was told of the one before it.
func (k *key) end(a, b *Event) {
	if b.Repeated && b.Previous == EndNone {
		return // it may have been told the first time only
	}
	if b.PreviousFence != a.Fence && b.PreviousFence != 0 {
		k.report(LostGrant, "%v; then %v, told of fence %d", a, b, b.PreviousFence)
		return
	}
	released := k.sentBefore(a.Attempt, Released, b.Answered)
	acknowledged := slices.ContainsFunc(k.of(a.Attempt, Released), func(e *Event) bool { return before(e, b) })
	if b.Previous == EndReleased && !released || b.Previous != EndReleased && acknowledged || b.Previous == EndNone {
		k.report(LostRelease, "%v; then %v, told of end %d", a, b, b.Previous)
	}
}

// commits checks that what was committed stays, and is what is replayed.
func (k *key) commits() {
	var commit *Event
	for _, e := range k.events {
		if e.Kind == Committed && !e.Unknown {
			if commit == nil {
				commit = e
			} else if commit.Response != e.Response {
				k.report(LostCommit, "two commits: %v; %v", commit, e)
			}
		}
	}
	var replay, shown *Event // the last two of their kind: seen as committed, and with its response
	for _, e := range k.events {
		if commit != nil && before(commit, e) && !e.Unknown && e.Kind != Replayed && e.Kind != Committed && e.Kind != Ended && e.Kind != Refused {
			k.report(LostCommit, "%v; then %v", commit, e)
		}
		if e.Kind != Replayed || e.Unknown {
			continue
		}
		replay = e
		unseen := e.Response == Digest{}
		known := slices.ContainsFunc(k.events, func(c *Event) bool {
			return c.asks(Committed) && (unseen || c.Response == e.Response) && c.Sent <= e.Answered
		})
		switch {
		case !known:
			k.report(WrongReplay, "nobody committed it: %v", e)
		case unseen:
			continue
		case commit != nil && commit.Response != e.Response:
			k.report(WrongReplay, "%v; but %v", commit, e)
		case shown != nil && shown.Response != e.Response:
			k.report(WrongReplay, "%v; and %v", shown, e)
		}
		shown = e
	}
	if commit == nil && replay != nil {
		for _, e := range k.events {
			if before(replay, e) && !e.Unknown && (e.Kind == Granted || e.Kind == Pending || e.Kind == Free || e.Kind == Missing) {
				k.report(LostCommit, "%v; then %v", replay, e)
			}
		}
	}
}

// sightings checks what callers saw of attempts that were not their own.
func (k *key) sightings() {
	for _, seen := range k.events {
		if seen.Unknown || seen.Kind != Pending && seen.Kind != Free && seen.Kind != Missing {
			continue
		}
		for _, g := range k.grants {
			if !before(g, seen) || seen.Kind != Missing && seen.Number == 0 {
				continue
			}
			if seen.Number < g.Number {
				k.report(LostGrant, "%v; then %v", g, seen)
			}
			if seen.Kind != Pending || seen.Number != g.Number {
				continue
			}
			for _, r := range k.of(g.Attempt, Released) {
				if before(r, seen) {
					k.report(LostRelease, "%v; then %v", r, seen)
				}
			}
		}
		if seen.Kind == Free && k.heldThroughout(seen) {
			k.report(LostGrant, "held, but %v", seen)
		}
	}
}

// heldThroughout reports whether the attempt that was seen as over held the key all
// the time.
func (k *key) heldThroughout(seen *Event) bool {
	return slices.ContainsFunc(k.grants, func(g *Event) bool {
		return g.Number == seen.Number && before(g, seen) && k.deadlineBefore(g.Attempt, seen) > seen.Answered &&
			!k.sentBefore(g.Attempt, Released, seen.Answered)
	})
}

// deadlineBefore is the deadline by what was acknowledged before an event was sent:
// a lapsed attempt may be extended.
func (k *key) deadlineBefore(attempt Attempt, then *Event) time.Duration {
	var latest time.Duration
	for _, kind := range []Kind{Granted, Extended} {
		for _, e := range k.of(attempt, kind) {
			if before(e, then) {
				latest = max(latest, e.Deadline)
			}
		}
	}
	return latest
}

// refusal checks why an owner was refused.
func (k *key) refusal(e *Event) {
	if e.Call == Granted || e.Silent() || len(k.of(e.Attempt, Granted)) == 0 {
		return // nothing is known of the token
	}
	wrong := false
	switch e.Reason {
	case "RESERVATION_LOST":
		// Somebody else was admitted: after the deadline, or after a release.
		wrong = k.deadline(e.Attempt) > e.Answered && !k.sentBefore(e.Attempt, Released, e.Answered)
	case "RESERVATION_LAPSED":
		wrong = k.deadline(e.Attempt) > e.Answered
	case "COMMIT_CONFLICT":
		wrong = !slices.ContainsFunc(k.events, func(c *Event) bool {
			return c.Attempt == e.Attempt && c.asks(Committed) && c.Response != e.Response && c.Sent <= e.Answered
		})
	case "ALREADY_RELEASED":
		wrong = !k.sentBefore(e.Attempt, Released, e.Answered)
	case "ALREADY_COMMITTED":
		wrong = !k.sentBefore(e.Attempt, Committed, e.Answered)
	default:
		wrong = true
	}
	if wrong {
		k.report(WrongRefusal, "%v (promised until %v)", e, k.deadline(e.Attempt))
	}
}
