package linearizability

import (
	"cmp"
	"slices"
	"time"
)

// poolsMax bounds how many kinds of anonymous attempts are told apart by how long they
// asked for. Of more kinds, each is taken for one that asked for the least.
const poolsMax = 2

// merge makes one pool of those that differ in windows only, if there are too many.
func (t *translator) merge() {
	if len(t.pools) <= poolsMax {
		return
	}
	merged := map[terms][]*operation{}
	least := map[terms]terms{}
	for asked, pool := range t.pools {
		like := asked
		like.ttl, like.retention, asked.loose = 0, 0, true
		merged[like] = append(merged[like], pool...)
		if all, ok := least[like]; ok {
			asked.ttl = min(asked.ttl, all.ttl)
			asked.retention = shorter(asked.retention, all.retention)
		}
		least[like] = asked
	}
	t.pools = map[terms][]*operation{}
	for like, pool := range merged {
		t.pools[least[like]] = pool
		for _, o := range pool {
			o.terms = least[like]
		}
	}
}

// shorter returns the shorter of two retentions, of which 0 has no end.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// line puts the anonymous of each pool in line, and the end after everything.
func (t *translator) line() {
	t.merge()
	numbers := map[terms]int{}
	for _, o := range t.operations {
		if !o.hidden || o.attempt != anonymous {
			continue
		}
		if _, ok := numbers[o.terms]; !ok {
			pool := t.pools[o.terms]
			slices.SortStableFunc(pool, func(a, b *operation) int { return cmp.Compare(a.call, b.call) })
			for turn, member := range pool {
				member.pool, member.turn = len(numbers), turn
			}
			numbers[o.terms] = len(numbers)
		}
	}
	t.model.pools = len(numbers)
	known := slices.DeleteFunc(slices.Clone(t.operations), func(o *operation) bool { return o.hidden })
	slices.SortStableFunc(known, func(a, b *operation) int { return cmp.Compare(a.answered, b.answered) })
	for n, o := range known {
		o.answer = n
		t.model.answers = append(t.model.answers, o.answered)
	}
	t.add(&operation{what: finish, call: plus(t.model.end, 1), answered: plus(t.model.end, 1), attempt: nobody})
	// Hidden operations are answered after the end.
	for _, o := range t.operations {
		if o.hidden {
			o.answered = plus(t.model.end, 2)
			// What was sent after the last answer changes nothing that anybody saw.
			o.call = min(o.call, plus(t.model.end, 2))
		}
	}
	slices.SortStableFunc(t.operations, func(a, b *operation) int { return cmp.Compare(a.call, b.call) })
}
