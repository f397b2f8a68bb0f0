package linearizability

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// namedMax bounds how many attempts, of which nobody knows whether they were granted, are
// told apart where that only matters for what they were told themselves. More of them
// become anonymous: their order cannot be searched.
const namedMax = 4

// doubtful reports whether the call may have been carried out apart from what the answer
// says.
func doubtful(e *history.Event) bool { return e.Unanswered() || e.Tries != 1 }

// lastSent is when the answered try was sent at the earliest.
func lastSent(e *history.Event) time.Duration { return max(e.Sent, e.LastSent) }

// partition is the history of one identity.
type partition struct {
	identity   string
	events     []*history.Event
	model      *model
	operations []*operation
}

// translator makes operations of the events of one identity.
type translator struct {
	*partition
	attempts map[history.Attempt]attempt
	pools    map[terms][]*operation
	named    int
	reads    []*operation
}

// newPartition translates the history of one identity.
func newPartition(identity string, events []*history.Event, options *Options) *partition {
	p := &partition{identity: identity, events: events, model: &model{shard: events[0].Shard, lateness: options.Lateness}}
	t := &translator{partition: p, attempts: map[history.Attempt]attempt{}, pools: map[terms][]*operation{}}
	t.survey()
	for _, group := range t.byAttempt() {
		t.reserves(group)
		t.settles(group, history.Committed, commit)
		t.settles(group, history.Released, release)
		for _, e := range group.events {
			if kind, _ := e.Asked(); kind == history.Extended {
				t.extends(group.attempt, e)
			}
		}
	}
	for _, e := range events {
		switch kind, asked := e.Asked(); {
		case !asked && !e.Unknown:
			t.reads = append(t.reads, t.answered(get, nobody, e))
		case asked && kind == history.Resolved:
			t.administers(resolve, e)
		case asked && kind == history.Purged:
			t.administers(purge, e)
		}
	}
	t.operations = append(t.operations, t.reduce()...)
	t.line()
	return p
}

// group is what one attempt did.
type group struct {
	attempt attempt
	events  []*history.Event
}

// byAttempt groups the calls of attempts, in the order of their first events.
func (t *translator) byAttempt() []group {
	var groups []group
	for _, e := range t.events {
		if e.Attempt == (history.Attempt{}) {
			continue
		}
		number, known := t.attempts[e.Attempt]
		if !known {
			number = attempt(len(groups))
			t.attempts[e.Attempt] = number
			groups = append(groups, group{attempt: number})
		}
		groups[number].events = append(groups[number].events, e)
	}
	return groups
}

// answered returns the operation that the answer describes.
func (t *translator) answered(w what, a attempt, e *history.Event) *operation {
	return &operation{
		what: w, call: lastSent(e), answered: e.Answered, attempt: a, event: e, terms: termsOf(e),
		told: e.Tries > 0 || e.Late, late: e.Late,
	}
}

// hidden returns one of which nobody knows what came.
func (t *translator) hidden(w what, a attempt, sent time.Duration, e *history.Event) *operation {
	return &operation{what: w, call: sent, answered: forever, attempt: a, event: e, terms: termsOf(e), hidden: true}
}

func (t *translator) add(o *operation) { t.operations = append(t.operations, o) }

// effect decides when an attempt was granted that several answers say was. An answer says
// whether it was repeated; where that was not recorded, the first may stand for any
// delivery since the first was sent.
func (t *translator) effect(all []*operation, sent time.Duration) {
	fresh := slices.ContainsFunc(all, func(o *operation) bool { return o.event.Tries > 0 && !o.event.Repeated })
	for _, o := range all {
		o.fresh = o.event.Tries > 0 && !o.event.Repeated
		o.repeat = fresh && !o.fresh || o.event.Tries > 0 && o.event.Repeated
	}
	if fresh {
		return
	}
	first := slices.MinFunc(all, func(a, b *operation) int { return cmp.Compare(a.answered, b.answered) })
	switch {
	case !first.repeat:
		first.call = min(first.call, sent)
	case sent < forever:
		unseen := *first
		unseen.call, unseen.repeat, unseen.unseen = sent, false, true
		t.add(&unseen)
	}
}

// reserves translates the Reserves of an attempt.
func (t *translator) reserves(g group) {
	granted := map[uint64][]*operation{} // by fence: an id that is forgotten may be granted again
	var told []*operation
	var doubt *history.Event
	sent, notBefore := forever, time.Duration(0)
	owns, ended, waits := false, false, false
	for _, e := range g.events {
		kind, _ := e.Asked()
		if kind != history.Granted {
			owns = true
			continue
		}
		if doubtful(e) && e.Sent < sent {
			doubt, sent = e, e.Sent
		}
		switch {
		case e.Silent():
		case e.Kind == history.Granted:
			granted[e.Fence] = append(granted[e.Fence], t.answered(reserve, g.attempt, e))
		default:
			told = append(told, t.answered(reserve, g.attempt, e))
			ended = ended || e.Kind == history.Ended
			if e.Kind == history.Pending {
				waits = true
				notBefore = max(notBefore, lastSent(e)) // it was not granted before
			}
		}
	}
	for _, fence := range slices.Sorted(maps.Keys(granted)) {
		t.effect(granted[fence], sent)
		t.operations = append(t.operations, granted[fence]...)
	}
	name := g.attempt
	switch {
	case len(granted) > 0:
	case doubt != nil:
		if t.model.granted == nil {
			notBefore = 0 // it may have been forgotten since
		}
		if !owns && !ended && (!waits || t.named >= namedMax) {
			name = anonymous
		} else if !owns && !ended {
			t.named++
		}
		o := t.hidden(reserve, name, max(sent, notBefore), doubt)
		o.ended = owns || ended
		if name == anonymous {
			t.pools[o.terms] = append(t.pools[o.terms], o)
		}
		t.add(o)
	case !owns && !ended:
		name = anonymous // it is told apart from no one
	}
	for _, o := range told {
		o.attempt = name
	}
	t.reads = append(t.reads, told...)
}

// request is what one of several Commits or Releases of an attempt says.
type request struct {
	fence     uint64
	response  history.Digest
	note      string
	retention time.Duration
}

// settles translates an attempt's Commits, or its Releases. Only one of them makes a
// change.
func (t *translator) settles(g group, kind history.Kind, w what) {
	doubts := map[request]*history.Event{} // the first of each that may have been carried out unseen
	done := map[request][]*operation{}
	var order []request
	fresh := false
	for _, e := range g.events {
		if asked, _ := e.Asked(); asked != kind {
			continue
		}
		r := request{e.Fence, e.Response, e.Note, e.Retention}
		if !slices.Contains(order, r) {
			order = append(order, r)
		}
		if doubtful(e) && (doubts[r] == nil || e.Sent < doubts[r].Sent) {
			doubts[r] = e
		}
		if e.Silent() {
			continue
		}
		o := t.answered(w, g.attempt, e)
		if e.Kind == kind {
			o.fresh, o.repeat = e.Tries > 0 && !e.Repeated, e.Tries > 0 && e.Repeated
			fresh = fresh || o.fresh
			done[r] = append(done[r], o)
		}
		t.add(o)
	}
	if fresh {
		return
	}
	for _, r := range order {
		if doubts[r] == nil {
			continue
		}
		sent := doubts[r].Sent
		all := slices.DeleteFunc(slices.Clone(done[r]), func(o *operation) bool { return o.repeat })
		if len(all) == 0 {
			t.add(t.hidden(w, g.attempt, sent, doubts[r]))
			continue
		}
		// The first answer may stand for any delivery.
		first := slices.MinFunc(all, func(a, b *operation) int { return cmp.Compare(a.answered, b.answered) })
		first.call = min(first.call, sent)
	}
}

// extendsMax bounds how often an Extend is taken to have been delivered unseen, where that was
// not recorded, or was more often.
const extendsMax = 4

// extends translates one Extend. Each delivery moves the deadline.
func (t *translator) extends(a attempt, e *history.Event) {
	unseen := e.Tries
	if !e.Silent() {
		t.add(t.answered(extend, a, e))
		unseen--
	}
	if !doubtful(e) {
		return
	}
	if e.Tries == 0 || unseen > extendsMax {
		unseen = extendsMax
	}
	if from, ok := t.model.extends[a]; !ok || e.Sent < from {
		t.model.extends[a] = e.Sent
	}
	for range unseen {
		t.add(t.hidden(extend, a, e.Sent, e))
	}
}

// administers translates a Resolve or a Purge. Resolving twice is resolving once. A delivery
// of a Purge that found nothing is answered like one that did it, and another delivery may
// do it later.
func (t *translator) administers(w what, e *history.Event) {
	if !e.Silent() {
		o := t.answered(w, nobody, e)
		if e.Kind != history.Refused && doubtful(e) {
			o.call = e.Sent
		}
		t.add(o)
	}
	if doubtful(e) && (e.Silent() || e.Kind == history.Refused || w == purge) {
		t.add(t.hidden(w, nobody, e.Sent, e))
	}
}
