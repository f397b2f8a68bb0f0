package node

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// shards are the node's shards as the services see them. Until they are open nobody
// leads any, as far as this node knows.
type shards struct {
	count  int
	router atomic.Pointer[shard.Router]
	opened chan struct{} // closed once router is set
}

var _ rpc.Shards = (*shards)(nil)

func newShards(count int) *shards { return &shards{count: count, opened: make(chan struct{})} }

func (s *shards) open(router *shard.Router) {
	s.router.Store(router)
	close(s.opened)
}

// Shards implements rpc.Shards.
func (s *shards) Shards() int { return s.count }

// Replica implements rpc.Shards.
func (s *shards) Replica(i int) rpc.Replica { return replica{shards: s, number: i} }

// Call implements rpc.Shards.
func (s *shards) Call(leader shard.Leader) (grpc.ClientConnInterface, error) {
	if router := s.router.Load(); router != nil {
		return router.Call(leader)
	}
	return nil, actor.ErrNoLeader
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

func (r replica) load() *shard.Replica {
	if router := r.shards.router.Load(); router != nil {
		return router.Replica(r.number)
	}
	return nil
}

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
	return r.shards.opened
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
