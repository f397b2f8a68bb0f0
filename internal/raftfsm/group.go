package raftfsm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/store"
)

// Group is one replica of a shard's Raft group. Its methods may be called by several
// goroutines.
type Group struct {
	cfg       GroupConfig
	store     *store.Store
	log       *logStore
	places    []disk.Place // does not change once it is open
	fsm       *fsm
	transport *transport
	watchdog  *watchdog
	raft      *raft.Raft

	notify     chan bool     // from raft, which waits for it to be read
	leadership chan bool     // conflating
	kick       chan struct{} // conflating
	rotated    chan struct{} // conflating: the log has grown by a segment
	leader     leaderChange
	leaders    leaders // the watcher's
	flushes    flushes

	// changes counts who waits for one of raft's futures that a shutdown would leave
	// hanging. None is added once closing is closed; beginning guards that.
	changes   sync.WaitGroup
	beginning sync.Mutex

	closing  chan struct{} // nothing new is begun
	down     chan struct{} // raft has been told to shut down
	closer   sync.Once
	closed   chan struct{} // everything is closed
	closeErr error
	workers  sync.WaitGroup
}

// Propose hands an encoded entry to raft. The future's response is what [Result]
// says; what its error says of the entry is told by [Classify].
//
// enqueueWithin bounds the wait for raft's queue only; not more than 0 is no bound.
// The future resolves when the entry is applied, or when leadership is lost, which
// without a majority takes a Lease or two. It never resolves if the group is closed
// before that: whoever closes a group lets its proposals end first.
func (g *Group) Propose(entry []byte, enqueueWithin time.Duration) raft.ApplyFuture {
	return g.raft.Apply(entry, enqueueWithin)
}

// Store returns the shard's state. It is to be read only: the log writes to it.
func (g *Group) Store() *store.Store { return g.store }

// Leadership returns the channel on which a change of leadership is signalled. Only
// the newest value is kept: who reads true twice has lost leadership in between, and
// must look at [Group.Term].
func (g *Group) Leadership() <-chan bool { return g.leadership }

// Term returns the current Raft term.
func (g *Group) Term() uint64 { return g.raft.CurrentTerm() }

// IsLeader reports whether this replica takes itself for the leader. It may have
// been deposed without knowing: see [Group.Confirmed].
func (g *Group) IsLeader() bool { return g.raft.State() == raft.Leader }

// Leader returns whom this replica takes for the leader, and where that one said it
// was; empty for nobody.
func (g *Group) Leader() (raft.ServerID, raft.ServerAddress) {
	address, id := g.raft.LeaderWithID()
	return id, address
}

// AnswerTerm says that somebody waits here for the answers to this term's entries:
// the stored responses are read for them only. 0 is nobody.
func (g *Group) AnswerTerm(term uint64) { g.fsm.answerTerm.Store(term) }

// Confirmed reports whether this replica leads the term and a majority of the
// configuration's voters, itself included, has answered with success an
// AppendEntries of the term that was sent after since. If so, and if since lies
// after the leader's LeaderStart was applied, then every entry that had been
// answered by anybody before since is in this replica's applied state: package
// documentation, "Confirmed".
//
// A single voter is confirmed as long as it leads.
func (g *Group) Confirmed(term uint64, since time.Time) bool {
	if !g.acknowledgedSince(term, since) {
		return false
	}
	// Last, so that it is this replica's own answer to the question, given after
	// since.
	return g.IsLeader() && g.Term() == term
}

func (g *Group) acknowledgedSince(term uint64, since time.Time) bool {
	configuration := g.Configuration()
	return g.transport.out.acknowledged.majority(configuration, g.cfg.Self, term, since)
}

// Kick asks the followers for an acknowledgement now rather than at the next
// heartbeat. It does not block. Kicks that come while one is under way are one.
func (g *Group) Kick() { signal(g.kick) }

// Acknowledged returns the channel on which it is signalled that something has been
// acknowledged in the newest term since [Group.Confirmed] was last false. Signals that
// nobody takes are one.
func (g *Group) Acknowledged() <-chan struct{} { return g.transport.out.acknowledged.signal }

// Configuration returns the group's latest configuration, which may not be committed
// yet. It is the caller's own.
func (g *Group) Configuration() raft.Configuration {
	return g.raft.GetConfiguration().Configuration()
}

// Followers returns what is known of the other servers of the configuration.
func (g *Group) Followers() []Follower {
	leading := uint64(0)
	if g.IsLeader() {
		leading = g.Term()
	}
	return g.transport.out.acknowledged.describe(g.Configuration(), g.cfg.Self, leading)
}

// Indexes returns the last index that the state has applied, the last that is known
// to be committed and the last of the log. Entries that raft keeps to itself, such
// as the first of a term, move applied only with the entry after them.
func (g *Group) Indexes() (applied, commit, last uint64) {
	return g.store.Applied().Index, g.raft.CommitIndex(), g.raft.LastIndex()
}

// LogBytes returns the bytes of the log's files, which are allocated by 8 MiB.
func (g *Group) LogBytes() int64 { return g.log.bytes() }

// TransferLeadership hands leadership to the given server, or with "" to the first of
// [Group.Successors]. It returns once this one does not lead any more, or after an error
// within about two Elections. Meanwhile proposals are turned away.
//
// A server that has not answered for an Election is refused at once: raft would turn
// proposals away until that server is back.
func (g *Group) TransferLeadership(to raft.ServerID) error {
	return g.change(func() (raft.Future, error) {
		target, err := successor(g.Followers(), to, g.lately())
		if err != nil {
			return nil, err
		}
		return g.raft.LeadershipTransferToServer(target.ID, target.Address), nil
	})
}

// Successors are the servers that leadership may be handed to: voters that have answered lately,
// the furthest first, and of those the latest to answer.
func (g *Group) Successors() []raft.ServerID {
	var ids []raft.ServerID
	for _, f := range successors(g.Followers(), g.lately()) {
		ids = append(ids, f.ID)
	}
	return ids
}

// Decline has this replica take over from nobody any more: who tries to hand leadership to it is
// refused, and goes on leading. It is for a replica that is about to be closed.
func (g *Group) Decline() { g.transport.in.declines.Store(true) }

// lately is since when a server must have answered to be handed leadership.
func (g *Group) lately() time.Time { return time.Now().Add(-g.cfg.Timing.Election) }

// successors are the followers that leadership may be handed to, in the order of
// [Group.Successors].
func successors(followers []Follower, since time.Time) []Follower {
	voters := slices.DeleteFunc(slices.Clone(followers), func(f Follower) bool { return !f.Voter || f.LastContact.Before(since) })
	slices.SortStableFunc(voters, func(a, b Follower) int {
		return cmp.Or(cmp.Compare(b.MatchIndex, a.MatchIndex), b.LastContact.Compare(a.LastContact))
	})
	return voters
}

// successor picks the voter to hand leadership to: the one that is asked for, or with "" the
// first of all. It must have answered since.
func successor(followers []Follower, to raft.ServerID, since time.Time) (Follower, error) {
	voters := successors(followers, since)
	if to == "" {
		if len(voters) == 0 {
			return Follower{}, fmt.Errorf("%w of any other voter", ErrNotAnswering)
		}
		return voters[0], nil
	}
	named := func(f Follower) bool { return f.ID == to }
	if i := slices.IndexFunc(voters, named); i >= 0 {
		return voters[i], nil
	}
	switch i := slices.IndexFunc(followers, named); {
	case i < 0:
		return Follower{}, fmt.Errorf("server %q is not in the group", to)
	case !followers[i].Voter:
		return Follower{}, fmt.Errorf("server %q has no vote", to)
	}
	return Follower{}, fmt.Errorf("%w: server %q", ErrNotAnswering, to)
}

// ErrNotAnswering reports that nothing was handed over, because whoever was to take over has not
// answered for an Election.
var ErrNotAnswering = errors.New("no answer lately")

// Settled returns the group's configuration once it is committed. It returns an error where
// this replica does not lead, or stops to lead meanwhile.
func (g *Group) Settled(ctx context.Context) (raft.Configuration, error) {
	// In this order: the entry that brought it is none after the last one.
	configuration, last := g.Configuration(), g.raft.LastIndex()
	look := time.NewTicker(settledLook)
	defer look.Stop()
	for {
		switch {
		case !g.IsLeader():
			return raft.Configuration{}, raft.ErrNotLeader
		case g.raft.CommitIndex() >= last:
			return configuration, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return raft.Configuration{}, ctx.Err()
		}
	}
}

// settledLook is the time between two looks at whether a configuration is committed.
const settledLook = 5 * time.Millisecond

// AddVoter adds a server with a vote, or gives it one, or another address. It
// returns once that is committed, or leadership is lost; within, more than 0, bounds
// the time until it is begun.
func (g *Group) AddVoter(id raft.ServerID, at raft.ServerAddress, within time.Duration) error {
	return g.change(func() (raft.Future, error) { return g.raft.AddVoter(id, at, 0, within), nil })
}

// AddNonvoter adds a server that follows without a vote. See [Group.AddVoter].
func (g *Group) AddNonvoter(id raft.ServerID, at raft.ServerAddress, within time.Duration) error {
	return g.change(func() (raft.Future, error) { return g.raft.AddNonvoter(id, at, 0, within), nil })
}

// RemoveServer takes a server out of the group. See [Group.AddVoter].
func (g *Group) RemoveServer(id raft.ServerID, within time.Duration) error {
	return g.change(func() (raft.Future, error) { return g.raft.RemoveServer(id, 0, within), nil })
}

// change waits for a future that raft resolves as long as it runs.
func (g *Group) change(begin func() (raft.Future, error)) error {
	g.beginning.Lock()
	select {
	case <-g.closing:
		g.beginning.Unlock()
		return raft.ErrRaftShutdown
	default:
		g.changes.Add(1)
		g.beginning.Unlock()
	}
	defer g.changes.Done()
	future, err := begin()
	if err != nil {
		return err
	}
	return future.Error()
}

// Close ends the replica: changes that are under way, raft, its connections, the
// log, the state, which is flushed. It does not hand leadership over, and proposals
// whose futures have not resolved may never do so.
//
// It returns ctx's error when that ends first. What is being closed goes on being
// closed then; a hung disk can only be left by ending the process.
func (g *Group) Close(ctx context.Context) error {
	g.closer.Do(func() { go g.shutdown() })
	select {
	case <-g.closed:
		return g.closeErr
	case <-ctx.Done():
		return fmt.Errorf("closing %s: %w", g.cfg.Dir, context.Cause(ctx))
	}
}

// shutdown closes from the top down: nobody may call what has been closed.
func (g *Group) shutdown() {
	defer close(g.closed)
	g.beginning.Lock()
	close(g.closing)
	g.beginning.Unlock()
	g.changes.Wait()

	g.store.EndCopies() // raft waits for its routines, and one may make a copy
	ended := g.raft.Shutdown()
	// Not before: until then raft's main loop may wait for its signal to be read, and
	// a change for the main loop.
	close(g.down)
	// Raft waits for its calls to peers, which end when their connections do.
	_ = g.transport.Close()
	err := ended.Error()
	g.workers.Wait()
	g.closeErr = errors.Join(err, g.log.close(), g.store.Flush(), g.store.Close())
	g.watchdog.close()
}

// signal leaves a signal in a channel of capacity one, unless one is there.
func signal(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
