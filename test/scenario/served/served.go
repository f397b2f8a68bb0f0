// Package served plays scenarios against running nodes, through gRPC as every caller
// does. It is one [scenario.Target] for a cluster in memory and for one of real
// processes; what differs is the connections and how time is moved.
//
// # Invariants
//
//  1. Calls go to the nodes in turn: any node takes any call.
//  2. A call is made once. What a caller should try again (no leader, an unknown
//     outcome) is an error of the run, unless Retry says otherwise.
//
// # Failures
//
// A refusal by the rules is a result; every other failure of a call is returned as
// the error it is.
package served

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/scenario"
)

// callTimeout bounds a call beyond what it asks to wait, unless Timeout says otherwise.
const callTimeout = 30 * time.Second

// Target is the nodes behind some connections.
type Target struct {
	// Nodes are connections to the nodes, at least one.
	Nodes []grpc.ClientConnInterface
	// Sleep moves time.
	Sleep func(time.Duration)
	// Retry makes a call that was not carried out for want of a leader, or whose
	// outcome is unknown, be made again for up to this long. 0 is never.
	Retry time.Duration
	// Timeout bounds each call beyond what it asks to wait. 0 is half a minute.
	Timeout time.Duration
	// Slowest is how long the slowest call took beyond what it asked to wait.
	Slowest time.Duration

	next int
}

// node returns the connection whose turn it is.
func (t *Target) node() grpc.ClientConnInterface {
	t.next++
	return t.Nodes[t.next%len(t.Nodes)]
}

// call makes a call of the given wait, and makes it again where it should be.
func (t *Target) call(ctx context.Context, wait time.Duration, do func(context.Context, grpc.ClientConnInterface) (scenario.Result, error)) (scenario.Result, error) {
	const pause = 50 * time.Millisecond
	for tried := time.Duration(0); ; tried += pause {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, wait+t.timeout())
		result, err := do(bounded, t.node())
		cancel()
		t.Slowest = max(t.Slowest, time.Since(began)-wait)
		if err == nil {
			return result, nil
		}
		failure := reason.Of(err)
		if failure.Info && decided(failure.Reason) {
			return scenario.Result{Reason: string(failure.Reason)}, nil
		}
		again := failure.Reason == reason.NoLeader || failure.Reason == reason.OutcomeUnknown || failure.Reason == reason.ShuttingDown
		if !again || tried >= t.Retry {
			return scenario.Result{}, err
		}
		t.Sleep(pause)
	}
}

func (t *Target) timeout() time.Duration {
	if t.Timeout == 0 {
		return callTimeout
	}
	return t.Timeout
}

// decided reports whether the rules, or the check of the arguments, gave the reason.
func decided(r reason.Reason) bool {
	return !slices.Contains([]reason.Reason{
		reason.NoLeader, reason.ShuttingDown, reason.OutcomeUnknown, reason.Overloaded, reason.Unauthenticated,
		reason.PermissionDenied, reason.DeadlineExceeded, reason.Cancelled,
	}, r)
}

func identity(id admission.Identity) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Namespace: id.Namespace, Principal: id.Principal, Operation: id.Operation, Key: id.Key}
}

func duration(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func response(r *scenario.Response) *coordinatorv1.Response {
	m := &coordinatorv1.Response{Code: uint32(r.Code), ContentType: r.ContentType, Body: []byte(r.Body)}
	for _, header := range r.Headers {
		m.Headers = append(m.Headers, &coordinatorv1.Header{Name: header[0], Value: header[1]})
	}
	return m
}

// Reserve implements [scenario.Target].
func (t *Target) Reserve(ctx context.Context, call scenario.ReserveCall) (scenario.Result, error) {
	request := &coordinatorv1.ReserveRequest{
		Identity:    identity(call.Identity),
		AttemptId:   call.Attempt[:],
		Fingerprint: call.Fingerprint,
		PendingTtl:  duration(call.PendingTTL),
		Retention:   duration(call.Retention),
		Owner:       call.Owner,
	}
	if call.OnLapse == admission.Hold {
		request.OnLapse = coordinatorv1.OnLapse_ON_LAPSE_HOLD
	}
	began := time.Now()
	return t.call(ctx, call.Wait, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		if call.Wait > 0 { // who asks again, after a change of leader, waits for what is left
			request.Wait = durationpb.New(max(0, call.Wait-time.Since(began)))
		}
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Reserve(ctx, request)
		if err != nil {
			return scenario.Result{}, err
		}
		return reserved(m)
	})
}

func reserved(m *coordinatorv1.ReserveResponse) (scenario.Result, error) {
	switch o := m.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Granted:
		g := o.Granted
		return scenario.Result{
			Outcome: "granted", Token: g.GetToken(), Fence: g.GetFence(), Attempt: g.GetAttempt(),
			Previous:       strings.ToLower(strings.TrimPrefix(g.GetPrevious().GetEnd().String(), "PREVIOUS_END_")),
			PreviousReason: g.GetPrevious().GetReason(),
			Repeated:       g.GetRepeated(), Remaining: g.GetRemaining().AsDuration(),
		}, nil
	case *coordinatorv1.ReserveResponse_Pending:
		return scenario.Result{Outcome: "pending", Attempt: o.Pending.GetAttempt()}, nil
	case *coordinatorv1.ReserveResponse_Committed:
		return scenario.Result{
			Outcome: "committed", Remaining: o.Committed.GetRemaining().AsDuration(), Response: given(o.Committed.GetResponse()),
		}, nil
	case *coordinatorv1.ReserveResponse_InDoubt:
		return scenario.Result{Outcome: "in_doubt"}, nil
	default:
		return scenario.Result{}, fmt.Errorf("served: an answer without an outcome: %v", m)
	}
}

func given(m *coordinatorv1.Response) *scenario.Response {
	if m == nil {
		return nil
	}
	r := &scenario.Response{Code: int(m.GetCode()), ContentType: m.GetContentType(), Body: string(m.GetBody())}
	for _, header := range m.GetHeaders() {
		r.Headers = append(r.Headers, [2]string{header.GetName(), header.GetValue()})
	}
	return r
}

// Commit implements [scenario.Target].
func (t *Target) Commit(ctx context.Context, call scenario.CommitCall) (scenario.Result, error) {
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Commit(ctx, &coordinatorv1.CommitRequest{
			Identity: identity(call.Identity), Token: call.Token, Response: response(&call.Response), Retention: duration(call.Retention),
		})
		return scenario.Result{Late: m.GetLate(), Repeated: m.GetRepeated(), Remaining: m.GetRemaining().AsDuration()}, err
	})
}

// Release implements [scenario.Target].
func (t *Target) Release(ctx context.Context, call scenario.ReleaseCall) (scenario.Result, error) {
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Release(ctx, &coordinatorv1.ReleaseRequest{
			Identity: identity(call.Identity), Token: call.Token, Reason: call.Reason,
		})
		return scenario.Result{Late: m.GetLate(), Repeated: m.GetRepeated()}, err
	})
}

// Extend implements [scenario.Target].
func (t *Target) Extend(ctx context.Context, call scenario.ExtendCall) (scenario.Result, error) {
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Extend(ctx, &coordinatorv1.ExtendRequest{
			Identity: identity(call.Identity), Token: call.Token, PendingTtl: duration(call.PendingTTL),
		})
		return scenario.Result{Remaining: m.GetRemaining().AsDuration()}, err
	})
}

// Resolve implements [scenario.Target].
func (t *Target) Resolve(ctx context.Context, call scenario.ResolveCall) (scenario.Result, error) {
	request := &coordinatorv1.ResolveRequest{
		Identity: identity(call.Identity), Revision: call.Revision, Note: call.Note,
		Settlement: &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}},
	}
	if call.Response != nil {
		request.Settlement = &coordinatorv1.ResolveRequest_Applied{Applied: response(call.Response)}
	}
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Resolve(ctx, request)
		return scenario.Result{Repeated: m.GetRepeated()}, err
	})
}

// Get implements [scenario.Target].
func (t *Target) Get(ctx context.Context, id admission.Identity) (scenario.Result, error) {
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		m, err := coordinatorv1.NewCoordinatorServiceClient(conn).Get(ctx, &coordinatorv1.GetRequest{Identity: identity(id)})
		if err != nil {
			return scenario.Result{}, err
		}
		record := m.GetRecord()
		return scenario.Result{
			State: strings.TrimPrefix(record.GetState().String(), "STATE_"), Revision: record.GetRevision(),
		}, nil
	})
}

// Purge implements [scenario.Target].
func (t *Target) Purge(ctx context.Context, call scenario.PurgeCall) (scenario.Result, error) {
	return t.call(ctx, 0, func(ctx context.Context, conn grpc.ClientConnInterface) (scenario.Result, error) {
		_, err := coordinatorv1.NewAdminServiceClient(conn).Purge(ctx, &coordinatorv1.PurgeRequest{
			Identity: identity(call.Identity), Force: call.Force,
			Target: &coordinatorv1.PurgeRequest_Revision{Revision: call.Revision},
		})
		return scenario.Result{}, err
	})
}

// Advance implements [scenario.Target].
func (t *Target) Advance(ctx context.Context, d time.Duration) error {
	t.Sleep(d)
	return ctx.Err()
}
