package actor

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/alarm"
	"github.com/atmostonce/coordinator/internal/store"
)

// decideAll decides everything that is waiting to be decided: first the waiters whose
// record has changed and the calls that are to be decided again, then the mailbox. It
// stops where the open entry is full and may not be put in flight, or where the responses
// read for answers add up.
func (a *Actor) decideAll() {
	for {
		a.closeEntry(time.Now())
		if a.paused || a.open.full || a.answers.bytes >= a.cfg.AnswerBytesMax || !a.decideSome() {
			return
		}
	}
}

// decideSome decides what the open entry has room for, and reports whether there was
// anything.
func (a *Actor) decideSome() (some bool) {
	err := a.cfg.Store.View(func(tx *store.Tx) error {
		if len(a.dirty) > 0 {
			some = a.wakeWaiters(tx, a.moment(tx))
		}
		calls := a.takeCalls()
		at := a.moment(tx) // after the last of them was received
		for _, c := range calls {
			a.decide(tx, c, at)
			some = true
		}
		return nil
	})
	if err != nil {
		// The store answers nothing any more; it has said so to the node, which
		// stops. Whoever is in between is told the truth.
		a.cfg.Logger.Error("the state cannot be read", "error", err)
		a.stepDown(ErrNoLeader)
		return false
	}
	return some
}

// moment is the present one. Of what the store may have yet to write a part is not for
// Reserves, as in the mailbox: what was granted can be recorded.
func (a *Actor) moment(tx *store.Tx) moment {
	now := time.Now()
	live := a.lead.live(now)
	earliest, _ := tx.NextAlarm()
	gathered, most := a.cfg.Store.Gathered(), a.cfg.GatheredBytesMax
	return moment{
		now:          now,
		live:         live,
		logged:       tx.Clock().Now,
		due:          alarm.Due(earliest, live),
		storeBehind:  gathered > most,
		storeFilling: gathered > most-most/keptShare,
	}
}

// takeCalls returns calls that the open entry has room for.
func (a *Actor) takeCalls() []*call {
	room := a.cfg.EntryCommandsMax - a.open.calls()
	if n := min(len(a.again), room); n > 0 {
		calls := a.again[:n:n]
		a.again = a.again[n:]
		return calls
	}
	calls, fits := a.mailbox.take(room, a.open.bytes, int64(a.cfg.EntryBytesMax))
	a.open.full = a.open.full || len(calls) == 0 && !fits
	return calls
}

// decide decides one call at live time against the applied state, and reports whether it
// is held: parked, or on its way through the log with its command.
func (a *Actor) decide(tx *store.Tx, c *call, at moment) (held bool) {
	if c.gone.Load() {
		return false
	}
	var view admission.View
	if id, some := c.identity(); some {
		var err error
		if view, err = tx.Admission(id); err != nil {
			c.fail(ErrNoLeader)
			return false
		}
	}
	c.wantedAsOf(at)
	switch j := judge(c, view, at); j.disposition {
	case answered:
		a.collect(tx, c, j)
	case enters:
		a.enter(c, at.now)
		return true
	case ridesForClock:
		a.ride(c, at.now)
	case ridesForReclaim:
		c.counted++
		a.open.reclaims = true
		a.ride(c, at.now)
	case parks:
		a.park(c, j.answer, at.now)
		return true
	case refused:
		c.fail(j.refusal)
	}
	return false
}

// collect has an answer wait to be confirmed, with the response that is part of it.
func (a *Actor) collect(tx *store.Tx, c *call, j judgement) {
	if j.reads != nil {
		stored, read := a.response(tx, c, j.reads)
		if !read {
			return
		}
		if j.record != nil {
			j.record = j.record.Clone()
			j.record.Response.Stored = stored
		} else {
			j.answer.Response.Stored = stored
		}
	}
	a.answers.add(c, j.answer, j.record)
}

// response reads the stored response of a record, or fails the call. One that there is
// no room for is not even read: a call is small, and what it asks for may be large.
func (a *Actor) response(tx *store.Tx, c *call, record *admission.Record) ([]byte, bool) {
	if room := c.request.Room; room != nil && !room(int(record.Response.Bytes)) {
		c.fail(ErrNoRoom)
		return nil, false
	}
	stored, err := tx.Response(record)
	if err != nil {
		c.fail(ErrNoLeader)
		return nil, false
	}
	return stored, true
}

// logged is the clock as the log has it.
func (a *Actor) logged() (now admission.Time) {
	// An error leaves 0, which is never too late: the tick that follows fails.
	_ = a.cfg.Store.View(func(tx *store.Tx) error {
		now = tx.Clock().Now
		return nil
	})
	return now
}

// reply turns an answer into what the caller is told, reckoned at live time.
func (l *leadership) reply(c *call, answer admission.Answer, now time.Time) Reply {
	reply := Reply{
		Answer: answer,
		Live:   l.live(now),
		Waited: now.Sub(c.request.Received),
	}
	switch reply.Remaining = answer.Deadline.Sub(reply.Live); {
	case answer.Deadline == admission.Never:
		reply.Remaining = NoEnd
	case reply.Remaining < 0:
		// The window has ended since the call was decided. An owner reckons from Waited
		// and Remaining together, and the two must not come to more than the window.
		reply.Waited = max(0, reply.Waited+reply.Remaining)
		reply.Remaining = 0
	}
	reply.Age = max(0, reply.Live.Sub(answer.Since))
	return reply
}
