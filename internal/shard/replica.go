package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// Replica is this node's part of one shard.
type Replica struct {
	shard     int
	self      raft.ServerID
	group     *raftfsm.Group
	actor     *actor.Actor
	directory Directory
}

// Submit has the shard decide a request, see [actor.Actor.Submit]. It is refused with
// [actor.ErrNoLeader] unless this replica leads.
func (r *Replica) Submit(ctx context.Context, request actor.Request) (actor.Reply, error) {
	return r.actor.Submit(ctx, request)
}

// Leads reports whether this replica leads the shard, as far as it knows.
func (r *Replica) Leads() bool { return r.group.IsLeader() }

// Leader returns who leads the shard, as far as this node knows.
func (r *Replica) Leader() Leader {
	id, address := r.group.Leader()
	if id == "" {
		return Leader{}
	}
	return Leader{
		NodeID:        r.directory.NodeID(id),
		ServerID:      string(id),
		PeerAddress:   r.directory.PeerAddress(id, address),
		ClientAddress: r.directory.ClientAddress(id),
		Self:          id == r.self,
	}
}

// LeaderChanged returns a channel that is closed when another leader is known, or none
// any more. Ask for it before asking for the leader.
func (r *Replica) LeaderChanged() <-chan struct{} { return r.group.LeaderChanged() }

// pageScanMax bounds how many stored records one page looks through, so that a filter
// that fits nothing still lets others have their turn.
const pageScanMax = 10_000

// Page returns up to limit records that come after a sequence number, in the order of
// their arrival, and that keep accepts. keep is called with each record and the live
// time. The page may be short, or empty, while there is more. Only the leader answers, and
// each page is up to date when it is read.
func (r *Replica) Page(ctx context.Context, after uint64, limit int, keep func(*admission.Record, admission.Time) bool) (
	records []*admission.Record, next uint64, more bool, err error,
) {
	reply, err := r.actor.Submit(ctx, actor.Request{Received: time.Now()})
	if err != nil {
		return nil, after, false, err
	}
	// Records are shown as the log's clock has them: by now it is past every deadline that
	// had come when the call was received. It stands still while nothing happens, so how
	// old they are is for live time to say.
	var clock admission.Time
	if err := r.group.Store().View(func(tx *store.Tx) error {
		clock = tx.Clock().Now
		return nil
	}); err != nil {
		return nil, after, false, err
	}
	live := max(clock, reply.Live)
	next, more, err = r.group.Store().Scan(after, pageScanMax, func(stored *admission.Record) bool {
		if record := admission.Look(stored, clock); record != nil && keep(record, live) {
			records = append(records, record)
		}
		return len(records) < limit
	})
	return records, next, more, err
}

// Status returns what this node knows of the shard.
func (r *Replica) Status() Status {
	state := r.group.Store().Stats()
	digest, applied := r.group.Store().Digest()
	_, commit, last := r.group.Indexes()
	status := Status{
		Shard:      r.shard,
		Leader:     r.Leader(),
		Term:       r.group.Term(),
		Applied:    applied.Index,
		Digest:     digest,
		Commit:     commit,
		Last:       last,
		Clock:      state.Clock.Now,
		LogBytes:   r.group.LogBytes(),
		StateBytes: state.FileBytes,
		Waiters:    r.actor.Waiters(),
		Records:    state.Records,
	}
	status.MailboxDepth, status.MailboxBytes = r.actor.Mailbox()
	if earliest, ok := r.group.Store().NextAlarm(); ok {
		status.HasAlarm, status.NextAlarm = true, earliest.Sub(status.Clock)
	}
	for _, follower := range r.group.Followers() {
		status.Replicas = append(status.Replicas, r.replicaStatus(follower, last))
	}
	for _, server := range r.group.Configuration().Servers {
		if server.ID == r.self { // which is nobody's follower
			own := raftfsm.Follower{ID: server.ID, Address: server.Address, Voter: server.Suffrage == raft.Voter}
			status.Replicas = append(status.Replicas, r.replicaStatus(own, last))
		}
	}
	return status
}

func (r *Replica) replicaStatus(f raftfsm.Follower, last uint64) ReplicaStatus {
	status := ReplicaStatus{
		NodeID:      r.directory.NodeID(f.ID),
		ServerID:    string(f.ID),
		Address:     r.directory.PeerAddress(f.ID, f.Address),
		Voter:       f.Voter,
		Self:        f.ID == r.self,
		Match:       f.MatchIndex,
		LastContact: -1,
	}
	if status.Self {
		status.Match, status.LastContact = last, 0
		return status
	}
	if !f.LastContact.IsZero() {
		status.LastContact = time.Since(f.LastContact)
	}
	if f.MatchIndex < last {
		status.Behind = last - f.MatchIndex
	}
	return status
}

// TransferLeadership hands the shard over to a node, or to the one that is furthest
// along where the name is "", and waits until this node knows that another leads. It returns
// an error where this replica does not lead, and where within successionMax nobody does, or
// somebody who was not asked for.
func (r *Replica) TransferLeadership(ctx context.Context, toNode string) error {
	var to raft.ServerID
	if toNode != "" {
		for _, follower := range r.group.Followers() {
			if r.directory.NodeID(follower.ID) == toNode {
				to = follower.ID
			}
		}
		switch to {
		case "":
			return fmt.Errorf("%w: no replica on a node %q", ErrNoSuchReplica, toNode)
		case r.self:
			return nil
		}
	}
	if err := r.actor.Handover(ctx, to); err != nil {
		return err
	}
	return r.succeeded(ctx, to)
}

// GiveUp is TransferLeadership for a replica that is about to be closed: it takes over from nobody
// any more, and where it leads it hands over to whoever takes it. What comes of that is not told.
func (r *Replica) GiveUp(ctx context.Context) {
	r.group.Decline()
	if leader, _ := r.awaitLeader(ctx, takeoverMax); !leader.Self {
		return
	}
	successors := r.group.Successors()
	if len(successors) == 0 {
		successors = []raft.ServerID{""} // nobody: the clock is written down in any case
	}
	for _, to := range successors {
		if _ = r.actor.Handover(ctx, to); !r.Leads() || ctx.Err() != nil {
			break
		}
	}
	_, _ = r.awaitLeader(ctx, successionMax)
}

const (
	// takeoverMax is more than it takes to be elected once that is asked for, in a cluster in
	// which all is well.
	takeoverMax = 100 * time.Millisecond
	// successionMax is about what it takes to elect a leader where the one that was asked to
	// take over does not.
	successionMax = 2 * time.Second
)

// succeeded waits until a shard that was handed over is led again, by the one that was asked for
// where that is not "". That this replica does not lead any more is no word of the one that should.
func (r *Replica) succeeded(ctx context.Context, by raft.ServerID) error {
	switch leader, err := r.awaitLeader(ctx, successionMax); {
	case err != nil:
		return err
	case leader.ServerID == string(by), by == "" && !leader.Self:
		return nil
	default:
		return fmt.Errorf("%s leads it", leader.NodeID)
	}
}

// awaitLeader waits until this node knows who leads.
func (r *Replica) awaitLeader(ctx context.Context, within time.Duration) (Leader, error) {
	patience := time.NewTimer(within)
	defer patience.Stop()
	for {
		changed := r.LeaderChanged()
		if leader := r.Leader(); leader.Known() {
			return leader, nil
		}
		select {
		case <-changed:
		case <-patience.C:
			return Leader{}, fmt.Errorf("nobody has taken over within %v", within)
		case <-ctx.Done():
			return Leader{}, ctx.Err()
		}
	}
}

// What keeps a shard from being handed over. Nothing was tried then.
var (
	ErrNoSuchReplica = errors.New("shard: no such replica") // on a node that the caller named
	ErrNotAnswering  = raftfsm.ErrNotAnswering              // whoever was to take over does not
)

// Group is the Raft group, for membership changes.
func (r *Replica) Group() *raftfsm.Group { return r.group }

// close answers whoever waits, and closes the replica.
func (r *Replica) close(ctx context.Context) error {
	return errors.Join(r.actor.Stop(ctx), r.group.Close(ctx))
}
