package linearizability

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// naive is a coordinator as simple as it goes: it does one thing after the other, at
// moments that it knows, and lapses on the spot. Histories are made with it; the model
// that is tested has no such knowledge.
type naive struct {
	random *rand.Rand
	now    time.Duration
	last   uint64 // the last number that was given out
	late   time.Duration
	kinds  []history.Event // what is asked for

	exists   bool
	state    history.State
	holder   history.Attempt
	number   uint32
	fence    uint64
	revision uint64
	lapses   uint64 // the revision from the deadline on
	asked    history.Event
	before   history.Event
	// tellsBefore: a repeated grant is told how the attempt before ended. Where nobody records
	// what was repeated, one cannot do without.
	tellsBefore bool
	deadline    time.Duration
	over        time.Duration
	response    history.Digest
	note        string
	wasLate     bool
	settled     bool
	settledAs   bool
	settledAt   uint64
	ended       map[history.Attempt]bool
}

// drawn returns how long an interval takes on the observer's clock: clocks differ, and
// deadlines may be late.
func (n *naive) drawn(interval time.Duration) time.Duration {
	interval += time.Duration(float64(interval) * 0.0005 * (2*n.random.Float64() - 1))
	if n.late > 0 {
		interval += time.Duration(n.random.Int64N(int64(n.late)))
	}
	return interval
}

// passes lets time pass.
func (n *naive) passes(now time.Duration) {
	n.now = now
	if n.exists && n.state == history.StatePending && now >= n.deadline {
		n.revision = n.lapses
		n.ended[n.holder] = true
		n.state = history.StateLapsed
		if n.asked.Hold {
			n.state = history.StateInDoubt
		}
	}
	if n.exists && n.state != history.StatePending && n.state != history.StateInDoubt && now >= n.over {
		n.exists = false
	}
}

func (n *naive) next() uint64 { n.last++; return n.last }

func (n *naive) refuse(e *history.Event, reason string) {
	e.Call, e.Kind, e.Reason = e.Kind, history.Refused, reason
}

func (n *naive) reserve(e *history.Event) {
	switch compared := n.exists && n.state != history.StateReleased; {
	case compared && n.asked.Fingerprint != e.Fingerprint:
		n.refuse(e, "FINGERPRINT_MISMATCH")
	case n.exists && n.state == history.StatePending && n.holder == e.Attempt:
		e.Repeated = true
		n.tells(e)
	case n.exists && n.state == history.StateCommitted:
		e.Kind, e.Response = history.Replayed, n.response
	case n.exists && n.state == history.StateInDoubt:
		e.Kind, e.Holder = history.InDoubt, n.asked.Owner
	case n.ended[e.Attempt]:
		e.Kind = history.Ended
	case n.exists && n.state == history.StatePending:
		e.Kind, e.Number, e.Holder = history.Pending, n.number, n.asked.Owner
	default:
		previous, fence, note := history.EndNone, uint64(0), ""
		number := uint32(1)
		if n.exists {
			number, fence = n.number+1, n.fence
			previous = history.EndLapsed
			if n.state == history.StateReleased {
				previous, note = history.EndReleased, n.note
			}
		}
		n.exists, n.state, n.holder, n.number = true, history.StatePending, e.Attempt, number
		n.fence = n.next()
		n.revision, n.lapses = n.fence, n.next()
		n.asked, n.settled, n.note = *e, false, ""
		n.until(n.now + n.drawn(e.TTL))
		e.Previous, e.PreviousFence, e.Note = previous, fence, note
		n.before = *e
		n.tells(e)
	}
}

func (n *naive) until(deadline time.Duration) {
	n.deadline = deadline
	n.over = deadline + n.drawn(n.asked.Retention)
}

// tells says in a grant what its owner is told, by the leader's clock.
func (n *naive) tells(e *history.Event) {
	e.Fence, e.Number = n.fence, n.number
	if e.Repeated {
		// It may be told what it was told then.
		e.Previous, e.PreviousFence, e.Note = history.EndNone, 0, ""
		if n.tellsBefore || n.random.IntN(2) == 0 {
			e.Previous, e.PreviousFence, e.Note = n.before.Previous, n.before.PreviousFence, n.before.Note
		}
	}
	n.promises(e)
}

func (n *naive) promises(e *history.Event) {
	remaining := max(n.deadline-n.now-n.late, 1)
	e.Deadline = max(e.Sent, e.LastSent) + remaining/1000*999
}

// owns reports whether the call is the holder's, else it is refused.
func (n *naive) owns(e *history.Event) bool {
	switch {
	case !n.exists:
		n.refuse(e, "RESERVATION_NOT_FOUND")
	case n.holder != e.Attempt || n.fence != e.Fence:
		n.refuse(e, "RESERVATION_LOST")
	default:
		return true
	}
	return false
}

func (n *naive) commit(e *history.Event) {
	if !n.owns(e) {
		return
	}
	switch {
	case n.state == history.StateReleased:
		n.refuse(e, "ALREADY_RELEASED")
	case n.state == history.StateCommitted && n.response != e.Response:
		n.refuse(e, "COMMIT_CONFLICT")
	case n.state == history.StateCommitted:
		e.Repeated = true
		e.Late = n.wasLate && n.random.IntN(2) == 0
	default:
		n.wasLate = n.state != history.StatePending
		e.Late = n.wasLate
		retention := e.Retention
		if retention == 0 {
			retention = n.asked.Retention
		}
		n.settle(history.StateCommitted, retention, e.Response, "")
	}
}

func (n *naive) settle(to history.State, retention time.Duration, response history.Digest, note string) {
	n.state, n.over, n.response, n.note = to, n.now+n.drawn(retention), response, note
	n.ended[n.holder] = true
	n.revision = n.next()
}

func (n *naive) release(e *history.Event) {
	if !n.owns(e) {
		return
	}
	switch n.state {
	case history.StateCommitted:
		n.refuse(e, "ALREADY_COMMITTED")
	case history.StateReleased:
		e.Repeated = true
		e.Late = n.wasLate && n.random.IntN(2) == 0
	default:
		n.wasLate = n.state != history.StatePending
		e.Late = n.wasLate
		n.settle(history.StateReleased, max(n.asked.Retention, 10*time.Minute), history.Digest{}, e.Note)
	}
}

func (n *naive) extend(e *history.Event) {
	if !n.owns(e) {
		return
	}
	switch n.state {
	case history.StateCommitted:
		n.refuse(e, "ALREADY_COMMITTED")
	case history.StateReleased:
		n.refuse(e, "ALREADY_RELEASED")
	case history.StateInDoubt:
		n.refuse(e, "RESERVATION_LAPSED")
	default:
		n.state = history.StatePending
		delete(n.ended, n.holder)
		if to := n.now + n.drawn(e.TTL); to > n.deadline {
			n.until(to)
			n.revision, n.lapses = n.next(), n.next()
		}
		n.promises(e)
	}
}

func (n *naive) resolve(e *history.Event) {
	switch {
	case !n.exists:
		n.refuse(e, "RESERVATION_NOT_FOUND")
	case n.settled && n.settledAt == e.Revision:
		if n.settledAs != e.Applied || e.Applied && n.response != e.Response {
			n.refuse(e, "NOT_IN_DOUBT")
		}
	case n.revision != e.Revision:
		n.refuse(e, "REVISION_MISMATCH")
	case n.state != history.StateInDoubt && n.state != history.StateLapsed:
		n.refuse(e, "NOT_IN_DOUBT")
	case e.Applied:
		n.settled, n.settledAs, n.settledAt = true, true, e.Revision
		n.settle(history.StateCommitted, n.asked.Retention, e.Response, "")
	default:
		n.settled, n.settledAs, n.settledAt = true, false, e.Revision
		n.settle(history.StateReleased, max(n.asked.Retention, 10*time.Minute), history.Digest{}, e.Note)
	}
}

func (n *naive) purge(e *history.Event) {
	switch {
	case !n.exists:
	case e.Fence != 0 && (e.Fence != n.fence || n.state != history.StatePending):
		n.refuse(e, "REVISION_MISMATCH")
	case e.Fence == 0 && e.Revision != n.revision:
		n.refuse(e, "REVISION_MISMATCH")
	case !e.Force && (n.state == history.StatePending || n.state == history.StateInDoubt):
		n.refuse(e, "NOT_PURGEABLE")
	default:
		n.exists = false
		n.ended[n.holder] = true
	}
}

func (n *naive) get(e *history.Event) {
	if !n.exists {
		e.Kind = history.Missing
		return
	}
	e.Kind = map[history.State]history.Kind{
		history.StatePending: history.Pending, history.StateLapsed: history.Free, history.StateReleased: history.Free,
		history.StateInDoubt: history.InDoubt, history.StateCommitted: history.Replayed,
	}[n.state]
	e.State, e.Number, e.Holder, e.Fence, e.Revision = n.state, n.number, n.asked.Owner, n.fence, n.revision
	if n.state == history.StateCommitted {
		e.Response = n.response
	}
}

// does decides one delivery.
func (n *naive) does(at time.Duration, e *history.Event) {
	n.passes(at)
	switch kind, asked := e.Asked(); {
	case !asked:
		n.get(e)
	case kind == history.Granted:
		n.reserve(e)
	case kind == history.Committed:
		n.commit(e)
	case kind == history.Released:
		n.release(e)
	case kind == history.Extended:
		n.extend(e)
	case kind == history.Resolved:
		n.resolve(e)
	case kind == history.Purged:
		n.purge(e)
	}
}

// recipe says what kind of history is made.
type recipe struct {
	calls     int
	unsure    bool // answers are lost, calls are late and delivered twice
	terse     bool // nothing is recorded beyond what history.Check needs
	short     bool // windows end within the history
	late      time.Duration
	principal string
}

// delivery is one of a call that is still on its way.
type delivery struct {
	at time.Duration
	e  history.Event
}

// legal makes a history that the contract allows.
func legal(random *rand.Rand, r recipe) []history.Event {
	n := &naive{random: random, ended: map[history.Attempt]bool{}, late: r.late, tellsBefore: r.terse}
	for range 3 {
		kind := history.Event{Owner: []string{"a", "b"}[random.IntN(2)], TTL: time.Duration(1+random.IntN(20)) * time.Second, Retention: time.Hour}
		if r.short {
			kind.Retention = time.Duration(1+random.IntN(40)) * time.Second
		}
		kind.Hold = random.IntN(5) == 0
		if random.IntN(8) == 0 {
			kind.Fingerprint = "other"
		}
		n.kinds = append(n.kinds, kind)
	}
	var all []history.Event
	var under []delivery // way
	var tokens []history.Event
	var asked []history.Event
	revisions := []uint64{1}
	deliver := func(until time.Duration) {
		slices.SortFunc(under, func(a, b delivery) int { return int(a.at - b.at) })
		for len(under) > 0 && under[0].at < until {
			n.does(under[0].at, &under[0].e)
			under = under[1:]
		}
	}
	at := time.Second
	for range r.calls {
		at += time.Duration(random.ExpFloat64() * float64(2*time.Second))
		if random.IntN(8) == 0 {
			at += time.Duration(random.Int64N(int64(20 * time.Second)))
		}
		ask := n.draws(r, tokens, asked, revisions)
		if ask.Kind == history.Granted {
			asked = append(asked, ask)
		}
		wide := time.Second
		if random.IntN(4) == 0 {
			wide = 10 * time.Second
		}
		e := ask
		e.Sent = max(0, at-time.Duration(random.Int64N(int64(wide))))
		e.LastSent, e.Tries = e.Sent, 1
		if r.unsure {
			for random.IntN(4) == 0 && e.Tries < 4 {
				// A try before this one, that may be carried out at any time, or never.
				e.Sent = max(0, e.Sent-time.Duration(random.Int64N(int64(wide))))
				e.Tries++
				if random.IntN(3) > 0 {
					under = append(under, delivery{at: e.Sent + time.Duration(random.Int64N(int64(3*wide))), e: ask})
				}
			}
			// What would have been before now is now.
			for i := range under {
				under[i].at = max(under[i].at, n.now+1)
			}
		}
		if r.unsure && random.IntN(6) == 0 {
			e.Unknown, e.Answered = true, at+time.Duration(random.Int64N(int64(wide)))
			if random.IntN(3) > 0 {
				under = append(under, delivery{at: at + time.Duration(random.Int64N(int64(4*wide))), e: ask})
			}
			all = append(all, e)
			continue
		}
		deliver(at)
		at = max(at, n.now+1)
		e.Answered = at + time.Duration(random.Int64N(int64(wide)))
		n.does(at, &e)
		if e.Kind == history.Granted {
			tokens = append(tokens, e)
		}
		if e.Revision != 0 {
			revisions = append(revisions, e.Revision)
		}
		all = append(all, e)
	}
	timed := random.IntN(2) == 0
	for i := range all {
		if r.terse {
			e := &all[i]
			e.LastSent, e.Tries, e.Repeated, e.Late = 0, 0, false, false
			e.Owner, e.Holder, e.Note, e.State = "", "", "", history.StateUnrecorded
			if !timed {
				e.TTL = 0
			}
		}
	}
	return all
}

// draws returns a call that somebody might make.
func (n *naive) draws(r recipe, tokens, asked []history.Event, revisions []uint64) history.Event {
	random := n.random
	e := history.Event{Namespace: "default", Principal: r.principal, Operation: "op", Key: "k"}
	choice := random.IntN(100)
	if choice >= 45 && choice < 80 && len(tokens) == 0 {
		choice = 0
	}
	switch {
	case choice < 45:
		if len(asked) > 0 && random.IntN(8) == 0 {
			return asked[random.IntN(len(asked))] // the very same call once more
		}
		what := n.kinds[random.IntN(len(n.kinds))]
		e.Kind, e.Attempt, e.Owner = history.Granted, newAttempt(random), what.Owner
		e.TTL, e.Retention, e.Hold, e.Fingerprint = what.TTL, what.Retention, what.Hold, what.Fingerprint
	case choice < 80:
		token := tokens[len(tokens)-1-min(len(tokens)-1, int(random.ExpFloat64()))]
		e.Attempt, e.Fence = token.Attempt, token.Fence
		switch random.IntN(7) {
		case 0, 1:
			e.Kind, e.Response = history.Committed, history.Digest{byte(random.IntN(8) / 7), token.Attempt[0], token.Attempt[1], token.Attempt[2]}
			if r.short && random.IntN(3) == 0 {
				e.Retention = time.Duration(1+random.IntN(40)) * time.Second
			}
		case 2, 3, 4:
			e.Kind, e.Note = history.Released, []string{"so", "not so"}[random.IntN(2)]
		default:
			e.Kind, e.TTL = history.Extended, time.Duration(1+random.IntN(20))*time.Second
		}
	case choice < 92:
		e.Kind = history.Missing // a read
	case choice < 98:
		e.Kind, e.Revision, e.Applied, e.Note = history.Resolved, revisions[len(revisions)-1], random.IntN(2) == 0, "settled"
		if e.Applied {
			e.Response, e.Note = history.Digest{7, byte(random.IntN(256)), byte(random.IntN(256)), byte(random.IntN(256))}, ""
		}
	default:
		e.Kind, e.Revision, e.Force = history.Purged, revisions[len(revisions)-1], random.IntN(2) == 0
		if !r.short {
			e.Kind, e.Revision, e.Force = history.Missing, 0, false
		}
	}
	return e
}

func newAttempt(random *rand.Rand) history.Attempt {
	var a history.Attempt
	for i := range a {
		a[i] = byte(random.IntN(256))
	}
	return a
}
