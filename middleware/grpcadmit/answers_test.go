package grpcadmit_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

// Several deliveries at once, through retries: one run, and equal answers.
func TestOneRunForAllDeliveries(t *testing.T) {
	var runs atomic.Int32
	conn, stop := listen(func(context.Context, *structpb.Struct) (any, error) {
		return order(fmt.Sprint("run ", runs.Add(1))), nil
	}, []grpc.UnaryServerInterceptor{grpcadmit.New(shared.start(), caller(t.Name()))},
		grpc.WithUnaryInterceptor(outgoing.New()), grpc.WithDefaultServiceConfig(outgoing.RetryServiceConfig))
	t.Cleanup(stop)
	ctx := outgoing.ContextWithNewKey(t.Context())
	var deliveries sync.WaitGroup
	answers := make([]answered, 6)
	for i := range answers {
		deliveries.Go(func() { answers[i] = invoke(ctx, conn, place, "-", order("tea")) })
	}
	deliveries.Wait()
	firsts := 0
	for _, a := range answers {
		if a.err != nil || !proto.Equal(a.message, order("run 1")) {
			t.Errorf("answered %v, %v", a.message, a.err)
		}
		if !a.replayed() {
			firsts++
		}
	}
	if runs.Load() != 1 || firsts != 1 {
		t.Errorf("%d runs, %d answers that are no replay", runs.Load(), firsts)
	}
}

// What this build does not know of a message is kept, and a type that it does not know too.
func TestReplayIsExact(t *testing.T) {
	unknown := []byte{0xd2, 0x3e, 3, 'n', 'e', 'w', 0xd8, 0x3e, 7} // fields 1002 and 1003
	withUnknown := order("tea")
	withUnknown.ProtoReflect().SetUnknown(unknown)
	many := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range 50 {
		many.Fields[fmt.Sprint("field ", i)] = structpb.NewNumberValue(float64(i))
	}
	for name, answer := range map[string]proto.Message{
		"empty": &structpb.Struct{}, "nil of a type": (*structpb.Struct)(nil), "nil": nil, "unknown fields": withUnknown, "a map": many,
		"another type": empty(unknown),
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, func(context.Context, *structpb.Struct) (any, error) { return answer, nil })
			first, second := send(t, conn, "k"), send(t, conn, "k")
			if first.err != nil || second.err != nil || first.replayed() || !second.replayed() {
				t.Fatalf("answered %+v, then %+v", first, second)
			}
			if !proto.Equal(first.message, second.message) {
				t.Errorf("answered %v, then %v", first.message, second.message)
			}
		})
	}
}

// An interceptor outside of the guard sees a replay with the type that the handler returned.
func TestReplayHasTheSameType(t *testing.T) {
	guard := grpcadmit.New(shared.start(), caller(t.Name()))
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "k"))
	for range 2 {
		answer, err := guard(ctx, order("tea"), &grpc.UnaryServerInfo{FullMethod: wipe},
			func(context.Context, any) (any, error) { return order("done"), nil })
		if typed, ok := answer.(*structpb.Struct); err != nil || !ok || !proto.Equal(typed, order("done")) {
			t.Fatalf("answered %T %v, %v", answer, answer, err)
		}
	}
}

// A status is replayed with its message and all its details, known and unknown.
func TestStatusIsReplayedExactly(t *testing.T) {
	told, err := status.New(codes.NotFound, "no tea — «today»").WithDetails(
		&errdetails.ErrorInfo{Reason: "OUT_OF_TEA", Domain: "shop", Metadata: map[string]string{"a": "1", "b": "2", "c": "3"}},
		&errdetails.RetryInfo{}, order("detail"))
	if err != nil {
		t.Fatal(err)
	}
	wire := told.Proto()
	wire.Details[2].TypeUrl = "type.googleapis.com/of.nobody.Knows"
	told = status.FromProto(wire)
	for name, failure := range map[string]error{
		"plain": told.Err(), "wrapped": fmt.Errorf("placing: %w", told.Err()),
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, func(context.Context, *structpb.Struct) (any, error) { return nil, failure })
			first, second := send(t, conn, "k"), send(t, conn, "k")
			if first.replayed() || !second.replayed() {
				t.Fatalf("answered %+v, then %+v", first, second)
			}
			if a, b := status.Convert(first.err).Proto(), status.Convert(second.err).Proto(); !proto.Equal(a, b) || len(b.GetDetails()) != 3 {
				t.Errorf("answered %v, then %v", a, b)
			}
		})
	}
}

func TestMismatch(t *testing.T) {
	conn := serve(t, func(_ context.Context, r *structpb.Struct) (any, error) { return r, nil })
	if a := send(t, conn, "k"); a.err != nil {
		t.Fatal(a.err)
	}
	want(t, invoke(t.Context(), conn, place, "k", order("coffee")), grpcadmit.ReasonMismatch, codes.FailedPrecondition)
	// Another method is another record.
	if a := invoke(t.Context(), conn, wipe, "k", order("coffee")); a.err != nil || a.replayed() {
		t.Errorf("answered %+v", a)
	}
}

// Maps have no order, and a request with one is the same request.
func TestFingerprintOfAMap(t *testing.T) {
	request := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range 40 {
		request.Fields[fmt.Sprint(i)] = structpb.NewBoolValue(true)
	}
	conn := serve(t, func(_ context.Context, r *structpb.Struct) (any, error) { return r, nil })
	for i := range 5 {
		if a := invoke(t.Context(), conn, place, "k", request); a.err != nil || a.replayed() != (i > 0) {
			t.Fatalf("delivery %d: %v", i, a.err)
		}
	}
}

func TestInFlight(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	conn := serve(t, func(_ context.Context, r *structpb.Struct) (any, error) {
		close(started)
		<-goOn
		return r, nil
	})
	first := make(chan answered, 1)
	go func() { first <- invoke(context.WithoutCancel(t.Context()), conn, place, "k", order("tea")) }()
	<-started
	second := send(t, conn, "k")
	close(goOn)
	want(t, second, grpcadmit.ReasonInFlight, codes.Aborted)
	if _, after := outgoing.Refusal(second.err); after <= 0 || len(second.trailer.Get("grpc-retry-pushback-ms")) != 1 {
		t.Errorf("answered %+v, want a RetryInfo and a pushback", second)
	}
	if a := <-first; a.err != nil {
		t.Error(a.err)
	}
	if a := send(t, conn, "k"); a.err != nil || !a.replayed() {
		t.Errorf("answered %+v", a)
	}
}

// Every answer of the interceptor itself names its reason, its domain and the docs.
func TestRefusalsAreComplete(t *testing.T) {
	conn := serve(t, nil, grpcadmit.WithKeyRequired(), grpcadmit.WithDocs("https://docs.example/grpc"),
		grpcadmit.WithStatusCode(grpcadmit.ReasonKeyMissing, codes.FailedPrecondition))
	a := send(t, conn, "-")
	want(t, a, grpcadmit.ReasonKeyMissing, codes.FailedPrecondition)
	info, link := false, ""
	for _, detail := range status.Convert(a.err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			info = d.GetDomain() == grpcadmit.Domain
		case *errdetails.Help:
			link = d.GetLinks()[0].GetUrl()
		}
	}
	if !info || link != "https://docs.example/grpc#IDEMPOTENCY_KEY_MISSING" {
		t.Errorf("answered %v", status.Convert(a.err).Proto())
	}
}

// What is not guarded passes untouched, key or no key.
func TestWhatPasses(t *testing.T) {
	var runs atomic.Int32
	run := func(ctx context.Context, r *structpb.Struct) (any, error) {
		runs.Add(1)
		if grpcadmit.Reservation(ctx) != nil {
			return nil, status.Error(codes.Internal, "it is guarded")
		}
		return r, nil
	}
	required := serve(t, run, grpcadmit.WithKeyRequired())
	chosen := serve(t, run, grpcadmit.WithKeyRequired(), grpcadmit.WithMethods(wipe))
	optional := serve(t, run)
	for name, pass := range map[string]func() answered{
		"a read": func() answered { return invoke(t.Context(), required, look, "bad key", order("tea")) },
		"health": func() answered {
			return invoke(t.Context(), required, "/grpc.health.v1.Health/Check", "-", order("tea"))
		},
		"another method":   func() answered { return invoke(t.Context(), chosen, place, "k", order("tea")) },
		"no key":           func() answered { return invoke(t.Context(), optional, place, "-", order("tea")) },
		"a stream's key":   func() answered { return stream(t, required, "k") },
		"a stream, no key": func() answered { return stream(t, required, "-") },
	} {
		for range 2 {
			if a := pass(); a.err != nil || a.replayed() {
				t.Errorf("%s: answered %+v", name, a)
			}
		}
	}
	if runs.Load() != 12 {
		t.Errorf("%d runs of 12 calls", runs.Load())
	}
	want(t, invoke(t.Context(), chosen, wipe, "-", order("tea")), grpcadmit.ReasonKeyMissing, codes.InvalidArgument)
}

func stream(t *testing.T, conn *grpc.ClientConn, key string) answered {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if key != "-" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, watch)
	if err == nil {
		err = s.SendMsg(order("tea"))
	}
	a := answered{message: &structpb.Struct{}, err: err}
	if err == nil {
		a.err = s.RecvMsg(a.message)
	}
	return a
}

func TestPrincipal(t *testing.T) {
	who := grpcadmit.WithPrincipal(func(ctx context.Context) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "who"), ",")
	})
	run := func(_ context.Context, r *structpb.Struct) (any, error) { return r, nil }
	conn := serve(t, run, who, grpcadmit.WithNamespace(unique("principal")))
	want(t, send(t, conn, "k"), grpcadmit.ReasonPrincipalRequired, codes.Unauthenticated)
	want(t, send(t, conn, "bad key"), grpcadmit.ReasonPrincipalRequired, codes.Unauthenticated)
	for _, name := range []string{"ann", "bob"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "who", name)
		if a := invoke(ctx, conn, place, "k", order(name)); a.err != nil || a.replayed() {
			t.Errorf("%s: answered %+v", name, a)
		}
	}
	long := metadata.AppendToOutgoingContext(t.Context(), "who", strings.Repeat("x", 129))
	refused := invoke(long, conn, place, "k", order("tea"))
	want(t, refused, grpcadmit.ReasonMisconfigured, codes.Internal)
	if said := status.Convert(refused.err).Message(); !strings.HasSuffix(said, ": the principal has 129 bytes, and may have 128") {
		t.Errorf("it says %q", said)
	}

	open := serve(t, run, who, grpcadmit.WithAnonymous(), grpcadmit.WithNamespace(unique("anonymous")))
	for i := range 2 {
		if a := send(t, open, "k"); a.err != nil || a.replayed() != (i == 1) {
			t.Errorf("answered %+v", a)
		}
	}
}

// What an operator wrote is answered too, where it is an answer of gRPC.
func TestSettledByHand(t *testing.T) {
	for name, test := range map[string]struct {
		response client.Response
		code     codes.Code
		reason   grpcadmit.Reason
	}{
		"empty":          {client.Response{}, codes.OK, ""},
		"unknown type":   {client.Response{ContentType: "application/protobuf; proto=of.Nobody"}, codes.OK, ""},
		"a status":       {client.Response{Code: 5}, codes.NotFound, ""},
		"JSON":           {client.Response{ContentType: "application/json", Body: []byte("{}")}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"of HTTP":        {client.Response{Code: 200}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"no proto":       {client.Response{Body: []byte{0xff}}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"no status":      {client.Response{Code: 5, Body: []byte{0xff}}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"of another":     {client.Response{Code: 5, ContentType: "application/protobuf; proto=google.protobuf.Struct"}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"unreadable":     {client.Response{ContentType: ";"}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
		"marked omitted": {client.Response{Headers: []client.Header{{Name: client.OmittedHeader, Value: "9"}}}, codes.FailedPrecondition, grpcadmit.ReasonResponseNotStored},
	} {
		t.Run(name, func(t *testing.T) {
			fingerprint, err := grpcadmit.WholeRequest()(place, order("tea"))
			if err != nil {
				t.Fatal(err)
			}
			who := unique(t.Name())
			r, err := shared.start().Reserve(t.Context(), client.Identity{Principal: who, Operation: place, Key: "k"},
				client.WithFingerprint(fingerprint))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Commit(t.Context(), test.response); err != nil {
				t.Fatal(err)
			}
			a := send(t, serve(t, nil, as(who)), "k")
			if status.Code(a.err) != test.code || a.reason() != string(test.reason) || a.replayed() != (test.reason == "") {
				t.Errorf("answered %v (%s)", a.err, a.reason())
			}
		})
	}
}

// A status whose message is no text is replayed as a status, not as one that was not stored.
func TestStatusThatIsNoText(t *testing.T) {
	conn := serve(t, func(context.Context, *structpb.Struct) (any, error) {
		return nil, status.Error(codes.AlreadyExists, "run 4 \xff\x00")
	}, caller(t.Name()))
	first, second := send(t, conn, "k"), send(t, conn, "k")
	if status.Code(first.err) != codes.AlreadyExists || first.replayed() {
		t.Errorf("the first caller got %v", first.err)
	}
	if told := status.Convert(second.err); told.Code() != codes.AlreadyExists || told.Message() != "run 4 \uFFFD\x00" || !second.replayed() {
		t.Errorf("the second caller got %v", second.err)
	}
}
