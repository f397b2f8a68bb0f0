package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// coordinatorService serves the callers that want to be admitted.
type coordinatorService struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
	*server
	calls *Calls
}

// Reserve implements coordinatorv1.CoordinatorServiceServer.
func (s *coordinatorService) Reserve(ctx context.Context, request *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	received := time.Now()
	command, wait, err := s.decodeReserve(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(ctx, wait)
	defer cancel()
	deadline, _ := ctx.Deadline()

	return route(ctx, s.server, command.Identity.Shard(s.shards.Shards()), hop[*coordinatorv1.ReserveResponse]{
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.ReserveResponse, error) {
			command.StorageFull = s.storageFull()
			reply, err := replica.Submit(ctx, actor.Request{
				Command: command, Wait: wait, Received: received, WantedFor: deadline.Sub(received), Room: heldBy(ctx).room,
			})
			if err != nil {
				return nil, err
			}
			return s.reserved(ctx, reply)
		},
		there: func(ctx context.Context, connection grpc.ClientConnInterface, options ...grpc.CallOption) (*coordinatorv1.ReserveResponse, error) {
			onward := forwardedReserve(request, command.Attempt, wait-time.Since(received))
			answer, err := coordinatorv1.NewCoordinatorServiceClient(connection).Reserve(ctx, onward, options...)
			// A replay may be asked for again; a grant is given, whatever else is under way.
			if answer.GetCommitted() != nil && !heldBy(ctx).room(proto.Size(answer)) {
				return nil, s.noRoom()
			}
			return answer, err
		},
	})
}

// forwardedReserve is the call as the leader gets it: as it came, but for the
// attempt id, which must not be drawn twice, and the wait, of which some is over.
func forwardedReserve(request *coordinatorv1.ReserveRequest, attempt admission.AttemptID, wait time.Duration) *coordinatorv1.ReserveRequest {
	onward := &coordinatorv1.ReserveRequest{
		Identity:    request.GetIdentity(),
		AttemptId:   attempt[:],
		Fingerprint: request.GetFingerprint(),
		PendingTtl:  request.GetPendingTtl(),
		Retention:   request.GetRetention(),
		OnLapse:     request.GetOnLapse(),
		Owner:       request.GetOwner(),
	}
	if wait > 0 {
		onward.Wait = durationpb.New(wait)
	}
	return onward
}

func (s *server) decodeReserve(request *coordinatorv1.ReserveRequest) (command admission.Reserve, wait time.Duration, err error) {
	command.Fingerprint = request.GetFingerprint()
	command.Owner = request.GetOwner()
	command.RecordsMax = s.recordsMax()
	for _, step := range []func() error{
		func() (err error) { command.Identity, err = decodeIdentity(request.GetIdentity()); return },
		func() (err error) { command.Attempt, err = decodeAttempt(request.GetAttemptId()); return },
		func() (err error) {
			command.PendingTTL, err = decodeWindow("pending_ttl", request.GetPendingTtl(),
				s.settings.PendingTTLDefault, admission.PendingTTLMin, admission.PendingTTLMax)
			return
		},
		func() (err error) {
			command.Retention, err = decodeWindow("retention", request.GetRetention(),
				s.settings.RetentionDefault, admission.RetentionMin, admission.RetentionMax)
			return
		},
		func() (err error) { command.OnLapse, err = decodeOnLapse(request.GetOnLapse()); return },
		func() (err error) {
			wait, err = decodeWindow("wait", request.GetWait(), 0, 0, admission.WaitMax)
			return
		},
		func() error { return refused(command.Validate()) },
	} {
		if err := step(); err != nil {
			return admission.Reserve{}, 0, err
		}
	}
	return command, wait, nil
}

// recordsMax is how many records of one namespace a shard may have; 0 is no limit.
func (s *server) recordsMax() uint64 {
	quota, shards := s.settings.NamespaceRecordsMax, uint64(s.shards.Shards())
	if quota == 0 {
		return 0
	}
	return (quota-1)/shards + 1
}

// storageIsFull says how full, where that is known.
func (s *server) storageIsFull() error {
	if space := s.space(); space != "" {
		return reason.Error(reason.StorageFull, "the leader is short of disk space and takes no new keys: "+space)
	}
	return refusal(admission.StorageFull)
}

// reserved is the answer to a Reserve. An outcome that this program does not know
// admits nobody.
func (s *server) reserved(ctx context.Context, reply actor.Reply) (*coordinatorv1.ReserveResponse, error) {
	answer := reply.Answer
	switch answer.Refusal {
	case admission.None:
	case admission.QuotaExceeded:
		return nil, reason.Error(reason.QuotaExceeded, fmt.Sprintf(
			"the namespace has as many records as it may have in this shard, the limit is %d for each of %d shards", s.recordsMax(), s.shards.Shards()))
	case admission.StorageFull:
		return nil, s.storageIsFull()
	default:
		return nil, refusal(answer.Refusal)
	}
	switch answer.Outcome {
	case admission.OutcomeGranted:
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
			Token:     answer.Token.String(),
			Fence:     answer.Fence,
			Attempt:   answer.Attempt,
			Previous:  encodePrevious(answer.Previous),
			Remaining: positive(reply.Remaining),
			Waited:    durationpb.New(max(0, reply.Waited)),
			Repeated:  answer.Repeated,
		}}}, nil
	case admission.OutcomePending:
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{
			RetryAfter: positive(retryAfter(reply.Age, reply.Remaining)),
			Attempt:    answer.Attempt,
			Owner:      answer.Owner,
			Age:        durationpb.New(max(0, reply.Age)),
		}}}, nil
	case admission.OutcomeCommitted:
		if !heldBy(ctx).room(int(answer.Response.Bytes)) { // the log gives it unasked
			return nil, s.noRoom()
		}
		response, err := s.codec.decode(answer.Response.Stored, answer.Response.Hash)
		if err != nil {
			return nil, s.unreadable(err)
		}
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Committed{Committed: &coordinatorv1.Committed{
			Response:  response,
			Age:       durationpb.New(max(0, reply.Age)),
			Remaining: positive(reply.Remaining),
		}}}, nil
	case admission.OutcomeInDoubt:
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_InDoubt{InDoubt: &coordinatorv1.InDoubt{
			Owner: answer.Owner,
			Age:   durationpb.New(max(0, reply.Age)),
		}}}, nil
	}
	s.logger.Error("a reservation has an outcome without a meaning", "outcome", uint8(answer.Outcome))
	return nil, reason.Error(reason.OutcomeUnknown, "")
}

// unreadable is the answer where a response was committed and cannot be given back.
// Another replica may hold it intact, so asking again is worth it.
func (s *server) unreadable(err error) error {
	s.logger.Error("a committed response cannot be given back", "error", err)
	return reason.Error(reason.OutcomeUnknown, "the key is committed, but its response cannot be read on this node")
}

// Bounds of the advice when to ask for a pending reservation again.
const (
	retryAfterMin = 100 * time.Millisecond
	retryAfterMax = 5 * time.Second
)

// retryAfter grows with the time that the attempt has taken already, so that a short
// one is followed closely and a long one is not asked about all the time. Asking is
// worth it when the reservation is over, at the latest.
func retryAfter(age, remaining time.Duration) time.Duration {
	return min(remaining, max(retryAfterMin, min(age/2, retryAfterMax)))
}
