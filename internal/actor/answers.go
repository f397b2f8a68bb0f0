package actor

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// answers are those that need no entry and are not given out before leadership is
// confirmed. One round is under way at a time; what comes up meanwhile is collected
// for the next, so that a storm of duplicates costs no more rounds than there is
// time for.
type answers struct {
	collected []pendingAnswer
	bytes     int64 // responses held by both

	confirming []pendingAnswer
	closedAt   time.Time
	deadline   time.Time
}

type pendingAnswer struct {
	call   *call
	answer admission.Answer
	record *admission.Record
}

// bytesHeld is what the answer keeps in memory beyond its call.
func (p pendingAnswer) bytesHeld() int64 {
	held := len(p.answer.Response.Stored)
	if p.record != nil {
		held += len(p.record.Response.Stored)
	}
	return int64(held)
}

func (q *answers) add(c *call, answer admission.Answer, record *admission.Record) {
	p := pendingAnswer{call: c, answer: answer, record: record}
	q.collected = append(q.collected, p)
	q.bytes += p.bytesHeld()
}

// confirmAnswers gives out what is confirmed, and closes the next round. It reports
// whether it has given out anything. The time is one after everything that was collected
// had been decided: what was sent before that confirms none of it.
func (a *Actor) confirmAnswers(now time.Time) (given bool) {
	q := &a.answers
	for {
		if len(q.confirming) == 0 {
			if len(q.collected) == 0 {
				return given
			}
			q.confirming, q.collected = q.collected, nil
			q.closedAt, q.deadline = now, now.Add(a.cfg.ConfirmWithin)
			if !a.cfg.Group.Confirmed(a.lead.term, q.closedAt) {
				a.cfg.Group.Kick()
			}
		}
		switch {
		case a.cfg.Group.Confirmed(a.lead.term, q.closedAt):
			a.give(q.confirming, now)
		case !now.Before(q.deadline):
			for _, p := range q.confirming {
				q.bytes -= p.bytesHeld()
				p.call.fail(ErrNoLeader)
			}
		default:
			return given
		}
		q.confirming, given = nil, true
	}
}

func (a *Actor) give(confirmed []pendingAnswer, now time.Time) {
	for _, p := range confirmed {
		a.answers.bytes -= p.bytesHeld()
		reply := a.lead.reply(p.call, p.answer, now)
		reply.Record = p.record
		p.call.answer(reply)
	}
}

// expiresAt is when the round under way has taken too long.
func (q *answers) expiresAt() time.Time {
	if len(q.confirming) == 0 {
		return time.Time{}
	}
	return q.deadline
}

// fail ends them all.
func (q *answers) fail(err error) {
	for _, list := range [][]pendingAnswer{q.confirming, q.collected} {
		for _, p := range list {
			p.call.fail(err)
		}
	}
	*q = answers{}
}
