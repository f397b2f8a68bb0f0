package actor

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// leadership is one term that this replica leads.
type leadership struct {
	term    uint64
	serving bool // its LeaderStart entry has been applied here

	// The clock value that the entry noted, and a moment after that.
	noted admission.Time
	base  time.Time
}

// live is the shard's clock at a moment of this replica's monotonic clock.
func (l *leadership) live(now time.Time) admission.Time { return l.noted.Add(now.Sub(l.base)) }

// beginAgainAfter is how long a leader waits whose first entry went wrong, or one that
// nobody has asked for, so that it does not spin while Raft makes up its mind.
const beginAgainAfter = 100 * time.Millisecond

// reconsider brings the actor in line with what Raft says of leadership at this
// moment, whatever was signalled. A replica that lost leadership and won it back
// unnoticed is told by its term.
func (a *Actor) reconsider() {
	a.retryAt = time.Time{}
	leads, term := a.cfg.Group.IsLeader(), a.cfg.Group.Term()
	if a.stopping || a.lead != nil && leads && a.lead.term == term {
		return
	}
	if a.lead != nil {
		a.stepDown(ErrNoLeader)
	}
	if leads {
		a.begin(term)
	}
}

// begin proposes the term's first entry. Calls may queue up from here on; they are
// decided once it is applied. Entries of an earlier term that are still in flight
// take up their places until Raft has ended them.
func (a *Actor) begin(term uint64) {
	if len(a.inFlight) >= a.cfg.ProposalsMax {
		a.retryAt = time.Now().Add(beginAgainAfter)
		return
	}
	a.lead = &leadership{term: term}
	a.cfg.Group.AnswerTerm(term)
	a.mailbox.open()
	a.propose(&proposal{leaderStart: true})
}

// serve is called when the term's first entry has been applied.
func (a *Actor) serve() {
	var clock store.Clock
	err := a.cfg.Store.View(func(tx *store.Tx) error {
		clock = tx.Clock()
		return nil
	})
	if err != nil || clock.Term != a.lead.term {
		a.cfg.Logger.Warn("the first entry of this term was not noted", "term", a.lead.term, "noted", clock.Term, "error", err)
		a.stepDown(ErrNoLeader)
		a.retryAt = time.Now().Add(beginAgainAfter)
		return
	}
	a.lead.noted, a.lead.base = clock.Noted, time.Now()
	a.lead.serving = true
	a.cfg.Logger.Info("leading", "term", a.lead.term, "clock", time.Duration(clock.Noted))
	a.beginHandovers()
}

// stepDown empties every queue with an error that says that nothing was applied.
// What is in flight is Raft's to end.
func (a *Actor) stepDown(refuse error) {
	if a.lead != nil {
		a.cfg.Logger.Info("no longer leading", "term", a.lead.term)
	}
	a.lead = nil
	a.mailbox.close(refuse)
	for _, c := range a.mailbox.empty() {
		c.fail(refuse)
	}
	a.open.empty(refuse)
	failAll(a.again, refuse)
	a.again = nil
	failAll(a.parked.clear(), refuse)
	a.waiting.Store(0)
	a.dirty = nil
	a.answers.fail(refuse)
	a.beginHandovers()
}

func failAll(calls []*call, err error) {
	for _, c := range calls {
		c.fail(err)
	}
}

// stamp is the moment at which an entry of this term is closed.
func (l *leadership) stamp(now time.Time) raftfsm.Entry {
	entry := raftfsm.Entry{Term: l.term, WallNanos: now.UnixNano()}
	if l.serving {
		entry.Elapsed = now.Sub(l.base)
	}
	return entry
}
