package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Resolve implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Resolve(ctx context.Context, request *coordinatorv1.ResolveRequest) (*coordinatorv1.ResolveResponse, error) {
	received := time.Now()
	command, err := s.decodeResolve(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.ResolveResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.ResolveResponse, error) {
			if command.Applied {
				command.Response = s.codec.encode(request.GetApplied())
			}
			reply, err := submit(ctx, replica, command, received)
			if err != nil {
				return nil, err
			}
			return &coordinatorv1.ResolveResponse{Repeated: reply.Answer.Repeated}, nil
		},
		there: passOn(coordinatorv1.NewCoordinatorServiceClient, coordinatorv1.CoordinatorServiceClient.Resolve, request),
	})
}

func (s *server) decodeResolve(request *coordinatorv1.ResolveRequest) (command admission.Resolve, err error) {
	command.Revision = request.GetRevision()
	command.Note = request.GetNote()
	if command.Identity, err = decodeIdentity(request.GetIdentity()); err != nil {
		return command, err
	}
	switch settlement := request.GetSettlement().(type) {
	case *coordinatorv1.ResolveRequest_Applied:
		command.Applied = true
		if err = s.checkResponse("applied", settlement.Applied); err != nil {
			return command, err
		}
	case *coordinatorv1.ResolveRequest_NotApplied:
	default:
		return command, invalid("settlement", "is required: either applied or not_applied")
	}
	return command, refused(command.Validate())
}

// Get implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Get(ctx context.Context, request *coordinatorv1.GetRequest) (*coordinatorv1.GetResponse, error) {
	received := time.Now()
	identity, err := decodeIdentity(request.GetIdentity())
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	return route(ctx, s.server, identity.Shard(s.shards.Shards()), hop[*coordinatorv1.GetResponse]{
		reads: true,
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.GetResponse, error) {
			// Code and headers are shown even where the body is not asked for.
			reply, err := replica.Submit(ctx, actor.Request{Get: &identity, Body: true, Received: received, Room: heldBy(ctx).room})
			switch {
			case err != nil:
				return nil, err
			case reply.Record == nil:
				return nil, reason.Error(reason.ReservationNotFound, "")
			}
			record := encodeRecord(reply.Record, reply.Live)
			if reply.Record.State == admission.StateCommitted {
				stored := reply.Record.Response
				if !heldBy(ctx).room(int(stored.Bytes)) {
					return nil, s.noRoom()
				}
				if record.Response, err = s.codec.decode(stored.Stored, stored.Hash); err != nil {
					return nil, s.unreadable(err)
				}
				if !request.GetIncludeBody() {
					record.Response.Body = nil
				}
			}
			return &coordinatorv1.GetResponse{Record: record}, nil
		},
		there: func(ctx context.Context, connection grpc.ClientConnInterface, options ...grpc.CallOption) (*coordinatorv1.GetResponse, error) {
			answer, err := coordinatorv1.NewCoordinatorServiceClient(connection).Get(ctx, request, options...)
			if err == nil && !heldBy(ctx).room(proto.Size(answer)) {
				return nil, s.noRoom()
			}
			return answer, err
		},
	})
}
