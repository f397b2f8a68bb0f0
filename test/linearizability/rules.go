package linearizability

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

func byAnswer(a, b *history.Event) int { return cmp.Compare(a.Answered, b.Answered) }

// plain reports whether the rules of package history are the identity's: nothing is held in
// doubt or settled by others, and no window ends.
func (i *identity) plain() bool {
	for _, e := range i.events {
		kind, asked := e.Asked()
		if e.Hold || e.Kind == history.InDoubt || asked && (kind == history.Resolved || kind == history.Purged) {
			return false
		}
	}
	return !mayEnd(i.events)
}

// foreign reports answers that hold what is another's: a response that was committed to
// another identity only, an owner who never asked for this one, a fence shown to who does
// not hold it.
func foreign(identities []*identity) []history.Violation {
	f := &foreigners{responses: map[history.Digest]*history.Event{}}
	for _, i := range identities {
		for _, e := range i.events {
			if responds(e) && e.Response != (history.Digest{}) && f.responses[e.Response] == nil {
				f.responses[e.Response] = e
			}
		}
	}
	for _, i := range identities {
		f.check(i)
	}
	return f.found
}

type foreigners struct {
	responses map[history.Digest]*history.Event // by whom it was committed, of any identity
	found     []history.Violation
}

// responds reports whether the call has the record answer with its response.
func responds(e *history.Event) bool {
	kind, asked := e.Asked()
	return asked && (kind == history.Committed || kind == history.Resolved && (e.Applied || e.Kind == history.Refused))
}

func (f *foreigners) check(i *identity) {
	responses := map[history.Digest]time.Duration{} // when it was first sent
	owners := map[string]bool{}
	for _, e := range i.events {
		kind, asked := e.Asked()
		if asked && kind == history.Granted {
			owners[e.Owner] = true
		}
		if responds(e) {
			if sent, ok := responses[e.Response]; !ok || e.Sent < sent {
				responses[e.Response] = e.Sent
			}
		}
	}
	for _, e := range i.events {
		if e.Unanswered() {
			continue
		}
		if e.Kind == history.Replayed && e.Response != (history.Digest{}) {
			sent, ok := responses[e.Response]
			other := f.responses[e.Response]
			switch {
			case ok && sent <= e.Answered:
			case !ok && other != nil:
				f.report(ForeignAnswer, "%v; it was committed by %v", e, other)
			default:
				f.report(history.WrongReplay, "nobody had committed it: %v", e)
			}
		}
		if e.Holder != "" && !owners[e.Holder] {
			f.report(ForeignAnswer, "%v; shown %q, who never asked for this", e, e.Holder)
		}
		if reserved := e.Attempt != (history.Attempt{}); reserved && e.Fence != 0 &&
			(e.Kind == history.Pending || e.Kind == history.InDoubt || e.Kind == history.Replayed) {
			f.report(ForeignAnswer, "the holder's fence, shown to another: %v", e)
		}
	}
}

func (f *foreigners) report(rule history.Rule, format string, arguments ...any) {
	f.found = append(f.found, history.Violation{Rule: rule, Text: fmt.Sprintf(format, arguments...)})
}

// reservation is a grant, and what its owner was promised.
type reservation struct {
	grant *history.Event
	// until is the latest moment that any answer promised, or what was asked for
	// from the moment at which it was asked.
	until time.Duration
	// late is the latest moment at which it may end, but for lateness.
	late time.Duration
	// twice: the attempt has another grant with another fence.
	twice bool
}

// deadlines checks grants against the clock alone, without an order: nobody else is
// admitted before the deadline of the one before, and nobody is shown as the holder
// after it but for the lateness that is allowed.
func (i *identity) deadlines(options *Options) []history.Violation {
	var found []history.Violation
	report := func(rule history.Rule, format string, arguments ...any) {
		found = append(found, history.Violation{Rule: rule, Text: i.name + ": " + fmt.Sprintf(format, arguments...)})
	}
	for _, e := range i.events {
		// Whatever it waited is part of the time until it was answered.
		if e.Kind == history.Granted && !e.Unknown && e.Tries > 0 && !e.Repeated && e.TTL > 0 && e.Deadline > plus(e.Answered, most(e.TTL)) {
			report(Late, "promised longer than it was asked for: %v", e)
		}
	}
	all := i.reservations()
	if len(all) == 0 {
		return found
	}
	if !i.plain() { // package history does the same for plain ones
		freed := i.freed()
		for n := range len(all) - 1 {
			a, b := &all[n], all[n+1].grant
			over := min(a.until, freed[history.Attempt{}])
			if free, ok := freed[a.grant.Attempt]; ok {
				over = min(over, free)
			}
			if b.Answered < over {
				report(history.DoubleGrant, "%v, promised until %v; then %v", a.grant, a.until, b)
			}
		}
	}
	if options.Lateness == nil || mayEnd(i.events) {
		return found // numbers may begin anew
	}
	numbers := map[uint32]*reservation{}
	again := map[uint32]bool{}
	for n := range all {
		number := all[n].grant.Number
		again[number] = again[number] || numbers[number] != nil
		numbers[number] = &all[n]
	}
	for _, e := range i.events {
		if e.Kind != history.Pending || e.Unanswered() || again[e.Number] {
			continue
		}
		a := numbers[e.Number]
		if a == nil || a.late == forever {
			continue
		}
		if bound := plus(a.late, options.Lateness(e.Shard, a.grant.Sent, lastSent(e))); lastSent(e) > bound {
			report(Late, "%v, over at %v at the latest, %v with what lateness allows; but %v", a.grant, a.late, bound, e)
		}
	}
	return found
}

// reservations returns the known grants of the identity by fence, each once. An attempt that
// was granted twice, its id forgotten in between, is left out.
func (i *identity) reservations() []reservation {
	asked := map[history.Attempt]time.Duration{}
	granted := map[history.Attempt]*reservation{}
	for _, e := range i.events {
		kind, is := e.Asked()
		if !is || kind != history.Granted {
			continue
		}
		if sent, ok := asked[e.Attempt]; !ok || e.Sent < sent {
			asked[e.Attempt] = e.Sent
		}
		if e.Kind != history.Granted || e.Unknown {
			continue
		}
		r := granted[e.Attempt]
		switch {
		case r == nil:
			granted[e.Attempt] = &reservation{grant: e, until: e.Deadline}
		case r.grant.Fence != e.Fence:
			r.twice = true
		default:
			r.until = max(r.until, e.Deadline)
		}
	}
	var all []reservation
	for attempt, r := range granted {
		r.late = forever
		if ttl := r.grant.TTL; ttl > 0 {
			r.until = max(r.until, plus(asked[attempt], least(ttl)))
			r.late = plus(r.grant.Answered, most(ttl))
		}
	}
	for _, e := range i.events {
		r := granted[e.Attempt]
		if kind, is := e.Asked(); r == nil || !is || kind != history.Extended {
			continue
		}
		if !e.Unanswered() {
			r.until = max(r.until, e.Deadline)
		}
		if r.late != forever && e.TTL > 0 && e.Tries == 1 && !e.Unanswered() {
			r.late = max(r.late, plus(e.Answered, most(e.TTL)))
		} else {
			r.late = forever // who knows when it was carried out
		}
	}
	for _, r := range granted {
		if !r.twice {
			all = append(all, *r)
		}
	}
	slices.SortFunc(all, func(a, b reservation) int {
		return cmp.Or(cmp.Compare(a.grant.Fence, b.grant.Fence), cmp.Compare(a.grant.Answered, b.grant.Answered))
	})
	return all
}

// freed returns for each attempt when it was first asked to end before its deadline; for
// the zero attempt, when anybody was asked to end any.
func (i *identity) freed() map[history.Attempt]time.Duration {
	freed := map[history.Attempt]time.Duration{{}: forever}
	for _, e := range i.events {
		kind, asked := e.Asked()
		if !asked {
			continue
		}
		switch kind {
		case history.Released, history.Committed, history.Resolved, history.Purged:
			if sent, ok := freed[e.Attempt]; !ok || e.Sent < sent {
				freed[e.Attempt] = e.Sent
			}
		}
	}
	return freed
}
