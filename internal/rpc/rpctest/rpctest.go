// Package rpctest holds shards in memory for tests of what is above them: the real
// rules, with a clock that stands still, a leader that the test chooses and failures
// that it asks for. Nothing is replicated, nothing is kept, nobody waits.
//
// It is imported by tests only.
package rpctest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// Shards are those of one node. They implement [rpc.Shards].
type Shards struct {
	replicas []*Replica
	// Dial is what Call does; nil fails.
	Dial func(shard.Leader) (grpc.ClientConnInterface, error)
}

// New returns so many shards, all led by this node.
func New(shards int, self shard.Leader) *Shards {
	s := &Shards{}
	for i := range shards {
		s.replicas = append(s.replicas, &Replica{
			number: i, leader: self, changed: make(chan struct{}),
			records: make(map[admission.Identity]*admission.Record),
		})
	}
	return s
}

// Shards implements [rpc.Shards].
func (s *Shards) Shards() int { return len(s.replicas) }

// Replica implements [rpc.Shards].
func (s *Shards) Replica(i int) rpc.Replica { return s.replicas[i] }

// At returns a replica for the test to handle.
func (s *Shards) At(i int) *Replica { return s.replicas[i] }

// All calls f with every replica.
func (s *Shards) All(f func(*Replica)) {
	for _, r := range s.replicas {
		f(r)
	}
}

// Call implements [rpc.Shards].
func (s *Shards) Call(leader shard.Leader) (grpc.ClientConnInterface, error) {
	if s.Dial == nil {
		return nil, errors.New("rpctest: there is no other node")
	}
	return s.Dial(leader)
}

// Replica is one shard. It implements [rpc.Replica].
type Replica struct {
	number int

	mu       sync.Mutex
	leader   shard.Leader
	changed  chan struct{}
	now      admission.Time
	counter  uint64
	sequence uint64
	records  map[admission.Identity]*admission.Record
	failure  error
	seen     []actor.Request
	handed   []string
	pageMax  int
}

// SetLeader says who leads from now on.
func (r *Replica) SetLeader(leader shard.Leader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = leader
	close(r.changed)
	r.changed = make(chan struct{})
}

// Fail lets every request fail, until it is called with nil.
func (r *Replica) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

// Advance moves the clock.
func (r *Replica) Advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// PageMax bounds how many records one page looks at; 0 is no bound.
func (r *Replica) PageMax(records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pageMax = records
}

// Corrupt damages every stored response.
func (r *Replica) Corrupt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.records {
		if n := len(record.Response.Stored); n > 0 {
			record.Response.Stored = slices.Clone(record.Response.Stored)
			record.Response.Stored[n-1] ^= 1
		}
	}
}

// Seen returns the requests that came this far.
func (r *Replica) Seen() []actor.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// Handed returns the nodes that the shard was handed over to.
func (r *Replica) Handed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.handed)
}

// Submit implements [rpc.Replica].
func (r *Replica) Submit(ctx context.Context, request actor.Request) (actor.Reply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, request)
	switch {
	case ctx.Err() != nil:
		return actor.Reply{}, ctx.Err()
	case r.failure != nil:
		return actor.Reply{}, r.failure
	case !r.leader.Self:
		return actor.Reply{}, actor.ErrNoLeader
	case request.Get != nil:
		record := admission.Look(r.records[*request.Get], r.now)
		if record == nil {
			return actor.Reply{Answer: admission.Answer{Refusal: admission.ReservationNotFound}}, nil
		}
		if request.Body && !hasRoom(request, record.State, record.Response) {
			return actor.Reply{}, actor.ErrNoRoom
		}
		return actor.Reply{Record: record, Live: r.now}, nil
	}
	reply := r.apply(request)
	if reply.Answer.Outcome == admission.OutcomeCommitted && !hasRoom(request, admission.StateCommitted, reply.Answer.Response) {
		return actor.Reply{}, actor.ErrNoRoom
	}
	return reply, nil
}

// hasRoom asks for room for what is committed.
func hasRoom(request actor.Request, state admission.State, response admission.Response) bool {
	return state != admission.StateCommitted || request.Room == nil || request.Room(int(response.Bytes))
}

func (r *Replica) apply(request actor.Request) actor.Reply {
	command := request.Command
	if reserve, ok := command.(admission.Reserve); ok {
		reserve.WantedUntil = r.now.Add(request.WantedFor)
		command = reserve
	}
	id := command.On()
	view := admission.View{Record: r.records[id], Counter: r.counter}
	for other := range r.records {
		if other.Namespace == id.Namespace {
			view.NamespaceRecords++
		}
	}
	decision := admission.Decide(view, admission.Instant{Now: r.now, WallNanos: 1_800_000_000_000_000_000}, command)
	r.counter = decision.Counter
	switch {
	case decision.Deleted:
		delete(r.records, id)
	case decision.Record != nil:
		if decision.Record.Sequence == 0 {
			r.sequence++
			decision.Record.Sequence = r.sequence
		}
		r.records[id] = decision.Record
	}
	reply := actor.Reply{Answer: decision.Answer, Live: r.now, Remaining: actor.NoEnd}
	if end := decision.Answer.Deadline; end != admission.Never {
		reply.Remaining = max(0, end.Sub(r.now))
	}
	reply.Age = max(0, r.now.Sub(decision.Answer.Since))
	return reply
}

// Leader implements [rpc.Replica].
func (r *Replica) Leader() shard.Leader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader
}

// LeaderChanged implements [rpc.Replica].
func (r *Replica) LeaderChanged() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Status implements [rpc.Replica].
func (r *Replica) Status() shard.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := shard.Status{Shard: r.number, Leader: r.leader, Term: 1, Clock: r.now}
	next := admission.Never
	for _, record := range r.records {
		status.Records[record.State]++
		next = min(next, record.Alarm())
	}
	if next != admission.Never {
		status.HasAlarm, status.NextAlarm = true, next.Sub(r.now)
	}
	if r.leader.Known() {
		status.Replicas = []shard.ReplicaStatus{{NodeID: r.leader.NodeID, Voter: true, Self: r.leader.Self}}
	}
	return status
}

// Page implements [rpc.Replica].
func (r *Replica) Page(_ context.Context, after uint64, limit int, keep func(*admission.Record, admission.Time) bool) (
	records []*admission.Record, next uint64, more bool, err error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return nil, after, false, r.failure
	}
	var rest []*admission.Record
	for _, record := range r.records {
		if record.Sequence > after {
			rest = append(rest, record)
		}
	}
	slices.SortFunc(rest, func(a, b *admission.Record) int { return int(a.Sequence) - int(b.Sequence) })
	next = after
	for i, record := range rest {
		if len(records) == limit || r.pageMax > 0 && i == r.pageMax {
			return records, next, true, nil
		}
		next = record.Sequence
		if seen := admission.Look(record, r.now); seen != nil && keep(seen, r.now) {
			records = append(records, seen)
		}
	}
	return records, next, false, nil
}

// TransferLeadership implements [rpc.Replica].
func (r *Replica) TransferLeadership(_ context.Context, toNode string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil {
		return r.failure
	}
	r.handed = append(r.handed, toNode)
	return nil
}

// Cluster is what a node knows of its cluster. It implements [rpc.Cluster].
type Cluster struct {
	Self    string
	Nodes   []rpc.Member
	Trouble []string
}

// ID implements [rpc.Cluster].
func (*Cluster) ID() string { return "c0ffee" }

// NodeID implements [rpc.Cluster].
func (c *Cluster) NodeID() string { return c.Self }

// Version implements [rpc.Cluster].
func (*Cluster) Version() string { return "v0.0.0-test" }

// Members implements [rpc.Cluster].
func (c *Cluster) Members(context.Context) []rpc.Member { return slices.Clone(c.Nodes) }

// Problems implements [rpc.Cluster].
func (c *Cluster) Problems(context.Context) []string { return slices.Clone(c.Trouble) }
