package actor

import (
	"slices"
	"time"

	"github.com/atmostonce/coordinator/internal/alarm"
)

// openEntry is the next log entry while it is being filled.
//
// An entry costs three replicas a write, a sync and a dozen wakes, whether it holds one
// command or a hundred. So an entry waits for the one before it: where callers come
// thick, it holds all that have come meanwhile; one that comes alone waits for nobody. It
// does not wait for longer than [Config.LingerMax], so that where nodes are far apart
// several entries are on their way at a time. Calls that need no entry never wait for
// one.
type openEntry struct {
	commands []*call
	riders   []*call   // decided again once the entry has moved the log's clock
	bytes    int64     // of the commands
	since    time.Time // when the first call came in
	full     bool      // the next call does not fit
	reclaims bool      // somebody waits for what is over to be reclaimed
}

// company is who may come back when an entry has ended: those whose calls it held, beside
// those who wait for the next.
type company struct {
	expected int
	until    time.Time // they are waited for
}

// companyWait is how many times as long as an entry took those are waited for whose calls it
// held. Measured from a half to three: docs/decisions/0004.
const companyWait = 2

// expectCompany notes who may come back now that a proposal has ended, and how long they are
// waited for.
func (a *Actor) expectCompany(p *proposal, now time.Time) {
	a.company = company{
		expected: len(p.commands) + a.open.calls(),
		until:    now.Add(min(a.cfg.LingerMax, companyWait*now.Sub(p.proposedAt))),
	}
}

func (e *openEntry) calls() int { return len(e.commands) + len(e.riders) }

// fail empties the entry. Nothing of it was proposed.
func (e *openEntry) fail(err error) {
	failAll(e.commands, err)
	failAll(e.riders, err)
	*e = openEntry{}
}

// enter puts a call's command into the open entry.
func (a *Actor) enter(c *call, now time.Time) {
	a.open.commands = append(a.open.commands, c)
	a.open.bytes += c.bytes
	a.entered(now)
}

// ride has a call wait until the open entry has moved the log's clock.
func (a *Actor) ride(c *call, now time.Time) {
	a.open.riders = append(a.open.riders, c)
	a.entered(now)
}

func (a *Actor) entered(now time.Time) {
	if a.open.since.IsZero() {
		a.open.since = now
	}
	a.open.full = a.open.calls() >= a.cfg.EntryCommandsMax || a.open.bytes >= int64(a.cfg.EntryBytesMax)
}

// closeEntry proposes the open entry if it is time to.
func (a *Actor) closeEntry(now time.Time) {
	at := a.closeEntryAt()
	if at.IsZero() || now.Before(at) {
		return
	}
	e := a.open
	a.open = openEntry{}
	gone := func(c *call) bool {
		if !c.gone.Load() {
			return false
		}
		a.touch(c) // it may have been a waiter, and the next in the queue has its turn
		return true
	}
	p := &proposal{commands: slices.DeleteFunc(e.commands, gone), riders: slices.DeleteFunc(e.riders, gone)}
	if n := p.calls(); n > 0 {
		p.reclaim = a.reclaimBeside(n, now)
		if e.reclaims {
			p.reclaim = max(n, alarm.ReclaimMax) // a place for each of them
		}
		a.propose(p)
	}
}

// closeEntryAt is when the open entry is to be proposed; zero where it is empty, or may
// not be put in flight before something ends.
func (a *Actor) closeEntryAt() time.Time {
	switch {
	case a.open.calls() == 0 || a.paused || !a.hasRoom():
		return time.Time{}
	case a.open.full || len(a.inFlight) == 0 && a.open.calls() >= a.company.expected:
		return a.open.since
	case len(a.inFlight) == 0:
		return a.company.until
	default:
		return a.open.since.Add(a.cfg.LingerMax)
	}
}
