package fault

import (
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
)

// check judges a history of deliveries.
func check(events []history.Event) []history.Violation {
	// What an attempt was granted already is told again: it was given at its first
	// delivery or later.
	first := make(map[history.Attempt]int)
	for i := range events {
		e := &events[i]
		if kind, asked := e.Asked(); !asked || kind != history.Granted {
			continue
		}
		if earliest, ok := first[e.Attempt]; !ok || e.Sent < events[earliest].Sent {
			first[e.Attempt] = i
		}
	}
	for i := range events {
		if e := &events[i]; e.Kind == history.Granted && e.Repeated {
			e.Sent = events[first[e.Attempt]].Sent
		}
	}
	return linearizability.CheckAll(events)
}
