package actor

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
)

// What becomes of a call is said here, as a value: each time it is taken out of a queue, and
// when its entry has ended. Nothing here looks at a clock, the store or a queue, and nothing
// is changed. The loop carries it out (decide.go, propose.go).

// moment is what calls are judged by, beside the records that they are about. All of it was
// read after the last of the calls had been received.
type moment struct {
	now    time.Time
	live   admission.Time // the shard's live time
	logged admission.Time // the clock as the log has it
	due    bool           // some record's deadline has come, and that is not written down

	storeBehind  bool // the store has more yet to write than it may
	storeFilling bool // it has so much that the rest is kept for calls that are no Reserve
}

// disposition is what becomes of a call that is judged, and why.
type disposition uint8

const (
	// answered: it changes nothing, and the applied state says what it is told.
	answered disposition = iota
	// enters: it changes its record, or only the log can say whether it does.
	enters
	// ridesForClock: a deadline lies between the log's clock and live time. What one caller
	// has seen lapse must not be pending to another, so the log's clock goes first.
	ridesForClock
	// ridesForReclaim: it was refused for a quota that counts what is over.
	ridesForReclaim
	// parks: another attempt holds the key, and the caller waits for the end of that.
	parks
	// refused: there is no room for what it would change.
	refused
)

// judgement is a disposition and what it takes to carry it out.
type judgement struct {
	disposition disposition
	answer      admission.Answer  // answered, parks
	record      *admission.Record // answered: what a Get shows
	reads       *admission.Record // answered: the record whose stored response is part of it
	refusal     error             // refused
}

// judge says what becomes of a call at a moment. The view is of what the call is about; a
// call that is about the shard as a whole needs none.
func judge(c *call, view admission.View, at moment) judgement {
	crossed := crosses(view.Record, at.logged, at.live)
	switch {
	case c.request.Command != nil:
		return judgeCommand(c, view, crossed, at)
	case c.request.Get != nil && crossed, c.request.Get == nil && at.due && !c.ridden:
		return judgement{disposition: ridesForClock}
	case c.request.Get != nil:
		return judgeLook(admission.Look(view.Record, at.live), c.request.Body)
	default:
		return judgement{disposition: answered}
	}
}

func judgeCommand(c *call, view admission.View, crossed bool, at moment) judgement {
	decision := admission.Decide(view, admission.Instant{Now: at.live}, c.request.Command)
	answer := decision.Answer
	switch changes := decision.Record != nil || decision.Deleted; {
	case (changes || crossed) && (at.storeBehind || at.storeFilling && c.reserves()):
		return judgement{disposition: refused, refusal: ErrStoreBehind}
	case changes || crossed:
		return judgement{disposition: enters}
	case c.miscounted(answer, at.due):
		return judgement{disposition: ridesForReclaim}
	case answer.Outcome == admission.OutcomePending && c.waits(at.now):
		return judgement{disposition: parks, answer: answer}
	case answer.Outcome == admission.OutcomeCommitted:
		return judgement{disposition: answered, answer: answer, reads: admission.Look(view.Record, at.live)}
	default:
		return judgement{disposition: answered, answer: answer}
	}
}

// judgeLook is the answer to a Get of a record, nil where there is none.
func judgeLook(record *admission.Record, body bool) judgement {
	if record == nil {
		return judgement{disposition: answered, answer: admission.Answer{Refusal: admission.ReservationNotFound}}
	}
	j := judgement{disposition: answered, record: record}
	j.answer = admission.Answer{Since: record.GrantedAt, Deadline: record.Alarm()}
	if record.State == admission.StateCommitted || record.State == admission.StateReleased {
		j.answer.Since = record.EndedAt
	}
	if body && record.State == admission.StateCommitted {
		j.reads = record
	}
	return j
}

// crosses reports whether the stored record changes between two readings of the clock
// by time alone.
func crosses(stored *admission.Record, logged, live admission.Time) bool {
	r := stored.At(logged)
	return r != nil && r.Alarm() <= live
}

// failure is what the calls are told of an entry that brings them no answers: those with a
// command in it, and the riders, which have changed nothing in any case. Both are nil where
// the entry does bring answers. See invariant 3.
func (e ended) failure(current bool) (commands, riders error) {
	switch {
	case e.carriedOut() && current:
		return nil, nil
	case e.carriedOut():
		// There is no live time of its term any more to reckon what remains by. A retry
		// gets the truth.
		return ErrOutcomeUnknown, ErrNoLeader
	case e.result != nil: // refused as of another term
		return ErrNoLeader, ErrNoLeader
	case errors.Is(e.err, raft.ErrEnqueueTimeout):
		return ErrLogBehind, ErrLogBehind
	case raftfsm.Classify(e.err) == raftfsm.NotApplied:
		return ErrNoLeader, ErrNoLeader
	default:
		return ErrOutcomeUnknown, ErrNoLeader
	}
}

// sequel is what becomes of a call that the log has answered, and why.
type sequel uint8

const (
	// tells: the answer is what the caller is told.
	tells sequel = iota
	// parksBehind: another attempt came first in the log, and the caller waits for the end
	// of that.
	parksBehind
	// againToRead: it is committed, and the entry's answers carry no more responses.
	againToRead
	// againToCount: it was refused for a quota that counts what is over.
	againToCount
)

// sequelOf says what becomes of a call on the log's answer to its command.
func sequelOf(c *call, answer admission.Answer, now time.Time, due bool) sequel {
	switch {
	case answer.Outcome == admission.OutcomePending && c.waits(now):
		return parksBehind
	case answer.Outcome == admission.OutcomeCommitted && answer.Response.Stored == nil:
		return againToRead
	case c.miscounted(answer, due):
		return againToCount
	default:
		return tells
	}
}
