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
	entrants
	bytes    int64     // of the commands
	since    time.Time // when the first call came in
	full     bool      // the next call does not fit
	reclaims bool      // somebody waits for what is over to be reclaimed
}

// entrants are the calls that share an entry while it is open and while it is in flight. They
// are of two kinds, which are told different things:
//
//   - commands have theirs in the entry, in this order. The log answers each of them, and
//     where it is not known whether the entry is in the log, neither is what they came to.
//   - riders have nothing in it, whether or not they have a command: they are decided again
//     once the entry has moved the log's clock. Whatever becomes of the entry, they have
//     changed nothing.
//
// What both have in common is that somebody waits for them. Who asks more of one of them asks
// the call: [call.identity] says whether it is about a record at all.
type entrants struct {
	commands, riders []*call
}

// calls is how many wait for the entry.
func (e *entrants) calls() int { return len(e.commands) + len(e.riders) }

// fail ends them all.
func (e *entrants) fail(commands, riders error) {
	failAll(e.commands, commands)
	failAll(e.riders, riders)
}

// dropGone takes out those whose callers have gone, and hands each of them on.
func (e *entrants) dropGone(dropped func(*call)) {
	gone := func(c *call) bool {
		is := c.gone.Load()
		if is {
			dropped(c)
		}
		return is
	}
	e.commands, e.riders = slices.DeleteFunc(e.commands, gone), slices.DeleteFunc(e.riders, gone)
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

// empty ends all of its calls. Nothing of it was proposed.
func (e *openEntry) empty(err error) {
	e.fail(err, err)
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
	e.dropGone(a.touch)
	p := &proposal{entrants: e.entrants}
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
