package rpc

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// describersMax bounds how many shards one ListShards asks about at a time.
const describersMax = 16

// shardBytes is about how large a shard is in an answer, with its replicas.
const shardBytes = 1 << 10

// ListShards implements coordinatorv1.AdminServiceServer.
func (s *adminService) ListShards(ctx context.Context, _ *coordinatorv1.ListShardsRequest) (*coordinatorv1.ListShardsResponse, error) {
	if err := s.belongs(); err != nil {
		return nil, err
	}
	shards := make([]*coordinatorv1.Shard, s.shards.Shards())
	if !heldBy(ctx).room(len(shards) * shardBytes) {
		return nil, s.noRoom()
	}
	var describers sync.WaitGroup
	tokens := make(chan struct{}, describersMax)
	for i := range shards {
		tokens <- struct{}{}
		describers.Go(func() {
			defer func() { <-tokens }()
			shards[i], _ = s.describe(ctx, i)
		})
	}
	describers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, s.fault(err)
	}
	return &coordinatorv1.ListShardsResponse{Shards: shards}, nil
}

// GetShard implements coordinatorv1.AdminServiceServer.
func (s *adminService) GetShard(ctx context.Context, request *coordinatorv1.GetShardRequest) (*coordinatorv1.GetShardResponse, error) {
	if err := s.belongs(); err != nil {
		return nil, err
	}
	number, err := s.checkShard(request.GetShard())
	if err != nil {
		return nil, err
	}
	describe := s.describe
	if request.GetLocal() {
		describe = s.describeHere
	}
	described, leader := describe(ctx, number)
	header := metadata.Pairs(ShardKey, strconv.Itoa(number))
	if leader != "" {
		header.Set(LeaderKey, leader)
	}
	_ = grpc.SetHeader(ctx, header)
	return &coordinatorv1.GetShardResponse{Shard: described}, nil
}

// describe shows a shard as its leader sees it, and as this node does where there is
// no leader or it cannot be asked: an operator looks just when something is wrong.
func (s *server) describe(ctx context.Context, number int) (described *coordinatorv1.Shard, leaderAddress string) {
	replica := s.shards.Replica(number)
	leader := replica.Leader()
	if leader.Known() && !leader.Self && !isForwarded(ctx) {
		asking, cancel := context.WithTimeout(ctx, s.settings.StatusWait)
		defer cancel()
		answer, address, err := forward(asking, s, replica, leader, hop[*coordinatorv1.GetShardResponse]{
			reads: true,
			there: func(ctx context.Context, connection grpc.ClientConnInterface, options ...grpc.CallOption) (*coordinatorv1.GetShardResponse, error) {
				return coordinatorv1.NewAdminServiceClient(connection).GetShard(ctx,
					&coordinatorv1.GetShardRequest{Shard: uint32(number)}, options...)
			},
		})
		if err == nil && answer.GetShard() != nil {
			return answer.GetShard(), address
		}
	}
	return s.describeHere(ctx, number)
}

// describeHere shows a shard as this node sees it.
func (s *server) describeHere(_ context.Context, number int) (described *coordinatorv1.Shard, leaderAddress string) {
	status := s.shards.Replica(number).Status()
	return encodeShard(status), status.Leader.ClientAddress
}
