package raftfsm

import (
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/store"
)

// batch is one entry on its way through the rules. It decides by the log and the
// state alone: whether it reads responses for its answers changes neither.
type batch struct {
	tx     *store.Tx
	entry  *Entry
	result *Result

	// answering says that somebody here waits for the answers.
	answering bool
	// responses are those read so far, by the revision of their record, which names
	// one response in the whole shard: a retry storm puts many Reserves of one key
	// into one entry.
	responses     map[uint64][]byte
	responseBytes int
}

// apply moves the clock, decides the commands in order and then writes down what is
// due. term is the entry's own in the log.
func (b *batch) apply(term uint64) error {
	clock := b.tx.Clock()
	b.result.Noted, b.result.Now = clock.Noted, clock.Now
	if b.entry.Term != term || clock.Term != term {
		b.result.Stale = true
		return nil
	}
	if now := clock.Noted.Add(b.entry.Elapsed); now > clock.Now {
		clock.Now = now
		b.tx.SetClock(clock)
	}
	b.result.Now = clock.Now

	at := admission.Instant{Now: clock.Now, WallNanos: b.entry.WallNanos}
	if len(b.entry.Commands) > 0 {
		b.result.Answers = make([]admission.Answer, len(b.entry.Commands))
	}
	for i, command := range b.entry.Commands {
		answer, err := b.decide(at, command)
		if err != nil {
			return err
		}
		b.result.Answers[i] = answer
	}
	return b.reclaim(clock.Now)
}

func (b *batch) decide(at admission.Instant, command admission.Command) (admission.Answer, error) {
	view, err := b.tx.Admission(command.On())
	if err != nil {
		return admission.Answer{}, err
	}
	decision := admission.Decide(view, at, command)
	if changes(view, decision) {
		if err := b.tx.Apply(decision, view.Record); err != nil {
			return admission.Answer{}, err
		}
	}
	answer := decision.Answer
	if b.answering && answer.Outcome == admission.OutcomeCommitted {
		if answer.Response.Stored, err = b.response(view.Record); err != nil {
			return admission.Answer{}, err
		}
	}
	return answer, nil
}

// response reads what a record's callers are answered with, or returns nil where
// the entry's answers carry enough.
func (b *batch) response(record *admission.Record) ([]byte, error) {
	if stored, ok := b.responses[record.Revision]; ok {
		return stored, nil
	}
	if b.responseBytes > AnswerBytesMax {
		return nil, nil
	}
	stored, err := b.tx.Response(record)
	if err != nil {
		return nil, err
	}
	if b.responses == nil {
		b.responses = make(map[uint64][]byte)
	}
	b.responses[record.Revision] = stored
	b.responseBytes += len(stored)
	return stored, nil
}

// reclaim writes down what time has done to the records whose alarms are due, the
// earliest first.
func (b *batch) reclaim(now admission.Time) error {
	if b.entry.Reclaim == 0 {
		return nil
	}
	due, err := b.tx.Due(now, b.entry.Reclaim)
	if err != nil || len(due) == 0 {
		return err
	}
	// A reclaim takes no numbers, so one look at the counter is enough for all.
	view, err := b.tx.Admission(due[0].Identity)
	if err != nil {
		return err
	}
	for _, record := range due {
		decision := admission.Reclaim(admission.View{Record: record, Counter: view.Counter}, now)
		if err := b.tx.Apply(decision, record); err != nil {
			return err
		}
	}
	b.result.Reclaimed = len(due)
	return nil
}

// changes reports whether the decision has an effect on the state.
func changes(view admission.View, decision admission.Decision) bool {
	return decision.Record != nil || decision.Deleted || decision.Counter != view.Counter
}
