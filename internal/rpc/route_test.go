package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// lifecycle takes a key through every call, on any node.
func lifecycle(t *testing.T, n *node) {
	t.Helper()
	ctx := withTimeout(t)
	grant := granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k"), Fingerprint: []byte("f"), Owner: "me"})
	if grant.GetAttempt() != 1 || grant.GetPrevious().GetEnd() != coordinatorv1.PreviousEnd_PREVIOUS_END_NONE ||
		grant.GetRemaining().AsDuration() != admission.PendingTTLDefault || grant.GetRepeated() {
		t.Errorf("grant: %v", grant)
	}
	other, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k"), Fingerprint: []byte("f")})
	wantNone(t, err)
	if p := other.GetPending(); p.GetOwner() != "me" || p.GetAttempt() != 1 || p.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("pending: %v", other)
	}
	_, err = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantReason(t, err, reason.FingerprintMismatch)
	extended, err := n.coordinator.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: key("k"), Token: grant.GetToken(),
		PendingTtl: durationpb.New(time.Hour)})
	wantNone(t, err)
	if extended.GetRemaining().AsDuration() != time.Hour {
		t.Errorf("extended: %v", extended)
	}
	response := &coordinatorv1.Response{
		Code: 201, ContentType: "text/plain", Body: bytes.Repeat([]byte("all the same "), 1000),
		Headers: []*coordinatorv1.Header{{Name: "B", Value: "2"}, {Name: "a", Value: "1"}, {Name: "B", Value: "3"}},
	}
	committed, err := n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetToken(), Response: response})
	wantNone(t, err)
	if committed.GetRemaining().AsDuration() != admission.RetentionDefault || committed.GetLate() {
		t.Errorf("committed: %v", committed)
	}
	replay, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k"), Fingerprint: []byte("f")})
	wantNone(t, err)
	if got := replay.GetCommitted().GetResponse(); got.String() != response.String() {
		t.Errorf("replayed: %v", got)
	}
	_, err = n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetToken()})
	wantReason(t, err, reason.CommitConflict)
	_, err = n.coordinator.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: key("k"), Token: grant.GetToken()})
	wantReason(t, err, reason.AlreadyCommitted)

	got, err := n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: key("k")})
	wantNone(t, err)
	record := got.GetRecord()
	if record.GetState() != coordinatorv1.State_STATE_COMMITTED || record.GetFence() != grant.GetFence() ||
		record.GetIdentity().GetNamespace() != "default" || record.GetResponse().GetCode() != 201 ||
		len(record.GetResponse().GetBody()) != 0 || record.GetResponseBytes() != 13_000+10+6 {
		t.Errorf("record: %v", record)
	}
	got, err = n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
	wantNone(t, err)
	if got.GetRecord().GetResponse().String() != response.String() {
		t.Errorf("record with its body: %v", got)
	}
	_, err = n.coordinator.Resolve(ctx, &coordinatorv1.ResolveRequest{Identity: key("k"), Revision: record.GetRevision(),
		Settlement: &coordinatorv1.ResolveRequest_NotApplied{}})
	wantReason(t, err, reason.NotInDoubt)
	_, err = n.admin.Purge(ctx, &coordinatorv1.PurgeRequest{Identity: key("k"), Target: &coordinatorv1.PurgeRequest_Revision{Revision: 1}})
	wantReason(t, err, reason.RevisionMismatch)
	purged, err := n.admin.Purge(ctx, &coordinatorv1.PurgeRequest{Identity: key("k"),
		Target: &coordinatorv1.PurgeRequest_Revision{Revision: record.GetRevision()}})
	wantNone(t, err)
	if !purged.GetExisted() {
		t.Error("the purged record did not exist")
	}
	_, err = n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: key("k")})
	wantReason(t, err, reason.ReservationNotFound)

	grant = granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("other")})
	_, err = n.coordinator.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: key("other"), Token: grant.GetToken(), Reason: "no"})
	wantNone(t, err)
	again := granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("other")})
	if p := again.GetPrevious(); p.GetEnd() != coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED || p.GetReason() != "no" || p.GetFence() != grant.GetFence() {
		t.Errorf("previous: %v", p)
	}
}

func TestEveryCallWhereItIsLed(t *testing.T) { lifecycle(t, start(t, "n1", nil)) }

func TestEveryCallForwarded(t *testing.T) {
	n1, n2 := startTwo(t, nil)
	lifecycle(t, n1)
	n1.shards.All(func(r *rpctest.Replica) {
		if len(r.Seen()) > 0 {
			t.Error("the node that does not lead was asked")
		}
	})
	seen := 0
	n2.shards.All(func(r *rpctest.Replica) { seen += len(r.Seen()) })
	if seen == 0 {
		t.Error("nothing was forwarded")
	}
}

func lapsing(t *testing.T, onLapse coordinatorv1.OnLapse) (*node, uint64) {
	n := start(t, "n1", nil)
	granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k"), OnLapse: onLapse, Owner: "silent"})
	n.shards.All(func(r *rpctest.Replica) { r.Advance(time.Hour) })
	got, err := n.coordinator.Get(withTimeout(t), &coordinatorv1.GetRequest{Identity: key("k")})
	wantNone(t, err)
	return n, got.GetRecord().GetRevision()
}

func TestSettlements(t *testing.T) {
	n, revision := lapsing(t, coordinatorv1.OnLapse_ON_LAPSE_HOLD)
	ctx := withTimeout(t)
	doubt, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	if doubt.GetInDoubt().GetOwner() != "silent" || doubt.GetInDoubt().GetAge().AsDuration() != time.Hour {
		t.Errorf("in doubt: %v", doubt)
	}
	got, err := n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: key("k")})
	wantNone(t, err)
	if got.GetRecord().GetRemaining() != nil || got.GetRecord().GetOnLapse() != coordinatorv1.OnLapse_ON_LAPSE_HOLD {
		t.Errorf("record: %v", got)
	}
	request := &coordinatorv1.ResolveRequest{Identity: key("k"), Revision: revision,
		Settlement: &coordinatorv1.ResolveRequest_Applied{Applied: &coordinatorv1.Response{Code: 7}}}
	for _, repeated := range []bool{false, true} {
		answer, err := n.coordinator.Resolve(ctx, request)
		wantNone(t, err)
		if answer.GetRepeated() != repeated {
			t.Errorf("repeated: %v, want %v", answer.GetRepeated(), repeated)
		}
	}
	replay, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
	if replay.GetCommitted().GetResponse().GetCode() != 7 {
		t.Errorf("replayed: %v", replay)
	}
	// An oneof that is there without its message is the empty one.
	n, revision = lapsing(t, coordinatorv1.OnLapse_ON_LAPSE_UNSPECIFIED)
	_, err = n.coordinator.Resolve(ctx, &coordinatorv1.ResolveRequest{Identity: key("k"), Revision: revision,
		Settlement: &coordinatorv1.ResolveRequest_NotApplied{}, Note: "looked"})
	wantNone(t, err)
}

// Invariant 4, and the deadline and wait that go with a forwarded call.
func TestWhatIsForwarded(t *testing.T) {
	n1, n2 := startTwo(t, nil)
	number := admission.Identity{Namespace: "default", Key: "k"}.Shard(shardCount)

	var header metadata.MD
	answer, err := n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k"),
		Wait: durationpb.New(30 * time.Second)}, grpc.Header(&header))
	wantNone(t, err)
	if got := header.Get("coordinator-leader"); len(got) != 1 || got[0] != "n2:7420" {
		t.Errorf("coordinator-leader %v", got)
	}
	seen := n2.shards.At(number).Seen()
	if len(seen) != 1 {
		t.Fatalf("%d requests", len(seen))
	}
	reserve, ok := seen[0].Command.(admission.Reserve)
	if !ok || reserve.Attempt == (admission.AttemptID{}) {
		t.Errorf("the attempt was not drawn: %+v", seen[0].Command)
	}
	token, v := admission.ParseToken("token", answer.GetGranted().GetToken())
	if v != nil || token.Attempt != reserve.Attempt {
		t.Errorf("token %v", answer.GetGranted().GetToken())
	}
	if wait := seen[0].Wait; wait > 30*time.Second || wait < 20*time.Second {
		t.Errorf("wait %v", wait)
	}
	if wanted := seen[0].WantedFor; wanted > 10*time.Second || wanted < 5*time.Second {
		t.Errorf("wanted for %v", wanted)
	}
	// Without a deadline it is wanted for the default, and the wait on top.
	_, err = n1.coordinator.Reserve(context.WithoutCancel(t.Context()), &coordinatorv1.ReserveRequest{Identity: key("k"),
		Wait: durationpb.New(30 * time.Second)})
	wantNone(t, err)
	if wanted := n2.shards.At(number).Seen()[1].WantedFor; wanted > 90*time.Second || wanted < 80*time.Second {
		t.Errorf("wanted for %v", wanted)
	}
}

// Invariant 2.
func TestNeverTwoHops(t *testing.T) {
	n1, n2 := startTwo(t, nil)
	n2.shards.All(func(r *rpctest.Replica) { r.SetLeader(leaderNamed("n1")) }) // each takes the other for the leader
	var header metadata.MD
	_, err := n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")}, grpc.Header(&header))
	wantReason(t, err, reason.NoLeader)
	if got := header.Get("coordinator-leader"); len(got) != 1 || got[0] != "n1:7420" {
		t.Errorf("coordinator-leader %v: the other node knows better", got)
	}
	// A caller that sets the mark itself gives up the hop, and nothing else.
	n2.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n2")) })
	marked := metadata.AppendToOutgoingContext(withTimeout(t), rpc.ForwardedKey, "1")
	_, err = n1.coordinator.Reserve(marked, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantReason(t, err, reason.NoLeader)
	_, err = n2.coordinator.Reserve(marked, &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantNone(t, err)
}

// failing is a connection on which every call ends in the same way.
type failing struct {
	grpc.ClientConnInterface
	err error
}

func (f failing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return f.err }

// Invariant 3: what a forwarded call that failed is answered with.
func TestOutcomesOfForwarding(t *testing.T) {
	refused := func(context.Context, string) (net.Conn, error) { return nil, errors.New("refused") }
	for _, test := range []struct {
		name        string
		dial        func(t *testing.T) (grpc.ClientConnInterface, error)
		write, read reason.Reason
	}{
		{"no way there", func(*testing.T) (grpc.ClientConnInterface, error) { return nil, errors.New("x") }, reason.NoLeader, reason.NoLeader},
		{"no connection", func(t *testing.T) (grpc.ClientConnInterface, error) { return dial(t, refused), nil }, reason.NoLeader, reason.NoLeader},
		{"broken on the way", func(t *testing.T) (grpc.ClientConnInterface, error) { return dial(t, breaking(t)), nil },
			reason.OutcomeUnknown, reason.NoLeader},
		{"a reason", func(*testing.T) (grpc.ClientConnInterface, error) {
			return failing{err: reason.Error(reason.QuotaExceeded, "")}, nil
		}, reason.QuotaExceeded, reason.QuotaExceeded},
		{"a deadline", func(*testing.T) (grpc.ClientConnInterface, error) {
			return failing{err: status.Error(codes.DeadlineExceeded, "")}, nil
		}, reason.DeadlineExceeded, reason.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			n1, _ := startTwo(t, nil)
			n1.shards.Dial = func(shard.Leader) (grpc.ClientConnInterface, error) { return test.dial(t) }
			_, err := n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
			wantReason(t, err, test.write)
			_, err = n1.coordinator.Get(withTimeout(t), &coordinatorv1.GetRequest{Identity: key("k")})
			wantReason(t, err, test.read)
		})
	}
}

// breaking dials a server that goes away as soon as a call has come.
func breaking(t *testing.T) func(context.Context, string) (net.Conn, error) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	called, stopped := make(chan struct{}), make(chan struct{})
	var once sync.Once
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		once.Do(func() { close(called) })
		<-stream.Context().Done()
		return nil
	}))
	go func() { _ = server.Serve(listener) }()
	go func() {
		defer close(stopped)
		<-called
		server.Stop()
	}()
	t.Cleanup(func() {
		once.Do(func() { close(called) })
		<-stopped
	})
	return func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
}

// Invariant 6.
func TestADamagedResponseIsNotGivenBack(t *testing.T) {
	n := start(t, "n1", nil)
	grant := granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k")})
	_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetToken(),
		Response: &coordinatorv1.Response{Body: []byte("ok")}})
	wantNone(t, err)
	n.shards.All((*rpctest.Replica).Corrupt)
	_, err = n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
	wantReason(t, err, reason.OutcomeUnknown)
	_, err = n.coordinator.Get(withTimeout(t), &coordinatorv1.GetRequest{Identity: key("k")})
	wantReason(t, err, reason.OutcomeUnknown)
}

// Invariant 5: what the leader's settings say holds, not those of the first node.
func TestTheLeaderResolves(t *testing.T) {
	n1, n2 := startTwo(t, func(cfg *rpc.Config) {
		if cfg.Cluster.NodeID() == "n2" {
			cfg.Settings.PendingTTLDefault = time.Minute
			cfg.Settings.RetentionDefault = time.Hour
			cfg.Settings.NamespaceRecordsMax = 1
		}
	})
	n1.full = true
	if got := granted(t, n1, &coordinatorv1.ReserveRequest{Identity: key("k")}); got.GetRemaining().AsDuration() != time.Minute {
		t.Errorf("remaining %v", got.GetRemaining())
	}
	number := admission.Identity{Namespace: "default", Key: "k"}.Shard(shardCount)
	second := ""
	for i := range 100 {
		k := string(rune('a' + i))
		if k != "k" && (admission.Identity{Namespace: "default", Key: k}).Shard(shardCount) == number {
			second = k
			break
		}
	}
	_, err := n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key(second)})
	wantReason(t, err, reason.QuotaExceeded)
	if said := status.Convert(err).Message(); !strings.Contains(said, "limit is 1 ") {
		t.Errorf("the refusal does not name the limit: %q", said)
	}
	n2.full = true
	_, err = n1.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Namespace: "n", Key: "k"}})
	wantReason(t, err, reason.StorageFull)
}
