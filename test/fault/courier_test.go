package fault

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/history"
)

func kind() *unkindness { return &unkindness{} }

// TestCourierWritesDeliveriesDown: what was answered is an event, what may have been
// carried out one without an answer, what certainly was not is none (invariant 2).
func TestCourierWritesDeliveriesDown(t *testing.T) {
	id := &coordinatorv1.Identity{Namespace: "default", Key: "k"}
	reserve := &coordinatorv1.ReserveRequest{Identity: id, AttemptId: make([]byte, 16), PendingTtl: durationpb.New(time.Minute)}
	reserve.AttemptId[0] = 7
	granted := &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: "token", Fence: 3, Attempt: 1, Remaining: durationpb.New(time.Minute),
	}}}
	commit := &coordinatorv1.CommitRequest{Identity: id, Token: "token", Response: &coordinatorv1.Response{Code: 200}}
	for _, c := range []struct {
		name           string
		request, reply any
		err            error
		want           *history.Event // of which the named fields are compared
		wrong          bool
	}{
		{name: "granted", request: reserve, reply: granted, want: &history.Event{Kind: history.Granted, Attempt: history.Attempt{7}, Fence: 3}},
		{name: "committed", request: commit, reply: &coordinatorv1.CommitResponse{}, want: &history.Event{Kind: history.Committed, Attempt: history.Attempt{7}, Fence: 3}},
		{name: "committed by nobody known", request: &coordinatorv1.CommitRequest{Identity: id, Token: "?"}, reply: &coordinatorv1.CommitResponse{}, want: &history.Event{Kind: history.Committed}},
		{name: "refused", request: commit, err: reason.Error(reason.ReservationLost, ""), want: &history.Event{Kind: history.Refused, Call: history.Committed, Attempt: history.Attempt{7}, Fence: 3, Reason: "RESERVATION_LOST"}},
		{name: "ended", request: reserve, err: reason.Error(reason.AttemptEnded, ""), want: &history.Event{Kind: history.Ended, Attempt: history.Attempt{7}}},
		{name: "outcome unknown", request: reserve, err: reason.Error(reason.OutcomeUnknown, ""), want: &history.Event{Kind: history.Granted, Attempt: history.Attempt{7}, Unknown: true}},
		{name: "no answer", request: reserve, err: status.Error(codes.DeadlineExceeded, ""), want: &history.Event{Kind: history.Granted, Attempt: history.Attempt{7}, Unknown: true}},
		{name: "a connection that broke", request: reserve, err: status.Error(codes.Unavailable, "EOF"), want: &history.Event{Kind: history.Granted, Attempt: history.Attempt{7}, Unknown: true}},
		{name: "no leader", request: reserve, err: reason.Error(reason.NoLeader, "")},
		{name: "nobody there", request: reserve, err: status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: connection refused"`)},
		{name: "missing", request: &coordinatorv1.GetRequest{Identity: id}, err: reason.Error(reason.ReservationNotFound, ""), want: &history.Event{Kind: history.Missing}},
		{name: "a read without an answer", request: &coordinatorv1.GetRequest{Identity: id}, err: reason.Error(reason.OutcomeUnknown, "")},
		{name: "a failure of the node", request: reserve, err: status.Error(codes.Internal, "?"), wrong: true},
		{name: "what the load never does", request: reserve, err: reason.Error(reason.InvalidArgument, ""), wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, seen := history.NewRecorder(), newSeen(1)
			courier := newCourier(log, 1, seen, nil)
			courier.granted("token", owner{history.Attempt{7}, 3})
			courier.record(c.request, c.reply, log.Now(), c.err)
			events := log.Events()
			if wrong := len(seen.impossible()) > 0; wrong != c.wrong {
				t.Errorf("what nobody may see: %v", seen.impossible())
			}
			if c.want == nil {
				if len(events) != 0 {
					t.Fatalf("it is an event: %v", events)
				}
				return
			}
			if len(events) != 1 {
				t.Fatalf("%d events", len(events))
			}
			e := events[0]
			got := history.Event{Kind: e.Kind, Call: e.Call, Attempt: e.Attempt, Fence: e.Fence, Unknown: e.Unknown, Reason: e.Reason}
			if got != *c.want {
				t.Errorf("it is %+v, not %+v", got, *c.want)
			}
			if e.Key != "k" || e.Tries != 1 || e.LastSent != e.Sent {
				t.Errorf("it is %+v", e)
			}
			courier.close()
		})
	}
}

// TestCourierLosesAnswers: the caller is not told, the history is.
func TestCourierLosesAnswers(t *testing.T) {
	log := history.NewRecorder()
	courier := newCourier(log, 1, newSeen(1), nil)
	courier.unkind.Store(&unkindness{lost: 1000})
	invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	request := &coordinatorv1.ReleaseRequest{Identity: &coordinatorv1.Identity{Key: "k"}, Token: "token"}
	err := courier.intercept(t.Context(), "/m", request, &coordinatorv1.ReleaseResponse{}, nil, invoke)
	if ruling, _ := classify(err); ruling != perhaps {
		t.Errorf("the caller is told %v", err)
	}
	if events := log.Events(); len(events) != 1 || events[0].Unknown || events[0].Kind != history.Released {
		t.Errorf("the history has %v", events)
	}
	courier.unkind.Store(kind())
	if err := courier.intercept(t.Context(), "/m", request, &coordinatorv1.ReleaseResponse{}, nil, invoke); err != nil {
		t.Error(err)
	}
	courier.close()
}

// TestSeenMeasuresQuiet: how long a shard gave no answer counts to the present, and what
// was before does not.
func TestSeenMeasuresQuiet(t *testing.T) {
	s := newSeen(2)
	s.saw(0, perhaps, "OUTCOME_UNKNOWN")
	s.restart()
	began := time.Now()
	s.saw(0, answered, "")
	if s.serves(began) {
		t.Error("a shard serves that nobody has heard of")
	}
	s.saw(1, answered, "")
	if !s.serves(began) {
		t.Error("both shards have answered, and do not serve")
	}
	s.saw(1, never, "NO_LEADER")
	for time.Since(began) < 20*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	sight := s.sofar()
	if sight.refusal < 15*time.Millisecond || sight.refusal > time.Since(began) {
		t.Errorf("the longest refusal is %v after %v", sight.refusal, time.Since(began))
	}
	if got := sight.String(); got != "NO_LEADER 1" {
		t.Errorf("users saw %s", got)
	}
}

// TestDigestsDiffer: two states at one index are found out.
func TestDigestsDiffer(t *testing.T) {
	d := make(digests)
	for _, step := range []struct {
		node          string
		index, digest uint64
		all, differ   bool
	}{
		{"n1", 10, 1, false, false},
		{"n2", 11, 2, false, false},
		{"n2", 12, 3, false, false},
		{"n1", 12, 3, false, false},
		{"n3", 11, 2, false, false},
		{"n3", 12, 3, true, false},
		{"n3", 10, 4, false, true},
	} {
		all, err := d.add(0, step.node, step.index, step.digest, 3)
		if all != step.all || (err != nil) != step.differ {
			t.Errorf("%+v: %v, %v", step, all, err)
		}
	}
}
