package linearizability

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// The rules beside those of package history.
const (
	// NotLinearizable: no order of the calls explains what their callers were told.
	NotLinearizable history.Rule = "not linearizable"
	// Undecided: the search for an order was given up. It is no pass.
	Undecided history.Rule = "undecided"
	// ForeignAnswer: an answer held what belongs to another identity, or to an owner.
	ForeignAnswer history.Rule = "foreign answer"
	// Late: a reservation was over later than lateness allows, or promised for longer than
	// it was asked for.
	Late history.Rule = "late"
)

// Options are how a history is checked. The zero value is right.
type Options struct {
	// Lateness bounds how much later than its due time something may end that began at
	// from, if it still goes on at until. It must not fall as from falls or until grows. It is
	// for the sum of all leaders that changed in between. nil: deadlines may be
	// as late as they like.
	Lateness func(shard int, from, until time.Duration) time.Duration

	// Artifacts is where the search of an identity that has no order is drawn, a page of
	// HTML each, 10 at most. Empty: nowhere.
	Artifacts string

	// StepsMax and TimeMax bound the search of one identity, TotalMax that of all; 0:
	// 2,000,000 steps, 20 s and 5 min. Where there is no real time (a synctest bubble),
	// steps alone bound it.
	StepsMax          int
	TimeMax, TotalMax time.Duration
}

const (
	stepsDefault = 2_000_000
	timeDefault  = 20 * time.Second
	totalDefault = 5 * time.Minute
	// explainedMax bounds for how many identities it is said how far the search got, drawnMax how
	// many are drawn.
	explainedMax = 100
	drawnMax     = 10
)

// CheckAll returns everything that is wrong with a history, in no more than that it was
// recorded: [Check] with the zero options.
func CheckAll(events []history.Event) []history.Violation { return Check(events, Options{}) }

// Check returns everything that is wrong with a history: what [history.Check] finds, what has
// no order, and what an order cannot show. The history is that of every call to its
// identities since they were new; events may be in any order, and are not changed.
func Check(events []history.Event, options Options) []history.Violation {
	if options.StepsMax == 0 {
		options.StepsMax = stepsDefault
	}
	if options.TimeMax == 0 {
		options.TimeMax = timeDefault
	}
	if options.TotalMax == 0 {
		options.TotalMax = totalDefault
	}
	identities := split(events)
	found := history.CheckFences(events)
	found = append(found, foreign(identities)...)
	for _, i := range identities {
		if i.plain() {
			found = append(found, history.CheckKey(i.events)...)
		}
		found = append(found, i.deadlines(&options)...)
	}
	return append(found, orders(identities, &options)...)
}

// identity is what happened to one identity.
type identity struct {
	name   string
	events []*history.Event // by answer
}

// split puts the events of each identity together.
func split(events []history.Event) []*identity {
	named := map[string]*identity{}
	var all []*identity
	for i := range events {
		name := events[i].Identity()
		one, ok := named[name]
		if !ok {
			one = &identity{name: name}
			named[name] = one
			all = append(all, one)
		}
		one.events = append(one.events, &events[i])
	}
	for _, one := range all {
		slices.SortStableFunc(one.events, byAnswer)
	}
	slices.SortFunc(all, func(a, b *identity) int { return strings.Compare(a.name, b.name) })
	return all
}

// orders looks for an order of the calls of each identity.
func orders(identities []*identity, options *Options) []history.Violation {
	results := make([][]history.Violation, len(identities))
	until := time.Now().Add(options.TotalMax)
	var next, explained atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(identities)) {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(identities)); n = next.Add(1) - 1 {
				p := newPartition(identities[n].name, identities[n].events, options)
				results[n] = p.search(options, until, &explained)
			}
		})
	}
	workers.Wait()
	return slices.Concat(results...)
}
