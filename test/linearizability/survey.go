package linearizability

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// survey finds out what has to be known before.
func (t *translator) survey() {
	m := t.model
	single := !mayEnd(t.events)
	if single {
		m.granted = map[uint32]bool{}
	}
	if !single {
		m.highest = math.MaxUint32
	}
	m.ranks, m.followed, m.extends = map[uint64]int{}, map[uint64]bool{}, map[attempt]time.Duration{}
	for _, e := range t.events {
		m.fingerprints = m.fingerprints || e.Fingerprint != ""
		if !e.Unanswered() {
			m.end = max(m.end, e.Answered)
		}
		if !e.Unanswered() {
			m.highest = max(m.highest, e.Number)
			if e.Number == 0 && (e.Kind == history.Pending || e.Kind == history.Free || e.Kind == history.Granted) {
				m.highest = math.MaxUint32
			}
		}
		if e.Kind != history.Granted || e.Unknown {
			continue
		}
		if single && e.Number != 0 {
			m.granted[e.Number] = true
		}
		if e.Fence != 0 {
			m.ranks[e.Fence] = 0
		}
		if e.PreviousFence != 0 {
			m.followed[e.PreviousFence] = true
		}
	}
	for rank, fence := range slices.Sorted(maps.Keys(m.ranks)) {
		m.ranks[fence] = rank
	}
}

// mayEnd reports whether the record may be gone within the history, so that attempts are
// counted from 1 again. A purge whose only delivery was refused ended nothing.
func mayEnd(events []*history.Event) bool {
	shortest, first, last := forever, forever, time.Duration(0)
	for _, e := range events {
		if kind, asked := e.Asked(); asked && kind == history.Purged && (e.Kind != history.Refused || doubtful(e)) {
			return true
		}
		if e.Retention > 0 {
			shortest = min(shortest, least(e.Retention))
		}
		first, last = min(first, e.Sent), max(last, e.Answered)
	}
	return plus(first, shortest) <= last
}
