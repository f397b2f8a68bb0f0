package actor

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
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
		some = a.wakeWaiters(tx, time.Now())
		calls := a.takeCalls()
		now := time.Now() // after the last of them was received
		for _, c := range calls {
			a.decide(tx, c, now)
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

// decide decides one call at live time against the applied state. What would change
// nothing becomes an answer that waits to be confirmed, or a parked call; all else
// goes into the open entry.
func (a *Actor) decide(tx *store.Tx, c *call, now time.Time) {
	if c.gone.Load() {
		return
	}
	live := a.lead.live(now)
	id, ok := c.identity()
	if !ok {
		if earliest, some := tx.NextAlarm(); some && earliest <= live && !c.ridden {
			a.ride(c, now)
			return
		}
		a.answers.add(c, admission.Answer{}, nil)
		return
	}
	view, err := tx.Admission(id)
	if err != nil {
		c.fail(ErrNoLeader)
		return
	}
	// A deadline between the log's clock and live time: only the log can say.
	crossed := crosses(view.Record, tx.Clock().Now, live)
	if c.request.Get != nil {
		if crossed {
			a.ride(c, now)
			return
		}
		a.look(tx, c, admission.Look(view.Record, live))
		return
	}
	if reserve, ok := c.request.Command.(admission.Reserve); ok {
		reserve.WantedUntil = live.Add(c.request.WantedFor - now.Sub(c.request.Received))
		c.request.Command = reserve
	}
	decision := admission.Decide(view, admission.Instant{Now: live}, c.request.Command)
	if crossed || decision.Record != nil || decision.Deleted {
		if a.cfg.Store.Gathered() > a.gatheredMost(c) {
			c.fail(ErrStoreBehind)
			return
		}
		a.enter(c, now)
		return
	}
	answer := decision.Answer
	if earliest, _ := tx.NextAlarm(); c.miscounted(answer, live, earliest) {
		a.open.reclaims = true
		a.ride(c, now)
		return
	}
	if answer.Outcome == admission.OutcomePending && c.waits(now) {
		a.park(c, answer, now)
		return
	}
	if answer.Outcome == admission.OutcomeCommitted {
		var read bool
		if answer.Response.Stored, read = a.response(tx, c, admission.Look(view.Record, live)); !read {
			return
		}
	}
	a.answers.add(c, answer, nil)
}

// gatheredMost is what the store may have yet to write for the call to go into an entry.
// As in the mailbox, a part is not for Reserves: what was granted can be recorded.
func (a *Actor) gatheredMost(c *call) int64 {
	most := a.cfg.GatheredBytesMax
	if c.reserves() {
		most -= most / keptShare
	}
	return most
}

// look answers a Get.
func (a *Actor) look(tx *store.Tx, c *call, record *admission.Record) {
	if record == nil {
		a.answers.add(c, admission.Answer{Refusal: admission.ReservationNotFound}, nil)
		return
	}
	if c.request.Body && record.State == admission.StateCommitted {
		stored, read := a.response(tx, c, record)
		if !read {
			return
		}
		record = record.Clone()
		record.Response.Stored = stored
	}
	answer := admission.Answer{Since: record.GrantedAt, Deadline: record.Alarm()}
	if record.State == admission.StateCommitted || record.State == admission.StateReleased {
		answer.Since = record.EndedAt
	}
	a.answers.add(c, answer, record)
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

// crosses reports whether the stored record changes between two readings of the clock
// by time alone.
func crosses(stored *admission.Record, logged, live admission.Time) bool {
	r := stored.At(logged)
	return r != nil && r.Alarm() <= live
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
