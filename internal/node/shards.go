package node

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// shards are the node's shards as the services see them. Until one is open nobody leads it,
// as far as this node knows. Each is served from when it is open: it may lead by then,
// however long others take to be read.
type shards struct {
	count  int
	router atomic.Pointer[shard.Router] // nil until all are open
	calls  atomic.Pointer[shard.Router] // the same, for its connections; nil until one is open
	each   []openShard
}

// openShard is a shard that may be open.
type openShard struct {
	replica   atomic.Pointer[shard.Replica]
	opened    chan struct{} // closed once replica is set
	replacing chan struct{} // capacity 1: held by whoever changes its members
}

var _ rpc.Shards = (*shards)(nil)

func newShards(count int) *shards {
	s := &shards{count: count, each: make([]openShard, count)}
	for i := range s.each {
		s.each[i].opened = make(chan struct{})
		s.each[i].replacing = make(chan struct{}, 1)
	}
	return s
}

// opened takes in one shard, and open notes that all of them are.
func (s *shards) opened(router *shard.Router, number int, replica *shard.Replica) {
	s.calls.Store(router)
	s.each[number].replica.Store(replica)
	close(s.each[number].opened)
}

func (s *shards) open(router *shard.Router) { s.router.Store(router) }

// Shards implements rpc.Shards.
func (s *shards) Shards() int { return s.count }

// Replica implements rpc.Shards.
func (s *shards) Replica(i int) rpc.Replica { return replica{shards: s, number: i} }

// Call implements rpc.Shards.
func (s *shards) Call(leader shard.Leader) (grpc.ClientConnInterface, error) {
	if router := s.calls.Load(); router != nil {
		return router.Call(leader)
	}
	return nil, actor.ErrNoLeader
}

// giveUp gives the shards that are led here to others, where there are some, and takes over no
// other any more. It is best effort, as is all that comes before the end of a stop.
func (s *shards) giveUp(ctx context.Context) {
	var giving sync.WaitGroup
	for i := range s.each {
		if replica := s.each[i].replica.Load(); replica != nil {
			giving.Go(func() { replica.GiveUp(ctx) })
		}
	}
	giving.Wait()
}

// disconnect ends what was forwarded and is not answered yet.
func (s *shards) disconnect() error {
	if router := s.calls.Load(); router != nil {
		return router.Disconnect()
	}
	return nil
}

// leaderless returns the shards whose leader is not known here.
func (s *shards) leaderless() []int {
	var without []int
	for i := range s.count {
		if !s.Replica(i).Leader().Known() {
			without = append(without, i)
		}
	}
	return without
}

// checkPlaces returns an error where a shard's files are not where they were opened.
func (s *shards) checkPlaces() error {
	router := s.router.Load()
	if router == nil {
		return nil
	}
	for i := range router.Shards() {
		if err := router.Replica(i).Group().CheckPlaces(); err != nil {
			return err
		}
	}
	return nil
}

// replica is one shard of them.
type replica struct {
	shards *shards
	number int
}

func (r replica) load() *shard.Replica { return r.shards.each[r.number].replica.Load() }

func (r replica) Submit(ctx context.Context, request actor.Request) (actor.Reply, error) {
	if open := r.load(); open != nil {
		return open.Submit(ctx, request)
	}
	return actor.Reply{}, actor.ErrNoLeader
}

func (r replica) Leader() shard.Leader {
	if open := r.load(); open != nil {
		return open.Leader()
	}
	return shard.Leader{}
}

func (r replica) LeaderChanged() <-chan struct{} {
	if open := r.load(); open != nil {
		return open.LeaderChanged()
	}
	return r.shards.each[r.number].opened
}

func (r replica) Status() shard.Status {
	if open := r.load(); open != nil {
		return open.Status()
	}
	return shard.Status{Shard: r.number}
}

func (r replica) Page(ctx context.Context, after uint64, limit int, keep func(*admission.Record, admission.Time) bool) (
	records []*admission.Record, next uint64, more bool, err error,
) {
	if open := r.load(); open != nil {
		return open.Page(ctx, after, limit, keep)
	}
	return nil, after, false, actor.ErrNoLeader
}

func (r replica) TransferLeadership(ctx context.Context, toNode string) error {
	if open := r.load(); open != nil {
		return open.TransferLeadership(ctx, toNode)
	}
	return actor.ErrNoLeader
}
