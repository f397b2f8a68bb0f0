package rpc

import (
	"context"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
)

// submit carries a command out on the leader and returns what it came to; a refusal
// is an error.
func submit(ctx context.Context, replica Replica, command admission.Command, received time.Time) (actor.Reply, error) {
	reply, err := replica.Submit(ctx, actor.Request{Command: command, Received: received})
	if err == nil && reply.Answer.Refusal != admission.None {
		err = refusal(reply.Answer.Refusal)
	}
	return reply, err
}

// Commit implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Commit(ctx context.Context, request *coordinatorv1.CommitRequest) (*coordinatorv1.CommitResponse, error) {
	received := time.Now()
	command, err := s.decodeCommit(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.CommitResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.CommitResponse, error) {
			command.Response = s.codec.encode(request.GetResponse())
			reply, err := submit(ctx, replica, command, received)
			if err != nil {
				return nil, err
			}
			return &coordinatorv1.CommitResponse{
				Late: reply.Answer.Late, Repeated: reply.Answer.Repeated, Remaining: positive(reply.Remaining),
			}, nil
		},
		there: passOn(coordinatorv1.NewCoordinatorServiceClient, coordinatorv1.CoordinatorServiceClient.Commit, request),
	})
}

// decodeCommit leaves the response to be encoded where the shard is led: hashing
// and compressing it is worth something only there.
func (s *server) decodeCommit(request *coordinatorv1.CommitRequest) (command admission.Commit, err error) {
	if command.Identity, err = decodeIdentity(request.GetIdentity()); err != nil {
		return command, err
	}
	if command.Token, err = decodeToken(request.GetToken()); err != nil {
		return command, err
	}
	if err = s.checkResponse("response", request.GetResponse()); err != nil {
		return command, err
	}
	command.Retention, err = decodeWindow("retention", request.GetRetention(), 0, admission.RetentionMin, admission.RetentionMax)
	return command, err
}

// Release implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Release(ctx context.Context, request *coordinatorv1.ReleaseRequest) (*coordinatorv1.ReleaseResponse, error) {
	received := time.Now()
	command, err := decodeRelease(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.ReleaseResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.ReleaseResponse, error) {
			reply, err := submit(ctx, replica, command, received)
			if err != nil {
				return nil, err
			}
			return &coordinatorv1.ReleaseResponse{Late: reply.Answer.Late, Repeated: reply.Answer.Repeated}, nil
		},
		there: passOn(coordinatorv1.NewCoordinatorServiceClient, coordinatorv1.CoordinatorServiceClient.Release, request),
	})
}

func decodeRelease(request *coordinatorv1.ReleaseRequest) (command admission.Release, err error) {
	command.Reason = request.GetReason()
	if command.Identity, err = decodeIdentity(request.GetIdentity()); err != nil {
		return command, err
	}
	if command.Token, err = decodeToken(request.GetToken()); err != nil {
		return command, err
	}
	return command, refused(command.Validate())
}

// Extend implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Extend(ctx context.Context, request *coordinatorv1.ExtendRequest) (*coordinatorv1.ExtendResponse, error) {
	received := time.Now()
	command, err := s.decodeExtend(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.ExtendResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.ExtendResponse, error) {
			reply, err := submit(ctx, replica, command, received)
			if err != nil {
				return nil, err
			}
			return &coordinatorv1.ExtendResponse{Remaining: positive(reply.Remaining)}, nil
		},
		there: passOn(coordinatorv1.NewCoordinatorServiceClient, coordinatorv1.CoordinatorServiceClient.Extend, request),
	})
}

func (s *server) decodeExtend(request *coordinatorv1.ExtendRequest) (command admission.Extend, err error) {
	command.Span = s.settings.ExtendSpan
	if command.Identity, err = decodeIdentity(request.GetIdentity()); err != nil {
		return command, err
	}
	if command.Token, err = decodeToken(request.GetToken()); err != nil {
		return command, err
	}
	command.PendingTTL, err = decodeWindow("pending_ttl", request.GetPendingTtl(), 0, admission.PendingTTLMin, admission.PendingTTLMax)
	return command, err
}
