package e2e

import (
	"context"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// caller calls as the contract asks: an attempt id or token is kept over the retries of
// its call, and a call is retried, at one node after another, until it is answered
// with the truth. It may be used by many workers at a time.
type caller struct {
	nodes  []*process.Node
	shards int
	log    *history.Recorder
	try    time.Duration // how long one try may take
	within time.Duration // how long a call may take with all its tries

	inFlight atomic.Int64
	retries  atomic.Int64
}

// What these callers call themselves, and why they release.
const (
	callersName = "e2e"
	releasedFor = "not today"
)

// errGaveUp reports that a call was not answered with the truth in time: whether it
// was carried out is unknown.
var errGaveUp = errors.New("no answer in time")

// moment is when a call was sent and answered.
type moment struct {
	first    time.Duration // the first try was sent
	last     time.Duration // the try that was answered was sent
	answered time.Duration
	tries    int // how many may have been delivered
}

// put says in an event when it was.
func (m moment) put(e *history.Event) {
	e.Sent, e.LastSent, e.Answered, e.Tries = m.first, m.last, m.answered, m.tries
}

// insist makes a call, beginning at the node of that number.
func insist[A any](c *caller, ctx context.Context, start int,
	call func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error),
) (answer A, when moment, err error) {
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	when.first = c.log.Now()
	for tries := 0; ; tries++ {
		node := c.nodes[(start+tries)%len(c.nodes)]
		try, done := context.WithTimeout(ctx, c.try)
		when.last = c.log.Now()
		answer, err = call(try, coordinatorv1.NewCoordinatorServiceClient(node.Conn()))
		done()
		when.answered = c.log.Now()
		if !notApplied(err) {
			when.tries++
		}
		if err == nil || !worthRetrying(err) {
			return answer, when, err
		}
		c.retries.Add(1)
		select {
		case <-ctx.Done():
			return answer, when, fmt.Errorf("%w: %w", errGaveUp, err)
		case <-time.After(time.Duration(10+rand.IntN(60)) * time.Millisecond):
		}
	}
}

// worthRetrying says whether an error is one of those that the same call again, with the
// same attempt id or token, turns into the truth.
func worthRetrying(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true // NO_LEADER, SHUTTING_DOWN, OUTCOME_UNKNOWN, or no word at all
	case codes.ResourceExhausted:
		return reasonOf(err) == "OVERLOADED"
	case codes.Internal: // gRPC's word for an answer that breaks off
		return status.Convert(err).Message() == io.ErrUnexpectedEOF.Error()
	default:
		return false
	}
}

// notApplied says whether an error tells that the try was not, and will not be, carried out.
func notApplied(err error) bool {
	switch reasonOf(err) {
	case "NO_LEADER", "SHUTTING_DOWN", "OVERLOADED":
		return true
	}
	return false
}

// reasonOf returns the reason in an error, or "".
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "coordinator" {
			return info.GetReason()
		}
	}
	return ""
}

// call is what a caller wants: an identity and what belongs to it.
type call struct {
	key, operation string
	fingerprint    []byte
	ttl            time.Duration // 0: the default
	wait           time.Duration
}

func (c call) identity() *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Operation: c.operation, Key: c.key}
}

// event begins an event about the call's identity.
func (c call) event(shards int) history.Event {
	return history.Event{Namespace: admission.DefaultNamespace, Operation: c.operation, Key: c.key, Shard: shardOf(c, shards)}
}

// asks says in an event what a Reserve asks for.
func (c call) asks(e *history.Event) {
	e.TTL, e.Retention, e.Fingerprint, e.Owner = c.ttl, admission.RetentionDefault, string(c.fingerprint), callersName
	if c.ttl == 0 {
		e.TTL = admission.PendingTTLDefault
	}
}

// shardOf returns the shard of a call's key.
func shardOf(c call, shards int) int {
	return admission.Identity{Namespace: admission.DefaultNamespace, Operation: c.operation, Key: c.key}.Shard(shards)
}

// held is a granted reservation.
type held struct {
	call
	attempt history.Attempt
	token   string
	fence   uint64
	number  uint32
}

// reserve makes one call of Reserve with an attempt id of its own, and records what came
// of it. held is set if it was granted.
func (c *caller) reserve(ctx context.Context, start int, what call) (answer *coordinatorv1.ReserveResponse, granted *held, err error) {
	event := what.event(c.shards)
	what.asks(&event)
	_, _ = cryptorand.Read(event.Attempt[:])
	request := &coordinatorv1.ReserveRequest{
		Identity: what.identity(), AttemptId: event.Attempt[:], Fingerprint: what.fingerprint, Owner: callersName, Wait: durationpb.New(what.wait),
	}
	if what.ttl > 0 {
		request.PendingTtl = durationpb.New(what.ttl)
	}
	answer, when, err := insist(c, ctx, start, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReserveResponse, error) {
		return service.Reserve(ctx, request, grpc.MaxCallRecvMsgSize(4<<20))
	})
	when.put(&event)
	switch {
	case err == nil:
		granted = told(&event, answer, when, what)
	case errors.Is(err, errGaveUp):
		event.Kind, event.Unknown = history.Granted, true
	case reasonOf(err) == "ATTEMPT_ENDED":
		event.Kind = history.Ended
	default:
		return nil, nil, fmt.Errorf("reserve %q: %w", event.Key, err)
	}
	c.log.Add(event)
	return answer, granted, err
}

// told fills the event in with an answer.
func told(event *history.Event, answer *coordinatorv1.ReserveResponse, when moment, what call) *held {
	switch {
	case answer.GetGranted() != nil:
		g := answer.GetGranted()
		event.Kind, event.Fence, event.Number = history.Granted, g.GetFence(), g.GetAttempt()
		event.Deadline = ownersDeadline(when, g.GetWaited().AsDuration()+g.GetRemaining().AsDuration())
		event.PreviousFence, event.Note, event.Repeated = g.GetPrevious().GetFence(), g.GetPrevious().GetReason(), g.GetRepeated()
		switch g.GetPrevious().GetEnd() {
		case coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED:
			event.Previous = history.EndReleased
		case coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED:
			event.Previous = history.EndLapsed
		}
		return &held{call: what, attempt: event.Attempt, token: g.GetToken(), fence: g.GetFence(), number: g.GetAttempt()}
	case answer.GetPending() != nil:
		event.Kind, event.Number, event.Holder = history.Pending, answer.GetPending().GetAttempt(), answer.GetPending().GetOwner()
	case answer.GetCommitted() != nil:
		event.Kind, event.Response = history.Replayed, digest(answer.GetCommitted().GetResponse())
	default:
		// These tests hold nothing in doubt.
		event.Kind, event.Reason = history.Refused, fmt.Sprintf("an outcome that cannot be: %v", answer)
	}
	return nil
}

// ownersDeadline is until when an owner may act: from the moment at which it sent the
// try that was answered, less what clocks may differ by.
func ownersDeadline(when moment, remaining time.Duration) time.Duration {
	return when.last + remaining/1000*999
}

// digest stands for a whole response.
func digest(response *coordinatorv1.Response) history.Digest {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		panic(err) // it came from a message
	}
	return sha256.Sum256(encoded)
}

// owner makes one of the owner's calls and records what came of it.
func owner[A any](c *caller, ctx context.Context, start int, h *held, event history.Event,
	call func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error),
) (answer A, when moment, err error) {
	about := h.event(c.shards)
	event.Namespace, event.Operation, event.Key, event.Shard = about.Namespace, about.Operation, about.Key, about.Shard
	event.Attempt, event.Fence = h.attempt, h.fence
	answer, when, err = insist(c, ctx, start, call)
	when.put(&event)
	switch reason := reasonOf(err); {
	case err == nil:
		switch a := any(answer).(type) {
		case *coordinatorv1.ExtendResponse:
			event.Deadline = ownersDeadline(when, a.GetRemaining().AsDuration())
		case *coordinatorv1.CommitResponse:
			event.Late, event.Repeated = a.GetLate(), a.GetRepeated()
		case *coordinatorv1.ReleaseResponse:
			event.Late, event.Repeated = a.GetLate(), a.GetRepeated()
		}
	case errors.Is(err, errGaveUp):
		event.Unknown = true
	case reason != "":
		event.Kind, event.Call, event.Reason = history.Refused, event.Kind, reason
	default:
		return answer, when, fmt.Errorf("%v %q: %w", event.Kind, event.Key, err)
	}
	c.log.Add(event)
	return answer, when, err
}

func (c *caller) commit(ctx context.Context, start int, h *held, response *coordinatorv1.Response) error {
	event := history.Event{Kind: history.Committed, Response: digest(response)}
	_, _, err := owner(c, ctx, start, h, event, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.CommitResponse, error) {
		return service.Commit(ctx, &coordinatorv1.CommitRequest{Identity: h.identity(), Token: h.token, Response: response})
	})
	return err
}

func (c *caller) release(ctx context.Context, start int, h *held) error {
	_, _, err := owner(c, ctx, start, h, history.Event{Kind: history.Released, Note: releasedFor}, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReleaseResponse, error) {
		return service.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: h.identity(), Token: h.token, Reason: releasedFor})
	})
	return err
}

func (c *caller) extend(ctx context.Context, start int, h *held, ttl time.Duration) error {
	_, _, err := owner(c, ctx, start, h, history.Event{Kind: history.Extended, TTL: ttl}, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ExtendResponse, error) {
		return service.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: h.identity(), Token: h.token, PendingTtl: durationpb.New(ttl)})
	})
	return err
}

// get asks for the record and records what it shows.
func (c *caller) get(ctx context.Context, start int, what call) (*coordinatorv1.Record, error) {
	event := what.event(c.shards)
	answer, when, err := insist(c, ctx, start, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.GetResponse, error) {
		return service.Get(ctx, &coordinatorv1.GetRequest{Identity: what.identity(), IncludeBody: true})
	})
	record := answer.GetRecord()
	when.put(&event)
	event.Number, event.Holder, event.Fence, event.Revision = record.GetAttempt(), record.GetOwner(), record.GetFence(), record.GetRevision()
	// A read belongs to its last try: every try reads anew.
	event.Sent = when.last
	switch {
	case reasonOf(err) == "RESERVATION_NOT_FOUND":
		event.Kind, err = history.Missing, nil
	case err != nil:
		return nil, fmt.Errorf("get %q: %w", event.Key, err)
	case record.GetState() == coordinatorv1.State_STATE_COMMITTED:
		event.Kind, event.State, event.Response = history.Replayed, history.StateCommitted, digest(record.GetResponse())
	case record.GetState() == coordinatorv1.State_STATE_PENDING:
		event.Kind, event.State = history.Pending, history.StatePending
	case record.GetState() == coordinatorv1.State_STATE_RELEASED:
		event.Kind, event.State = history.Free, history.StateReleased
	default:
		event.Kind, event.State = history.Free, history.StateLapsed
	}
	c.log.Add(event)
	return record, err
}
