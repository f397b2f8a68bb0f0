package actor

import (
	"slices"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/alarm"
	"github.com/atmostonce/coordinator/internal/raftfsm"
)

// proposal is one log entry from its closing to its end.
type proposal struct {
	entrants
	leaderStart bool
	reclaim     int    // how many due records are written down, after the commands
	whenDone    func() // run by the loop at its end, whatever that is

	term       uint64
	proposedAt time.Time
	expiresAt  time.Time
	expired    bool // the callers have been told that the outcome is unknown
}

// ended is what Raft said of a proposal.
type ended struct {
	proposal *proposal
	err      error
	result   *raftfsm.Result // nil where that is not known
}

// carriedOut reports whether the entry is known to have been applied, and to have counted.
func (e ended) carriedOut() bool { return e.result != nil && !e.result.Stale }

// fail ends all of the proposal's calls, unless they have their outcome already.
func (p *proposal) fail(commands, riders error) {
	if !p.expired {
		p.expired = true
		p.entrants.fail(commands, riders)
	}
}

// hasRoom reports whether another entry may be put in flight.
func (a *Actor) hasRoom() bool { return len(a.inFlight) < a.cfg.ProposalsMax }

// propose closes the entry, stamps it with live time, and hands it to Raft. The stamp
// is taken after the last command was received, so that no window begins early.
func (a *Actor) propose(p *proposal) {
	now := time.Now()
	entry := a.lead.stamp(now)
	entry.LeaderStart = p.leaderStart
	entry.Check = a.cfg.Group.Check()
	entry.Reclaim = p.reclaim
	entry.Commands = make([]admission.Command, len(p.commands))
	for i, c := range p.commands {
		entry.Commands[i] = c.request.Command
	}
	p.term = a.lead.term
	p.proposedAt, p.expiresAt = now, now.Add(a.cfg.ProposalWithin)
	a.inFlight = append(a.inFlight, p)
	a.counts.proposed(len(p.commands))

	encoded, err := entry.Encode()
	if err != nil { // nothing that passes Validate fails to encode
		panic("actor: an entry does not encode: " + err.Error())
	}
	future := a.cfg.Group.Propose(encoded, a.cfg.EnqueueWithin)
	go func() {
		// The channel has room for every proposal in flight: this never blocks.
		e := ended{proposal: p, err: future.Error()}
		if e.err == nil {
			e.result, _ = future.Response().(*raftfsm.Result)
		}
		a.results <- e
	}()
}

// settle ends a proposal.
func (a *Actor) settle(e ended) {
	p := e.proposal
	a.inFlight = slices.DeleteFunc(a.inFlight, func(other *proposal) bool { return other == p })
	now := time.Now()
	a.expectCompany(p, now)
	if p.whenDone != nil {
		defer p.whenDone()
	}
	if p.reclaim > 0 && p.calls() == 0 {
		a.rest(p, now)
	}
	current := a.lead != nil && a.lead.term == p.term
	if commands, riders := e.failure(current); commands != nil {
		p.fail(commands, riders)
	} else {
		a.applied(p, e.result)
	}
	for _, c := range p.commands {
		a.touch(c) // those as well whom the entry itself has parked
	}
	if e.carriedOut() {
		return
	}
	a.counts.failed.Add(1)
	a.cfg.Logger.Debug("an entry came to nothing", "term", p.term, "error", e.err)
	if current {
		a.lost(p)
	}
}

// lost is called when an entry of the present term has failed. Whatever the reason, a
// term whose first entry did not come through is begun again.
func (a *Actor) lost(p *proposal) {
	// What is due stays due, and Raft may refuse it at once for seconds on end: while
	// it waits for the answer of a server that it hands leadership over to.
	a.quietTill = time.Now().Add(beginAgainAfter)
	switch {
	case p.leaderStart:
		a.stepDown(ErrNoLeader)
		a.retryAt = time.Now().Add(beginAgainAfter)
	case a.lead.serving:
		a.reconsider()
	}
}

// applied hands out what an entry of the present term has brought.
func (a *Actor) applied(p *proposal, result *raftfsm.Result) {
	if p.leaderStart {
		if !a.lead.serving {
			a.serve()
		}
		return
	}
	now := time.Now()
	earliest, _ := a.earliest()
	due := alarm.Due(earliest, a.lead.live(now))
	for i, c := range p.commands {
		if p.expired {
			continue // it has its outcome
		}
		switch answer := result.Answers[i]; sequelOf(c, answer, now, due) {
		case tells:
			c.answer(a.lead.reply(c, answer, now))
		case parksBehind:
			a.park(c, answer, now)
		case againToCount:
			c.counted++
			a.again = append(a.again, c)
		case againToRead:
			a.again = append(a.again, c)
		}
	}
	if p.expired {
		return
	}
	for _, c := range p.riders {
		c.ridden = true
		a.again = append(a.again, c)
	}
}

// expireProposals tells callers whose entry takes too long that its outcome is
// unknown. It keeps its place: Raft may still end it either way.
func (a *Actor) expireProposals(now time.Time) {
	for _, p := range a.inFlight {
		if !p.expired && !now.Before(p.expiresAt) {
			p.fail(ErrOutcomeUnknown, ErrNoLeader)
		}
	}
}

// writeDown proposes what nobody has asked for: a reclaim of what is due, or a tick
// where live time has run ahead of the log's.
func (a *Actor) writeDown(now time.Time) {
	if a.paused || !a.hasRoom() || a.writingDown() {
		return
	}
	at := a.writeDownAt(now)
	if at.IsZero() || now.Before(at) {
		return
	}
	p := &proposal{}
	earliest, _ := a.earliest()
	if alarm.Due(earliest, a.lead.live(now)) && !now.Before(a.reclaimAt(now)) {
		p.reclaim = alarm.ReclaimMax
	}
	a.propose(p)
}

// reclaimBeside is how many due records an entry writes down beside the commands of so
// many calls.
func (a *Actor) reclaimBeside(calls int, now time.Time) int {
	earliest, ok := a.earliest()
	if !ok || !alarm.Due(earliest.Add(reclaimLate), a.lead.live(now)) || a.storeIsBusy() {
		return 0
	}
	return calls
}

// writeDownAt is when writeDown is due next; zero where it is not, or where a
// proposal in flight will move the clock anyway and wake the loop at its end.
func (a *Actor) writeDownAt(now time.Time) time.Time {
	earliest, ok := a.earliest()
	if !ok || a.paused || !a.hasRoom() || a.writingDown() {
		return time.Time{}
	}
	at, live, logged := time.Time{}, a.lead.live(now), a.logged()
	if !alarm.Due(earliest, live) {
		at = now.Add(alarm.Wait(earliest, live, logged))
	} else {
		// A reclaim that is put off does not put off the clock.
		at = a.reclaimAt(now)
		if tick := now.Add(alarm.DriftMin - live.Sub(logged)); tick.Before(at) {
			at = tick
		}
	}
	if at.Before(a.quietTill) {
		return a.quietTill
	}
	return at
}

// reclaimAt is from when on what is due may be reclaimed.
func (a *Actor) reclaimAt(now time.Time) time.Time {
	if a.storeIsBusy() {
		return now.Add(reclaimPause)
	}
	if now.Before(a.restUntil) {
		return a.restUntil
	}
	return now
}

// storeIsBusy reports whether the store has enough to write without what is over.
func (a *Actor) storeIsBusy() bool {
	return a.cfg.Store.Gathered() > a.cfg.GatheredBytesMax/reclaimShare
}

// Nobody waits for a reclaim: every call sees a record as time has made it. So reclaims
// leave room for those who do wait, in two ways.
//
// Records that are over are scattered over the state file, and writing that down costs a
// page each: a reclaim is put off while the store has yet to write more than one part in
// reclaimShare of what it may.
//
// Very many records may be over at the same moment, and deciding them keeps the
// processors of all replicas busy: after each reclaim the next one is put off for
// reclaimRest times as long as that took, which is longer the less there is to spare.
//
// Where those who wait never pause, that comes to less than they bring, and where their
// entries are always full, to nothing at all: what is over would pile up. So once it has
// been over for reclaimLate, each of their entries reclaims besides, up to one record for
// each call in it. No record comes without a call, and one that is late enough is gone in
// one step, so there are not ever more of them.
const (
	reclaimLate    = 5 * time.Second
	reclaimShare   = 4
	reclaimPause   = 20 * time.Millisecond
	reclaimRest    = 3
	reclaimRestMax = 250 * time.Millisecond
)

// rest puts the next reclaim off.
func (a *Actor) rest(p *proposal, now time.Time) {
	a.restUntil = now.Add(min(reclaimRestMax, reclaimRest*now.Sub(p.proposedAt)))
}

// writingDown reports whether a reclaim or a tick is in flight.
func (a *Actor) writingDown() bool {
	for _, p := range a.inFlight {
		if len(p.commands) == 0 {
			return true
		}
	}
	return false
}

func (a *Actor) earliest() (admission.Time, bool) { return a.cfg.Store.NextAlarm() }
