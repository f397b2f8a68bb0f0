package actor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
)

// Actor decides everything that concerns one shard, one thing at a time, while this
// replica leads it. See the package's comment.
type Actor struct {
	cfg     Config
	mailbox *mailbox
	results chan ended
	control chan func() // run by the loop: handover, stop
	done    chan struct{}

	stopOnce sync.Once
	waiting  atomic.Int64 // parked calls, for Waiters
	counts   counts

	// What follows belongs to the loop.

	lead      *leadership // nil while this replica does not lead
	retryAt   time.Time   // when to try again to begin a term; zero for no need
	open      openEntry   // the next one
	company   company
	inFlight  []*proposal
	restUntil time.Time // no reclaim is proposed before
	quietTill time.Time // nothing is proposed before that nobody has asked for
	again     []*call   // to be decided before anything in the mailbox
	answers   answers
	parked    parked
	dirty     []admission.Identity // their waiters are to be looked at
	paused    bool                 // a handover is under way: propose nothing
	handovers []func()             // begin those that wait
	stopping  bool
}

// Start starts an actor. It serves whenever its replica leads, until Stop.
func Start(cfg Config) (*Actor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Actor{
		cfg:     cfg,
		mailbox: newMailbox(cfg.MailboxCommandsMax, cfg.MailboxBytesMax),
		results: make(chan ended, cfg.ProposalsMax+1), // and a handover's tick
		control: make(chan func()),
		done:    make(chan struct{}),
	}
	a.parked.queues, a.parked.touched = make(map[admission.Identity][]*call), make(map[admission.Identity]bool)
	go a.run()
	return a, nil
}

// Submit decides one request. The error is one of this package's or the context's;
// with the latter the outcome is unknown.
func (a *Actor) Submit(ctx context.Context, request Request) (Reply, error) {
	var bytes int64
	if request.Command != nil {
		// Whoever took the call has said so in more words. This is the last gate before
		// the log: an entry that replicas refuse to decode would stop them all.
		if violation := request.Command.Validate(); violation != nil {
			return Reply{Answer: admission.Answer{Refusal: violation.Reason}}, nil
		}
		bytes = int64(raftfsm.CommandBytes(request.Command))
	}
	c := newCall(request, bytes)
	if err := a.mailbox.put(c); err != nil {
		a.counts.ended(err)
		return Reply{}, err
	}
	reply, err := c.await(ctx)
	a.counts.ended(err)
	if c.gone.Load() {
		a.mailbox.desert()
	}
	return reply, err
}

// Mailbox is the number of calls that wait to be decided, and the bytes of their commands.
func (a *Actor) Mailbox() (calls int, bytes int64) { return a.mailbox.depth() }

// Waiters is the number of calls that wait for another attempt to end.
func (a *Actor) Waiters() int { return int(a.waiting.Load()) }

// handoversMax bounds the handovers that wait to be begun.
const handoversMax = 16

// Handover writes down the clock and gives leadership to the given replica, or to
// the one that is furthest along where it is "". Meanwhile calls queue up; when it
// fails they go on here. It waits for another one that is under way, and for the first entry
// of a term. An error of Raft's, the context's and [ErrOutcomeUnknown] leave open who leads.
func (a *Actor) Handover(ctx context.Context, to raft.ServerID) error {
	failed := make(chan error, 1)
	begun := false // the loop's; others look at it once that has ended
	var begin func()
	begin = func() {
		wait := a.paused || a.lead != nil && !a.lead.serving
		switch {
		case ctx.Err() != nil:
			failed <- ctx.Err()
		case wait && len(a.handovers) < handoversMax:
			a.handovers = append(a.handovers, begin)
		case wait || a.lead == nil:
			failed <- ErrNoLeader
		default:
			begun, a.paused = true, true
			a.propose(&proposal{whenDone: func() { go a.transfer(to, failed) }})
		}
	}
	err := a.do(ctx, func() {
		if a.lead == nil { // it may lead, and have to be told
			a.reconsider()
		}
		begin()
	})
	if err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.done:
		if begun { // Raft goes on with it
			return ErrOutcomeUnknown
		}
		return ErrShuttingDown
	}
}

// transfer runs beside the loop, since Raft answers only once it is over.
func (a *Actor) transfer(to raft.ServerID, failed chan<- error) {
	err := a.cfg.Group.TransferLeadership(to)
	_ = a.do(context.Background(), func() {
		a.paused = false
		a.reconsider()
		a.beginHandovers()
	})
	failed <- err
}

// beginHandovers is called when what they wait for is over. The first is begun, and the others wait
// for that; or all of them are refused.
func (a *Actor) beginHandovers() {
	waiting := a.handovers
	a.handovers = nil
	for _, begin := range waiting {
		begin()
	}
}

// Stop refuses every call that was not proposed, waits until what was proposed has
// come to its end or the context to its own, and ends the loop. It returns the
// context's error where entries are still in flight: their callers were told that
// the outcome is unknown.
func (a *Actor) Stop(ctx context.Context) error {
	a.stopOnce.Do(func() { _ = a.do(context.Background(), a.beginStop) })
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
	}
	// The loop ends without waiting any longer.
	_ = a.do(context.Background(), func() {
		for _, p := range a.inFlight {
			p.fail(ErrOutcomeUnknown, ErrShuttingDown)
		}
		a.inFlight = nil
	})
	<-a.done
	return ctx.Err()
}

func (a *Actor) beginStop() {
	a.stopping = true
	a.stepDown(ErrShuttingDown)
}

// do has the loop run a function.
func (a *Actor) do(ctx context.Context, f func()) error {
	select {
	case a.control <- f:
		return nil
	case <-a.done:
		return ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the loop.
func (a *Actor) run() {
	defer close(a.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !a.stopping || len(a.inFlight) > 0 {
		select {
		case <-a.mailbox.signal:
		case <-a.cfg.Group.Leadership():
			a.reconsider()
		case e := <-a.results:
			a.settle(e)
		case <-a.cfg.Group.Acknowledged():
		case f := <-a.control:
			f()
		case <-timer.C:
		}
		a.step(time.Now())
		timer.Reset(a.sleep(time.Now()))
	}
}

// step does everything that can be done at this moment. That may take a while: Raft takes
// an entry when its main loop is free, and a disk may be slow to read from. So what it does
// later has a later time, which it looks up itself.
func (a *Actor) step(now time.Time) {
	a.expireProposals(now)
	if !a.retryAt.IsZero() && !now.Before(a.retryAt) {
		a.reconsider()
	}
	if a.lead == nil || !a.lead.serving {
		return
	}
	if a.mailbox.wasDeserted() {
		a.forgetDeserters()
	}
	a.wakeSleepers(now)
	for more := true; more; { // answers that are given out make room for others
		a.decideAll()
		more = a.lead != nil && a.confirmAnswers(time.Now())
	}
	if a.lead != nil {
		a.writeDown(time.Now())
	}
}

// sleepMax bounds the sleep of a loop that has nothing to wait for.
const sleepMax = time.Hour

// sleep is the time until something may be done that no event announces.
func (a *Actor) sleep(now time.Time) time.Duration {
	next := now.Add(sleepMax)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	sooner(a.retryAt)
	for _, p := range a.inFlight {
		if !p.expired {
			sooner(p.expiresAt)
			break // they are in the order of their proposal
		}
	}
	if a.lead != nil && a.lead.serving {
		sooner(a.parked.next())
		sooner(a.answers.expiresAt())
		sooner(a.closeEntryAt())
		sooner(a.writeDownAt(now))
	}
	return max(0, next.Sub(now))
}
