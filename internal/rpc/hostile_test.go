package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
)

const wellFormed = "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA"

// hostile is one request that must be refused, and the field that must be named.
type hostile struct {
	name  string
	field string
	want  reason.Reason // "" is INVALID_ARGUMENT
	call  func(context.Context, *node) error
}

func reserve(change func(*coordinatorv1.ReserveRequest)) func(context.Context, *node) error {
	return func(ctx context.Context, n *node) error {
		request := &coordinatorv1.ReserveRequest{Identity: key("k")}
		change(request)
		_, err := n.coordinator.Reserve(ctx, request)
		return err
	}
}

func commit(change func(*coordinatorv1.CommitRequest)) func(context.Context, *node) error {
	return func(ctx context.Context, n *node) error {
		request := &coordinatorv1.CommitRequest{Identity: key("k"), Token: wellFormed}
		change(request)
		_, err := n.coordinator.Commit(ctx, request)
		return err
	}
}

func hostileIdentities() (all []hostile) {
	for _, test := range []struct {
		name, field string
		id          *coordinatorv1.Identity
	}{
		{"no identity", "identity", nil},
		{"no key", "identity.key", &coordinatorv1.Identity{}},
		{"a long key", "identity.key", key(strings.Repeat("k", 256))},
		{"a key that is no text", "identity.key", key("\xff")},
		{"a key with half a rune", "identity.key", key("k\xc3")},
		{"a long namespace", "identity.namespace", &coordinatorv1.Identity{Key: "k", Namespace: strings.Repeat("n", 65)}},
		{"a namespace that is no text", "identity.namespace", &coordinatorv1.Identity{Key: "k", Namespace: "\xed\xa0\x80"}},
		{"a long principal", "identity.principal", &coordinatorv1.Identity{Key: "k", Principal: strings.Repeat("p", 129)}},
		{"a principal that is no text", "identity.principal", &coordinatorv1.Identity{Key: "k", Principal: "\x80"}},
		{"a long operation", "identity.operation", &coordinatorv1.Identity{Key: "k", Operation: strings.Repeat("o", 256)}},
		{"an operation that is no text", "identity.operation", &coordinatorv1.Identity{Key: "k", Operation: "\xfe"}},
		{"an enormous key", "identity.key", key(strings.Repeat("k", 1<<20))},
	} {
		for name, call := range map[string]func(context.Context, *node) error{
			"Reserve": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: test.id})
				return err
			},
			"Commit": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: test.id, Token: wellFormed})
				return err
			},
			"Release": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: test.id, Token: wellFormed})
				return err
			},
			"Extend": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: test.id, Token: wellFormed})
				return err
			},
			"Resolve": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Resolve(ctx, &coordinatorv1.ResolveRequest{Identity: test.id, Revision: 1,
					Settlement: &coordinatorv1.ResolveRequest_NotApplied{}})
				return err
			},
			"Get": func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Get(ctx, &coordinatorv1.GetRequest{Identity: test.id})
				return err
			},
			"Purge": func(ctx context.Context, n *node) error {
				_, err := n.admin.Purge(ctx, &coordinatorv1.PurgeRequest{Identity: test.id,
					Target: &coordinatorv1.PurgeRequest_Revision{Revision: 1}})
				return err
			},
		} {
			all = append(all, hostile{name: name + " with " + test.name, field: test.field, call: call})
		}
	}
	return all
}

func hostileDurations() (all []hostile) {
	for name, d := range map[string]*durationpb.Duration{
		"zero":                 {},
		"negative":             {Seconds: -1},
		"slightly negative":    {Nanos: -1},
		"too small":            {Nanos: 1},
		"too large":            {Seconds: 31 * 24 * 3600},
		"nanos out of range":   {Seconds: 300, Nanos: 1_000_000_000},
		"nanos at their most":  {Seconds: 300, Nanos: math.MaxInt32},
		"nanos at their least": {Seconds: 300, Nanos: math.MinInt32},
		"of two signs":         {Seconds: 300, Nanos: -1},
		"of two other signs":   {Seconds: -300, Nanos: 1},
		"an overflow":          {Seconds: math.MaxInt64},
		"an underflow":         {Seconds: math.MinInt64, Nanos: -999_999_999},
		"292 years":            {Seconds: math.MaxInt64 / 1_000_000_000},
		"293 years":            {Seconds: math.MaxInt64/1_000_000_000 + 1},
		"10,000 years":         {Seconds: 315_576_000_000},
	} {
		all = append(all,
			hostile{"Reserve.pending_ttl is " + name, "pending_ttl", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.PendingTtl = d })},
			hostile{"Reserve.retention is " + name, "retention", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Retention = d })},
			hostile{"Commit.retention is " + name, "retention", "", commit(func(r *coordinatorv1.CommitRequest) { r.Retention = d })},
			hostile{"Extend.pending_ttl is " + name, "pending_ttl", "", func(ctx context.Context, n *node) error {
				_, err := n.coordinator.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: key("k"), Token: wellFormed, PendingTtl: d})
				return err
			}})
		if d.GetSeconds() == 0 && d.GetNanos() >= 0 {
			continue // nothing, and very little, are times to wait
		}
		all = append(all, hostile{"Reserve.wait is " + name, "wait", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Wait = d })})
	}
	return all
}

func hostileOthers() []hostile {
	header := func(name, value string) []*coordinatorv1.Header {
		return []*coordinatorv1.Header{{Name: "first", Value: "1"}, {Name: name, Value: value}}
	}
	response := func(r *coordinatorv1.Response) func(context.Context, *node) error {
		return commit(func(c *coordinatorv1.CommitRequest) { c.Response = r })
	}
	resolve := func(r *coordinatorv1.ResolveRequest) func(context.Context, *node) error {
		return func(ctx context.Context, n *node) error {
			r.Identity = key("k")
			_, err := n.coordinator.Resolve(ctx, r)
			return err
		}
	}
	purge := func(r *coordinatorv1.PurgeRequest) func(context.Context, *node) error {
		return func(ctx context.Context, n *node) error {
			r.Identity = key("k")
			_, err := n.admin.Purge(ctx, r)
			return err
		}
	}
	list := func(r *coordinatorv1.ListRecordsRequest) func(context.Context, *node) error {
		return func(ctx context.Context, n *node) error {
			_, err := n.admin.ListRecords(ctx, r)
			return err
		}
	}
	many := make([]*coordinatorv1.Header, 129)
	for i := range many {
		many[i] = &coordinatorv1.Header{Name: "n"}
	}
	operation, shard := "\xff", uint32(shardCount)
	return []hostile{
		{"a short attempt id", "attempt_id", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.AttemptId = make([]byte, 15) })},
		{"an attempt id that was not drawn", "attempt_id", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.AttemptId = make([]byte, 16) })},
		{"a long attempt id", "attempt_id", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.AttemptId = make([]byte, 17) })},
		{"a long fingerprint", "fingerprint", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Fingerprint = make([]byte, 65) })},
		{"a long owner", "owner", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Owner = strings.Repeat("o", 129) })},
		{"an owner that is no text", "owner", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Owner = "\xff" })},
		{"an unknown on_lapse", "on_lapse", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.OnLapse = 3 })},
		{"a negative on_lapse", "on_lapse", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.OnLapse = -1 })},
		{"on_lapse modulo 256", "on_lapse", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.OnLapse = 258 })},
		{"a long wait", "wait", "", reserve(func(r *coordinatorv1.ReserveRequest) { r.Wait = durationpb.New(time.Minute + 1) })},

		{"no token", "token", "", commit(func(r *coordinatorv1.CommitRequest) { r.Token = "" })},
		{"a malformed token", "token", "", commit(func(r *coordinatorv1.CommitRequest) { r.Token = strings.Repeat("!", len(wellFormed)) })},
		{"a token of another version", "token", "", commit(func(r *coordinatorv1.CommitRequest) { r.Token = "B" + wellFormed[1:] })},
		{"a token that is no text", "token", "", commit(func(r *coordinatorv1.CommitRequest) { r.Token = strings.Repeat("\xff", len(wellFormed)) })},
		{"an enormous token", "token", "", commit(func(r *coordinatorv1.CommitRequest) { r.Token = strings.Repeat("A", 1<<20) })},

		{"a code of four digits", "response.code", "", response(&coordinatorv1.Response{Code: 1000})},
		{"an enormous code", "response.code", "", response(&coordinatorv1.Response{Code: math.MaxUint32})},
		{"many headers", "response.headers", "", response(&coordinatorv1.Response{Headers: many})},
		{"a header without a name", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("", "x")})},
		{"a header name that is no text", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("\xff", "x")})},
		{"a header value that is no text", "response.headers[1].value", "", response(&coordinatorv1.Response{Headers: header("x", "\xff")})},
		{"a header value that ends its line", "response.headers[1].value", "", response(&coordinatorv1.Response{Headers: header("x", "1\r\nSet-Cookie: a=b")})},
		{"a header value with a NUL", "response.headers[1].value", "", response(&coordinatorv1.Response{Headers: header("x", "\x00")})},
		{"a header name that ends its line", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("x\nSet-Cookie", "a=b")})},
		{"a header name that is none", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("x y", "")})},
		{"a header name that is a whole header", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("x: y", "")})},
		{"a trailer without a name", "response.headers[1].name", "", response(&coordinatorv1.Response{Headers: header("Trailer:", "")})},
		{"a content type that ends its line", "response.content_type", "", response(&coordinatorv1.Response{ContentType: "text/plain\nSet-Cookie: a=b"})},
		{"a header of a settlement that ends its line", "applied.headers[0].value", "", resolve(&coordinatorv1.ResolveRequest{Revision: 1,
			Settlement: &coordinatorv1.ResolveRequest_Applied{Applied: &coordinatorv1.Response{Headers: []*coordinatorv1.Header{{Name: "x", Value: "\r"}}}}})},
		{"a content type that is no text", "response.content_type", "", response(&coordinatorv1.Response{ContentType: "\xff"})},
		{"a large body", "response", reason.ResponseTooLarge, response(&coordinatorv1.Response{Body: make([]byte, 1<<20+1)})},
		{"a body and headers", "response", reason.ResponseTooLarge, response(&coordinatorv1.Response{
			Body: make([]byte, 1<<20), Headers: []*coordinatorv1.Header{{Name: "x"}}})},
		{"a body and a content type", "response", reason.ResponseTooLarge, response(&coordinatorv1.Response{
			Body: make([]byte, 1<<20), ContentType: "x"})},
		{"a large header", "response", reason.ResponseTooLarge, response(&coordinatorv1.Response{Headers: header("x", strings.Repeat("x", 1<<20))})},

		{"a long release reason", "reason", "", func(ctx context.Context, n *node) error {
			_, err := n.coordinator.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: key("k"), Token: wellFormed, Reason: strings.Repeat("r", 1025)})
			return err
		}},
		{"a release reason that is no text", "reason", "", func(ctx context.Context, n *node) error {
			_, err := n.coordinator.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: key("k"), Token: wellFormed, Reason: "\xff"})
			return err
		}},

		{"a settlement without a revision", "revision", "", resolve(&coordinatorv1.ResolveRequest{Settlement: &coordinatorv1.ResolveRequest_NotApplied{}})},
		{"no settlement", "settlement", "", resolve(&coordinatorv1.ResolveRequest{Revision: 1})},
		{"a long note", "note", "", resolve(&coordinatorv1.ResolveRequest{Revision: 1, Note: strings.Repeat("n", 1025),
			Settlement: &coordinatorv1.ResolveRequest_NotApplied{}})},
		{"a note that is no text", "note", "", resolve(&coordinatorv1.ResolveRequest{Revision: 1, Note: "\xff",
			Settlement: &coordinatorv1.ResolveRequest_NotApplied{}})},
		{"a large settlement", "applied", reason.ResponseTooLarge, resolve(&coordinatorv1.ResolveRequest{Revision: 1,
			Settlement: &coordinatorv1.ResolveRequest_Applied{Applied: &coordinatorv1.Response{Body: make([]byte, 1<<20+1)}}})},

		{"a purge of nothing in particular", "revision", "", purge(&coordinatorv1.PurgeRequest{})},
		{"a purge of revision 0", "revision", "", purge(&coordinatorv1.PurgeRequest{Target: &coordinatorv1.PurgeRequest_Revision{}})},
		{"a purge of fence 0", "fence", "", purge(&coordinatorv1.PurgeRequest{Target: &coordinatorv1.PurgeRequest_Fence{}, Force: true})},
		{"a purge by fence without force", "fence", "", purge(&coordinatorv1.PurgeRequest{Target: &coordinatorv1.PurgeRequest_Fence{Fence: 1}})},

		{"a listing of a long namespace", "namespace", "", list(&coordinatorv1.ListRecordsRequest{Namespace: strings.Repeat("n", 65)})},
		{"a listing of no text", "operation", "", list(&coordinatorv1.ListRecordsRequest{Operation: &operation})},
		{"a listing of an unknown state", "state", "", list(&coordinatorv1.ListRecordsRequest{State: 6})},
		{"a listing of a negative state", "state", "", list(&coordinatorv1.ListRecordsRequest{State: -1})},
		{"a large page", "page_size", "", list(&coordinatorv1.ListRecordsRequest{PageSize: 1001})},
		{"an enormous page", "page_size", "", list(&coordinatorv1.ListRecordsRequest{PageSize: math.MaxUint32})},
		{"a page token that is none", "page_token", "", list(&coordinatorv1.ListRecordsRequest{PageToken: "next"})},
		{"a page token that is no text", "page_token", "", list(&coordinatorv1.ListRecordsRequest{PageToken: strings.Repeat("\xff", 34)})},

		{"no such shard", "shard", "", func(ctx context.Context, n *node) error {
			_, err := n.admin.GetShard(ctx, &coordinatorv1.GetShardRequest{Shard: shard})
			return err
		}},
		{"a handover of no such shard", "shard", "", func(ctx context.Context, n *node) error {
			_, err := n.admin.TransferLeadership(ctx, &coordinatorv1.TransferLeadershipRequest{Shard: &shard})
			return err
		}},
		{"a handover to nobody", "to_node", "", func(ctx context.Context, n *node) error {
			_, err := n.admin.TransferLeadership(ctx, &coordinatorv1.TransferLeadershipRequest{ToNode: "\xff"})
			return err
		}},
	}
}

// Invariant 1: whatever a caller sends, it is told what is wrong with it.
func TestHostileRequestsAreRefusedByName(t *testing.T) {
	n := start(t, "n1", nil)
	for _, test := range append(append(hostileIdentities(), hostileDurations()...), hostileOthers()...) {
		t.Run(test.name, func(t *testing.T) {
			want := test.want
			if want == "" {
				want = reason.InvalidArgument
			}
			failure := wantReason(t, test.call(withTimeout(t), n), want)
			if len(failure.Violations) != 1 || failure.Violations[0].Field != test.field {
				t.Errorf("violations %v, want one of %s", failure.Violations, test.field)
			}
			if len(failure.Message) > 300 {
				t.Errorf("the message is %d bytes long", len(failure.Message))
			}
		})
	}
	n.shards.All(func(r *rpctest.Replica) {
		if seen := r.Seen(); len(seen) > 0 {
			t.Errorf("a refused call went on to the shard: %v", seen[0])
		}
	})
}

// What is at a limit passes.
func TestLimitsThemselvesAreAllowed(t *testing.T) {
	n := start(t, "n1", nil)
	id := &coordinatorv1.Identity{
		Namespace: strings.Repeat("n", 64), Principal: strings.Repeat("p", 128),
		Operation: strings.Repeat("o", 255), Key: strings.Repeat("k", 255),
	}
	grant := granted(t, n, &coordinatorv1.ReserveRequest{
		Identity: id, AttemptId: attempt(1), Fingerprint: make([]byte, 64), Owner: strings.Repeat("o", 128),
		PendingTtl: durationpb.New(24 * time.Hour), Retention: durationpb.New(30 * 24 * time.Hour), Wait: durationpb.New(time.Minute),
	})
	headers := make([]*coordinatorv1.Header, 128)
	for i := range headers {
		headers[i] = &coordinatorv1.Header{Name: fmt.Sprintf("h%03d", i), Value: "\t\u00e9"}
	}
	_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{Identity: id, Token: grant.GetToken(),
		Response: &coordinatorv1.Response{Code: 999, Headers: headers, Body: make([]byte, 1<<20-128*7)}})
	wantNone(t, err)
	granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("small"), PendingTtl: durationpb.New(100 * time.Millisecond),
		Retention: durationpb.New(time.Second), Wait: &durationpb.Duration{}})
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) {
	return v.([]byte), nil
}
func (raw) Unmarshal([]byte, any) error { return nil }

// Invariant 1, for what is no message at all.
func TestBytesThatAreNoMessage(t *testing.T) {
	n := start(t, "n1", nil)
	for _, service := range []grpc.ServiceDesc{coordinatorv1.CoordinatorService_ServiceDesc, coordinatorv1.AdminService_ServiceDesc} {
		for _, method := range service.Methods {
			for _, content := range [][]byte{{0xff}, {0x0a, 0x7f}, []byte(strings.Repeat("\x0b", 100_000)), {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}} {
				var answer []byte
				err := n.connection.Invoke(withTimeout(t), "/"+service.ServiceName+"/"+method.MethodName, content, &answer,
					grpc.ForceCodec(raw{}))
				wantReason(t, err, reason.InvalidArgument)
			}
		}
	}
	// What gRPC refuses by itself has its own codes.
	_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{Token: strings.Repeat("x", 4<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message that is too large: %v", err)
	}
	err = n.connection.Invoke(withTimeout(t), "/coordinator.v1.CoordinatorService/Nothing", &coordinatorv1.GetRequest{}, &coordinatorv1.GetResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
}

// Invariant 1, for what is too large to be decoded: the caller is not to back off and
// try again, and hears that it may commit without the body where that is what is large.
func TestMessagesThatAreTooLarge(t *testing.T) {
	n := start(t, "n1", nil)
	large := func(bytes int) *coordinatorv1.Response { return &coordinatorv1.Response{Body: make([]byte, bytes)} }
	for _, test := range []struct {
		name, field string
		want        reason.Reason
		call        func(context.Context, *node) error
	}{
		{"a body", "response", reason.ResponseTooLarge, commit(func(r *coordinatorv1.CommitRequest) { r.Response = large(4<<20 - 1000) })},
		{"a body just over", "response", reason.ResponseTooLarge, commit(func(r *coordinatorv1.CommitRequest) { r.Response = large(2 << 20) })},
		{"a token", "request", reason.InvalidArgument, commit(func(r *coordinatorv1.CommitRequest) { r.Token = strings.Repeat("x", 3<<20) })},
		{"a token and a body", "request", reason.InvalidArgument, commit(func(r *coordinatorv1.CommitRequest) {
			r.Token, r.Response = strings.Repeat("x", 2<<20), large(1<<20)
		})},
		{"an owner", "request", reason.InvalidArgument, reserve(func(r *coordinatorv1.ReserveRequest) { r.Owner = strings.Repeat("o", 3<<20) })},
		{"a settlement", "applied", reason.ResponseTooLarge, func(ctx context.Context, n *node) error {
			_, err := n.coordinator.Resolve(ctx, &coordinatorv1.ResolveRequest{
				Identity: key("k"), Revision: 1, Settlement: &coordinatorv1.ResolveRequest_Applied{Applied: large(3 << 20)}})
			return err
		}},
	} {
		failure := wantReason(t, test.call(withTimeout(t), n), test.want)
		if len(failure.Violations) != 1 || failure.Violations[0].Field != test.field || failure.Applied != reason.No {
			t.Errorf("%s: %+v", test.name, failure)
		}
	}
	var answer []byte
	err := n.connection.Invoke(withTimeout(t), coordinatorv1.CoordinatorService_Commit_FullMethodName,
		bytes.Repeat([]byte{0xff}, 3<<20), &answer, grpc.ForceCodec(raw{}))
	wantReason(t, err, reason.InvalidArgument)
	n.shards.All(func(r *rpctest.Replica) {
		if seen := r.Seen(); len(seen) > 0 {
			t.Errorf("a refused call went on to the shard: %v", seen[0])
		}
	})
}

// Everything that a replica may say has a reason; what it must not say is doubtful.
func TestFaultsOfAReplica(t *testing.T) {
	n := start(t, "n1", nil)
	for _, test := range []struct {
		fault error
		want  reason.Reason
	}{
		{actor.ErrNoLeader, reason.NoLeader},
		{actor.ErrShuttingDown, reason.ShuttingDown},
		{actor.ErrOverloaded, reason.Overloaded},
		{actor.ErrMailboxFull, reason.Overloaded},
		{actor.ErrWaitersFull, reason.Overloaded},
		{actor.ErrKeyWaitersFull, reason.Overloaded},
		{actor.ErrStoreBehind, reason.Overloaded},
		{actor.ErrLogBehind, reason.Overloaded},
		{actor.ErrNoRoom, reason.Overloaded},
		{actor.ErrOutcomeUnknown, reason.OutcomeUnknown},
		{fmt.Errorf("%w: %w", actor.ErrNoLeader, actor.ErrOutcomeUnknown), reason.OutcomeUnknown},
		{fmt.Errorf("%w: %w", actor.ErrNoLeader, context.DeadlineExceeded), reason.DeadlineExceeded},
		{context.Canceled, reason.Cancelled},
		{fmt.Errorf("something new"), reason.OutcomeUnknown},
	} {
		n.shards.All(func(r *rpctest.Replica) { r.Fail(test.fault) })
		_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
		failure := wantReason(t, err, test.want)
		if wait := test.want.Row().RetryAfter; failure.RetryAfter != wait {
			t.Errorf("%s: retry after %v, want %v", test.want, failure.RetryAfter, wait)
		}
		if general := reason.Overloaded.Row().Meaning; errors.Is(test.fault, actor.ErrOverloaded) &&
			(failure.Message == general) != (test.fault == actor.ErrOverloaded) { //nolint:errorlint // those that wrap it say what is full
			t.Errorf("%v: %q does not say what is full", test.fault, failure.Message)
		}
		_, err = n.coordinator.Get(withTimeout(t), &coordinatorv1.GetRequest{Identity: key("k")})
		wantReason(t, err, test.want)
	}
}

// What is full is told with how much it takes, and a response that nobody stores with how much
// somebody would.
func TestLimitsAreNamed(t *testing.T) {
	n := start(t, "n1", nil)
	for _, test := range []struct {
		fault error
		want  string
	}{
		{&actor.FullError{What: actor.ErrKeyWaitersFull, Most: 256}, "as many calls wait for this key to be settled as may: 256"},
		{&actor.FullError{What: actor.ErrWaitersFull, Most: 1024}, "as many calls wait in the shard for a key to be settled as may: 1024"},
		{&actor.FullError{What: actor.ErrMailboxFull, Most: 7, Bytes: 70}, "as many calls wait to be decided by the shard as may: 7, or 70 bytes of them"},
		{actor.ErrNoRoom, "clients have yet to take as many bytes of answers as this node holds: 67108864, a half of that for one connection"},
	} {
		n.shards.All(func(r *rpctest.Replica) { r.Fail(test.fault) })
		_, err := n.coordinator.Reserve(withTimeout(t), &coordinatorv1.ReserveRequest{Identity: key("k")})
		if failure := wantReason(t, err, reason.Overloaded); failure.Message != test.want {
			t.Errorf("%q, want %q", failure.Message, test.want)
		}
	}
	_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{
		Identity: key("k"), Token: "t", Response: &coordinatorv1.Response{Body: make([]byte, 3<<20)},
	})
	if failure := wantReason(t, err, reason.ResponseTooLarge); !strings.Contains(failure.Violations[0].Detail, "and no node stores more than 1048576") {
		t.Errorf("%+v", failure.Violations)
	}
}

// Invariant 8, and a caller's own metadata.
func TestHeadersNameShardAndLeader(t *testing.T) {
	n := start(t, "n1", nil)
	want := fmt.Sprint(admission.Identity{Namespace: "default", Key: "k"}.Shard(shardCount))
	for name, call := range map[string]func(context.Context, ...grpc.CallOption) error{
		"an answer": func(ctx context.Context, options ...grpc.CallOption) error {
			_, err := n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k"), AttemptId: attempt(1)}, options...)
			return err
		},
		"a refusal": func(ctx context.Context, options ...grpc.CallOption) error {
			_, err := n.coordinator.Commit(ctx, &coordinatorv1.CommitRequest{Identity: key("k"), Token: wellFormed}, options...)
			if reason.Of(err).Reason == "" {
				t.Errorf("not refused: %v", err)
			}
			return nil
		},
	} {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(withTimeout(t), "coordinator-forwarded", "yes", "coordinator-shard", "77", "x-other", "y")
		wantNone(t, call(ctx, grpc.Header(&header)))
		if got := header.Get("coordinator-shard"); len(got) != 1 || got[0] != want {
			t.Errorf("%s: coordinator-shard %v, want %s", name, got, want)
		}
		if got := header.Get("coordinator-shards"); len(got) != 1 || got[0] != fmt.Sprint(shardCount) {
			t.Errorf("%s: coordinator-shards %v, want %d", name, got, shardCount)
		}
		if got := header.Get("coordinator-leader"); len(got) != 1 || got[0] != "n1:7420" {
			t.Errorf("%s: coordinator-leader %v", name, got)
		}
	}
}
