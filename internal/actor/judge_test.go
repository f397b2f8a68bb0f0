package actor

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
)

func TestJudge(t *testing.T) {
	const deadline = admission.Time(time.Minute)
	received := time.Now()
	token := admission.Token{Fence: 1, Attempt: admission.AttemptID{1}}
	pending := &admission.Record{
		Identity: key("k"), State: admission.StatePending, Fence: 1, Revision: 1, Attempt: 1, Holder: token.Attempt,
		PendingDeadline: deadline, PendingTTL: time.Minute, Retention: time.Hour,
	}
	committed := pending.Clone()
	committed.State, committed.EndedAt = admission.StateCommitted, 1

	of := func(adjust func(*admission.Reserve)) Request {
		command := admission.Reserve{
			Identity: key("k"), Attempt: admission.AttemptID{2}, PendingTTL: time.Minute, Retention: time.Hour,
			WantedUntil: admission.Never,
		}
		if adjust != nil {
			adjust(&command)
		}
		return Request{Command: command, Received: received}
	}
	asks := of(nil)
	waits := of(nil)
	waits.Wait = 2 * time.Second
	wanted := of(func(c *admission.Reserve) { c.Attempt = token.Attempt })
	limited := of(func(c *admission.Reserve) { c.RecordsMax = 1 })
	looks, reads, whole := Request{Get: ptr(key("k"))}, Request{Get: ptr(key("k")), Body: true}, Request{}
	releases, stranger := release("k", token), strangers("k", token)

	// The clock is at ten seconds, a second after the call was received.
	const live = admission.Time(10 * time.Second)
	at := func(adjust func(*moment)) moment {
		m := moment{now: received.Add(time.Second), live: live, logged: live}
		if adjust != nil {
			adjust(&m)
		}
		return m
	}
	calm := at(nil)
	crossed := at(func(m *moment) { m.live, m.due = deadline, true })
	passed := at(func(m *moment) { m.live, m.logged, m.due = deadline, deadline, true })
	due := at(func(m *moment) { m.due = true })
	filling := at(func(m *moment) { m.storeFilling = true })
	behind := at(func(m *moment) { m.storeFilling, m.storeBehind = true, true })
	late := at(func(m *moment) { m.now = received.Add(2 * time.Second) })

	for _, test := range []struct {
		name    string
		request Request
		adjust  func(*call)
		record  *admission.Record
		at      moment
		want    disposition
		says    any  // the outcome, the refusal by the rules or the state that is shown
		reads   bool // the stored response
	}{
		{name: "a question to the shard", request: whole, at: calm, want: answered},
		{name: "one while something is due", request: whole, at: due, want: ridesForClock},
		{
			name: "the same once the log's clock has moved", request: whole, at: due, want: answered,
			adjust: func(c *call) { c.ridden = true },
		},

		{name: "a look at nothing", request: looks, at: calm, want: answered, says: admission.ReservationNotFound},
		{name: "a look at a record", request: looks, record: pending, at: calm, want: answered, says: admission.StatePending},
		{name: "a look past the log's clock", request: looks, record: pending, at: crossed, want: ridesForClock},
		{name: "a look once the log is there", request: looks, record: pending, at: passed, want: answered, says: admission.StateLapsed},
		{name: "a look with body at what has none", request: reads, record: pending, at: calm, want: answered, says: admission.StatePending},
		{name: "a look at what is done", request: looks, record: committed, at: calm, want: answered, says: admission.StateCommitted},
		{name: "the same with body", request: reads, record: committed, at: calm, want: answered, says: admission.StateCommitted, reads: true},

		{name: "a grant", request: asks, at: calm, want: enters},
		{name: "a grant that might be counted", request: limited, at: calm, want: answered, says: admission.QuotaExceeded},
		{name: "the same while something is due", request: limited, at: due, want: ridesForReclaim},
		{
			name: "the same for the last time", request: limited, at: due, want: answered, says: admission.QuotaExceeded,
			adjust: func(c *call) { c.counted = countedMax },
		},
		{name: "a duplicate", request: asks, record: pending, at: calm, want: answered, says: admission.OutcomePending},
		{name: "a duplicate past the log's clock", request: asks, record: pending, at: crossed, want: enters},
		{name: "a duplicate that waits", request: waits, record: pending, at: calm, want: parks, says: admission.OutcomePending},
		{name: "one whose wait is over", request: waits, record: pending, at: late, want: answered, says: admission.OutcomePending},
		{
			name: "one that nobody waits for", request: waits, record: pending, at: calm, want: answered, says: admission.OutcomePending,
			adjust: func(c *call) { c.gone.Store(true) },
		},
		{name: "the holder's own retry", request: wanted, record: pending, at: calm, want: answered, says: admission.OutcomeGranted},
		{name: "a duplicate of what is done", request: asks, record: committed, at: calm, want: answered, says: admission.OutcomeCommitted, reads: true},
		{name: "what the owner says", request: releases, record: pending, at: calm, want: enters},
		{name: "what a stranger says", request: stranger, record: pending, at: calm, want: answered, says: admission.ReservationLost},
		{name: "the same past the log's clock", request: stranger, record: pending, at: crossed, want: enters},

		{name: "a grant while the store fills up", request: asks, at: filling, want: refused},
		{name: "what the owner says then", request: releases, record: pending, at: filling, want: enters},
		{name: "the same while the store is full", request: releases, record: pending, at: behind, want: refused},
		{name: "a duplicate then", request: asks, record: pending, at: behind, want: answered, says: admission.OutcomePending},
		{name: "a look then", request: looks, record: pending, at: behind, want: answered, says: admission.StatePending},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCall(test.request, 0)
			if test.adjust != nil {
				test.adjust(c)
			}
			view := admission.View{Record: test.record, Counter: 2, NamespaceRecords: 1}
			got := judge(c, view, test.at)
			if got.disposition != test.want {
				t.Errorf("disposition %d, want %d", got.disposition, test.want)
			}
			if (got.reads != nil) != test.reads {
				t.Errorf("reads the response of %v", got.reads)
			}
			if refused := test.want == refused; errors.Is(got.refusal, ErrStoreBehind) != refused {
				t.Errorf("refusal %v", got.refusal)
			}
			says := map[any]bool{}
			if got.answer.Refusal != admission.None {
				says[got.answer.Refusal] = true
			}
			if got.answer.Outcome != admission.OutcomeNone {
				says[got.answer.Outcome] = true
			}
			if got.record != nil {
				says[got.record.State] = true
			}
			if len(says) > 1 || test.says != nil && !says[test.says] || test.says == nil && len(says) > 0 {
				t.Errorf("says %v, want %v", says, test.says)
			}
		})
	}
}

// Invariant 3: what a call is told that its entry brings no answer.
func TestFailure(t *testing.T) {
	applied, stale := &raftfsm.Result{}, &raftfsm.Result{Stale: true}
	for _, test := range []struct {
		name             string
		ended            ended
		current          bool
		commands, riders error
	}{
		{"carried out", ended{result: applied}, true, nil, nil},
		{"carried out, and the term is over", ended{result: applied}, false, ErrOutcomeUnknown, ErrNoLeader},
		{"of another term", ended{result: stale}, true, ErrNoLeader, ErrNoLeader},
		{"of another term, which is over", ended{result: stale}, false, ErrNoLeader, ErrNoLeader},
		{"the queue is full", ended{err: raft.ErrEnqueueTimeout}, true, ErrLogBehind, ErrLogBehind},
		{"turned away", ended{err: raft.ErrNotLeader}, true, ErrNoLeader, ErrNoLeader},
		{"leadership lost", ended{err: raft.ErrLeadershipLost}, true, ErrOutcomeUnknown, ErrNoLeader},
		{"leadership lost, and noticed", ended{err: raft.ErrLeadershipLost}, false, ErrOutcomeUnknown, ErrNoLeader},
		{"no result known", ended{}, true, ErrOutcomeUnknown, ErrNoLeader},
	} {
		t.Run(test.name, func(t *testing.T) {
			commands, riders := test.ended.failure(test.current)
			if !errors.Is(commands, test.commands) || !errors.Is(riders, test.riders) {
				t.Errorf("commands %v, riders %v, want %v and %v", commands, riders, test.commands, test.riders)
			}
		})
	}
}

func TestSequel(t *testing.T) {
	received := time.Now()
	waiting := Request{Wait: time.Second, Received: received}
	pending := admission.Answer{Outcome: admission.OutcomePending}
	committed := admission.Answer{Outcome: admission.OutcomeCommitted}
	empty := committed
	empty.Response.Stored = []byte{}
	full := admission.Answer{Refusal: admission.QuotaExceeded}
	for _, test := range []struct {
		name    string
		request Request
		counted int
		answer  admission.Answer
		after   time.Duration
		due     bool
		want    sequel
	}{
		{name: "done", want: tells, due: true},
		{name: "pending", answer: pending, want: tells},
		{name: "pending for one who waits", request: waiting, answer: pending, want: parksBehind},
		{name: "pending for one who has waited", request: waiting, answer: pending, after: time.Second, want: tells},
		{name: "committed without the response", answer: committed, want: againToRead},
		{name: "committed with an empty response", answer: empty, want: tells},
		{name: "over a quota", answer: full, want: tells},
		{name: "over one that counts what is over", answer: full, due: true, want: againToCount},
		{name: "the same for the last time", counted: countedMax, answer: full, due: true, want: tells},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCall(test.request, 0)
			c.counted = test.counted
			if got := sequelOf(c, test.answer, received.Add(test.after), test.due); got != test.want {
				t.Errorf("sequel %d, want %d", got, test.want)
			}
		})
	}
}
