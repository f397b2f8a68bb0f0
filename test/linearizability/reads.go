package linearizability

import (
	"cmp"
	"slices"

	"github.com/atmostonce/coordinator/test/history"
)

// sight is what an answer says of a record that it did not change.
type sight struct {
	what        what
	attempt     attempt // where it matters who asked
	kind        history.Kind
	number      uint32
	holder      string
	fingerprint string
	response    history.Digest
	state       history.State
	fence       uint64
	revision    uint64
	reason      string
}

func sightOf(o *operation) sight {
	e := o.event
	s := sight{
		what: o.what, attempt: o.attempt, kind: e.Kind, number: e.Number, holder: e.Holder, fingerprint: e.Fingerprint,
		state: e.State, fence: e.Fence, revision: e.Revision, reason: e.Reason,
	}
	if e.Kind == history.Replayed {
		s.response = e.Response
	}
	return s
}

// reduce leaves out answers that say no more than others: of two with the same sight, one
// of which took place within the time of the other, the other says nothing new.
//
// Of a hot key nearly all answers are such; without this, the search would try all orders
// of what has no order.
func (t *translator) reduce() []*operation {
	seen := map[sight][]*operation{}
	var order []sight
	for _, o := range t.reads {
		s := sightOf(o)
		if _, ok := seen[s]; !ok {
			order = append(order, s)
		}
		seen[s] = append(seen[s], o)
	}
	var left []*operation
	for _, s := range order {
		all := innermost(seen[s])
		if len(all) > 2 && t.lasting(s) {
			all = outermost(all)
		}
		left = append(left, all...)
	}
	return left
}

// innermost returns the operations whose time does not hold that of another one, by call.
func innermost(all []*operation) []*operation {
	slices.SortStableFunc(all, func(a, b *operation) int {
		return cmp.Or(cmp.Compare(b.call, a.call), cmp.Compare(a.answered, b.answered))
	})
	earliest := forever
	var left []*operation
	for _, o := range all {
		if o.answered < earliest {
			earliest = o.answered
			left = append(left, o)
		}
	}
	slices.Reverse(left)
	return left
}

// outermost returns the one that was over first and the one that began last: a sight
// that holds without a break from the one to the other holds for all between.
func outermost(all []*operation) []*operation {
	return []*operation{all[0], all[len(all)-1]}
}

// lasting reports whether a record that is seen like this stays so without a break, and is
// never like this again.
func (t *translator) lasting(s sight) bool {
	if t.model.granted == nil {
		return false // the record may be gone, and the same come again
	}
	switch s.kind {
	case history.Replayed:
		return true // committed is for good
	case history.Pending:
		return s.number != 0 && s.revision == 0 && !t.seenLapsed(s.number)
	default:
		return false
	}
}

// seenLapsed reports whether somebody saw the holder lapsed, who may then have
// extended.
func (t *translator) seenLapsed(number uint32) bool {
	return slices.ContainsFunc(t.events, func(e *history.Event) bool {
		return e.Kind == history.Free && e.Number == number && e.State != history.StateReleased
	})
}
