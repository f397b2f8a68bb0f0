package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
)

// counted is what was counted of calls, as "method outcome", without what is 0, and how
// many times were.
func counted(c *rpc.Calls) (calls map[string]uint64, timed map[string]uint64) {
	calls, timed = make(map[string]uint64), make(map[string]uint64)
	for _, m := range c.Counts() {
		for i, outcome := range rpc.Outcomes() {
			if n := m.Outcomes[i]; n > 0 {
				calls[m.Method+" "+outcome] = n
			}
		}
		if m.Took != nil && m.Took.Count() > 0 {
			timed[m.Method] = m.Took.Count()
		}
	}
	return calls, timed
}

func wantCounted(t *testing.T, c *rpc.Calls, want, wantTimed map[string]uint64) {
	t.Helper()
	calls, timed := counted(c)
	if fmt.Sprint(calls) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", calls, want)
	}
	if fmt.Sprint(timed) != fmt.Sprint(wantTimed) {
		t.Errorf("timed %v, want %v", timed, wantTimed)
	}
}

// Every call is counted once, under its method and what came of it.
func TestCallsAreCounted(t *testing.T) {
	calls := rpc.NewCalls()
	n := start(t, "n1", func(c *rpc.Config) { c.Calls = []*rpc.Calls{calls} })
	ctx := withTimeout(t)
	grant, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	_, err = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	// One that waits is not timed: it takes as long as it was told to.
	_, err = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k"), Wait: durationpb.New(time.Millisecond)})
	wantNone(t, err)
	_, err = n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: key("k"), Token: "!"})
	wantReason(t, err, reason.InvalidArgument)
	_, err = n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetGranted().GetToken(), Response: &coordinatorv1.Response{Code: 201}})
	wantNone(t, err)
	_, err = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	_, err = n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: key("none")})
	wantReason(t, err, reason.ReservationNotFound)
	n.shards.All(func(r *rpctest.Replica) { r.Fail(actor.ErrMailboxFull) })
	_, err = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantReason(t, err, reason.Overloaded)
	_, err = n.admin.ClusterStatus(ctx, &coordinatorv1.ClusterStatusRequest{})
	wantNone(t, err)

	wantCounted(t, calls, map[string]uint64{
		"Reserve granted": 1, "Reserve pending": 2, "Reserve committed": 1, "Reserve OVERLOADED": 1,
		"Commit INVALID_ARGUMENT": 1, "Commit done": 1, "Get RESERVATION_NOT_FOUND": 1, "ClusterStatus done": 1,
	}, map[string]uint64{"Reserve": 4, "Commit": 2, "Get": 1, "ClusterStatus": 1})
}

// Calls of a session are counted as those that are made by themselves are.
func TestCallsOfSessionsAreCounted(t *testing.T) {
	calls := rpc.NewCalls()
	n := start(t, "n1", func(c *rpc.Config) { c.Calls = []*rpc.Calls{calls} })
	s := openSession(t, n.coordinator)
	grant := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})).GetReserve().GetGranted()
	if open := calls.Sessions(); open != 1 {
		t.Errorf("%d sessions are open", open)
	}
	s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k"), Wait: durationpb.New(time.Millisecond)}))
	s.do(commitCall(&coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetToken()}))
	s.do(&coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Extend{Extend: &coordinatorv1.ExtendRequest{Identity: key("k"), Token: grant.GetToken()}}})
	s.do(&coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: &coordinatorv1.ReleaseRequest{Identity: key("none"), Token: grant.GetToken()}}})
	s.do(&coordinatorv1.SessionCall{})
	wantNone(t, s.stream.CloseSend())
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if open := calls.Sessions(); open != 0 {
		t.Errorf("%d sessions are open", open)
	}
	wantCounted(t, calls, map[string]uint64{
		"Reserve granted": 1, "Reserve pending": 1, "Commit done": 1, "Extend ALREADY_COMMITTED": 1,
		"Release RESERVATION_NOT_FOUND": 1, "Session INVALID_ARGUMENT": 1, "Session done": 1,
	}, map[string]uint64{"Reserve": 1, "Commit": 1, "Extend": 1, "Release": 1})
}

// Each server has counts of its own, and a forwarded call is counted by both nodes.
func TestForwardedCallsAreCountedTwice(t *testing.T) {
	var both []*rpc.Calls
	n1, _ := startTwo(t, func(c *rpc.Config) {
		both = append(both, rpc.NewCalls())
		c.Calls = both[len(both)-1:]
	})
	_, err := n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	for _, calls := range both {
		wantCounted(t, calls, map[string]uint64{"Reserve granted": 1}, map[string]uint64{"Reserve": 1})
	}
}

// Every reason of the table has a place, and every method of the services.
func TestOutcomesAndMethodsAreComplete(t *testing.T) {
	outcomes := rpc.Outcomes()
	for _, row := range reason.Table() {
		if !slices.Contains(outcomes, string(row.Reason)) {
			t.Errorf("%s has no place", row.Reason)
		}
	}
	var methods []string
	for _, m := range rpc.NewCalls().Counts() {
		methods = append(methods, m.Method)
		if len(m.Outcomes) != len(outcomes) {
			t.Errorf("%s has %d outcomes of %d", m.Method, len(m.Outcomes), len(outcomes))
		}
	}
	for _, service := range []grpc.ServiceDesc{coordinatorv1.CoordinatorService_ServiceDesc, coordinatorv1.AdminService_ServiceDesc} {
		for _, m := range service.Methods {
			if !slices.Contains(methods, m.MethodName) {
				t.Errorf("%s is not counted", m.MethodName)
			}
		}
		for _, m := range service.Streams {
			if !slices.Contains(methods, m.StreamName) {
				t.Errorf("%s is not counted", m.StreamName)
			}
		}
	}
}

// BenchmarkCall is a whole call through gRPC in memory, to shards in memory.
func BenchmarkCall(b *testing.B) {
	n := start(b, "n1", nil)
	again := &coordinatorv1.ReserveRequest{Identity: key("k"), AttemptId: attempt(1)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.coordinator.Reserve(context.Background(), again); err != nil {
			b.Fatal(err)
		}
	}
}
