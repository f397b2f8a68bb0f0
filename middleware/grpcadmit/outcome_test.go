package grpcadmit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

// becomes says what a key comes to, by what the next call with it gets.
func becomes(runs int32, a answered) string {
	switch {
	case a.replayed() && runs == 1:
		return "stored"
	case runs == 2:
		return "released"
	case a.reason() == string(grpcadmit.ReasonInFlight):
		return "uncertain"
	}
	return fmt.Sprintf("%d runs, %v", runs, a.err)
}

// downstream is what a handler gets from a guarded method that it calls.
func downstream(reason grpcadmit.Reason, code codes.Code) error {
	told, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Reason: string(reason), Domain: grpcadmit.Domain})
	if err != nil {
		panic(err)
	}
	return told.Err()
}

// Every status that a handler can answer, under both rules for a lapse.
func TestWhatAStatusMeans(t *testing.T) {
	var runs atomic.Int32
	var failure atomic.Value // of a func() error
	run := func(context.Context, *structpb.Struct) (any, error) {
		runs.Add(1)
		if err := failure.Load().(func() error)(); err != nil {
			return nil, err
		}
		return order("done"), nil
	}
	reopen, hold := serve(t, run), serve(t, run, grpcadmit.WithOnLapse(client.Hold), grpcadmit.WithNamespace("hold"))
	of := func(code codes.Code) error { return status.Error(code, "no") }
	for i, test := range []struct {
		err          error
		reopen, hold string
	}{
		{nil, "stored", "stored"},
		{of(codes.Canceled), "uncertain", "uncertain"},
		{of(codes.Unknown), "released", "uncertain"},
		{of(codes.InvalidArgument), "stored", "stored"},
		{of(codes.DeadlineExceeded), "uncertain", "uncertain"},
		{of(codes.NotFound), "stored", "stored"},
		{of(codes.AlreadyExists), "stored", "stored"},
		{of(codes.PermissionDenied), "stored", "stored"},
		{of(codes.ResourceExhausted), "released", "uncertain"},
		{of(codes.FailedPrecondition), "stored", "stored"},
		{of(codes.Aborted), "released", "uncertain"},
		{of(codes.OutOfRange), "stored", "stored"},
		{of(codes.Unimplemented), "stored", "stored"},
		{of(codes.Internal), "released", "uncertain"},
		{of(codes.Unavailable), "released", "uncertain"},
		{of(codes.DataLoss), "released", "uncertain"},
		{of(codes.Unauthenticated), "released", "uncertain"},
		{of(99), "uncertain", "uncertain"},
		{downstream(grpcadmit.ReasonInFlight, codes.Aborted), "released", "uncertain"},
		{downstream(grpcadmit.ReasonInDoubt, codes.FailedPrecondition), "released", "uncertain"},
		{downstream(grpcadmit.ReasonMismatch, codes.FailedPrecondition), "stored", "stored"},
		{errors.New("no status"), "released", "uncertain"},
		{fmt.Errorf("charging: %w", of(codes.NotFound)), "stored", "stored"},
		{fmt.Errorf("charging: %w", context.DeadlineExceeded), "uncertain", "uncertain"},
		{context.Canceled, "uncertain", "uncertain"},
		{client.NotApplied(of(codes.DeadlineExceeded)), "released", "released"},
		{client.NotApplied(of(codes.NotFound)), "released", "released"},
		{client.Uncertain(of(codes.NotFound)), "uncertain", "uncertain"},
	} {
		failure.Store(func() error { return test.err })
		for conn, wanted := range map[*grpc.ClientConn]string{reopen: test.reopen, hold: test.hold} {
			runs.Store(0)
			send(t, conn, fmt.Sprint("k", i))
			second := send(t, conn, fmt.Sprint("k", i))
			if got := becomes(runs.Load(), second); got != wanted {
				t.Errorf("%v is %s, want %s under %s", test.err, got, wanted, map[bool]string{true: "hold", false: "reopen"}[conn == hold])
			}
		}
	}
}

func TestMarksAndClassifier(t *testing.T) {
	soft := func(o grpcadmit.Outcome) grpcadmit.Verdict {
		if s, ok := o.Response.(*structpb.Struct); ok && s.GetFields()["item"].GetStringValue() == "soft failure" && o.Status.Code() == codes.OK &&
			o.Err == nil && o.Method == place && proto.Equal(o.Request, order("tea")) {
			return grpcadmit.Release
		}
		if o.Status.Code() == codes.Internal && o.Response == nil {
			return grpcadmit.Store
		}
		if o.Status.Code() == codes.DeadlineExceeded {
			return grpcadmit.Release
		}
		return grpcadmit.Default
	}
	for name, test := range map[string]struct {
		run  handler
		want string
	}{
		"done":              {func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil }, "stored"},
		"a soft failure":    {func(context.Context, *structpb.Struct) (any, error) { return order("soft failure"), nil }, "released"},
		"final by the rule": {func(context.Context, *structpb.Struct) (any, error) { return nil, status.Error(codes.Internal, "x") }, "stored"},
		"cut off, of which the classifier knows no more": {func(context.Context, *structpb.Struct) (any, error) {
			return nil, status.Error(codes.DeadlineExceeded, "x")
		}, "uncertain"},
		"marked uncertain": {func(ctx context.Context, _ *structpb.Struct) (any, error) {
			grpcadmit.MarkUncertain(ctx)
			return order("soft failure"), nil
		}, "uncertain"},
		"marked as not applied": {func(ctx context.Context, _ *structpb.Struct) (any, error) {
			grpcadmit.MarkNotApplied(ctx)
			return order("done"), nil
		}, "released"},
		"done, with a code of nobody": {func(ctx context.Context, _ *structpb.Struct) (any, error) {
			grpcadmit.MarkDone(ctx)
			return nil, status.Error(5000, "x")
		}, "stored"},
		"marked as done": {func(ctx context.Context, _ *structpb.Struct) (any, error) {
			grpcadmit.MarkUncertain(ctx)
			grpcadmit.MarkDone(ctx)
			return nil, status.Error(codes.DeadlineExceeded, "x")
		}, "stored"},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			conn := serve(t, func(ctx context.Context, r *structpb.Struct) (any, error) {
				runs.Add(1)
				return test.run(ctx, r)
			}, grpcadmit.WithClassifier(soft), grpcadmit.WithOnLapse(client.Hold))
			first, second := send(t, conn, "k"), send(t, conn, "k")
			if got := becomes(runs.Load(), second); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if second.replayed() && !proto.Equal(status.Convert(first.err).Proto(), status.Convert(second.err).Proto()) {
				t.Errorf("answered %v, then %v", first.err, second.err)
			}
		})
	}
	grpcadmit.MarkDone(t.Context()) // not guarded: does nothing
}

// An answer that cannot be stored reaches its first caller whole; the handler does not run
// again.
func TestResponseThatIsNotStored(t *testing.T) {
	large := order(strings.Repeat("x", 3<<19)) // 1.5 MiB: over the coordinator's limit
	told, err := status.New(codes.NotFound, "no").WithDetails(&errdetails.DebugInfo{Detail: strings.Repeat("x", 2000)})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		answer any
		err    error
		limit  int
		first  codes.Code
		code   string
		why    string // as the log has it
	}{
		"over the limit":               {order("tea"), nil, 4, codes.OK, "0", "bytes, and the limit is 4"},
		"over the coordinator's limit": {large, nil, 2 << 20, codes.OK, "0", "RESPONSE_TOO_LARGE"},
		"a status over the limit":      {nil, told.Err(), 100, codes.NotFound, "5", "bytes, and the limit is 100"},
		"no message":                   {"text", nil, 1 << 20, codes.Internal, "0", "it is no proto message but a string"},
		"not valid":                    {order("\xff"), nil, 1 << 20, codes.Internal, "0", "invalid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			var log strings.Builder
			conn := serve(t, func(context.Context, *structpb.Struct) (any, error) {
				runs.Add(1)
				return test.answer, test.err
			}, grpcadmit.WithResponseLimit(test.limit), grpcadmit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			first := send(t, conn, "k")
			if status.Code(first.err) != test.first || first.err == nil && !proto.Equal(first.message, test.answer.(proto.Message)) {
				t.Fatalf("answered %v", first.err)
			}
			second := send(t, conn, "k")
			want(t, second, grpcadmit.ReasonResponseNotStored, codes.FailedPrecondition)
			info, ok := status.Convert(second.err).Details()[0].(*errdetails.ErrorInfo)
			if !ok || info.GetMetadata()["executed"] != "true" || info.GetMetadata()["executed_code"] != test.code || runs.Load() != 1 {
				t.Errorf("%v, %d runs", info, runs.Load())
			}
			if said := log.String(); !strings.Contains(said, test.why) || strings.Count(said, "level=WARN") != 1 {
				t.Errorf("the log says %q", said)
			}
		})
	}
}

// What is too large for a message to the coordinator is recorded as done all the same.
func TestResponseOverTheWiresLimit(t *testing.T) {
	var runs atomic.Int32
	guard := grpcadmit.New(shared.start(), caller(t.Name()), grpcadmit.WithResponseLimit(16<<20))
	call := func() (any, error) {
		return guard(keyed(t.Context(), "k"), order("tea"), infoOf(wipe), func(context.Context, any) (any, error) {
			runs.Add(1)
			return order(strings.Repeat("x", 5<<20)), nil
		})
	}
	if answer, err := call(); err != nil || answer == nil {
		t.Fatal(err)
	}
	_, err := call()
	want(t, answered{err: err}, grpcadmit.ReasonResponseNotStored, codes.FailedPrecondition)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestPanic(t *testing.T) {
	for _, onLapse := range []client.OnLapse{client.Reopen, client.Hold} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprint(onLapse, timeout), func(t *testing.T) {
				var runs atomic.Int32
				conn := serve(t, func(context.Context, *structpb.Struct) (any, error) {
					if runs.Add(1) == 1 {
						panic("out of tea")
					}
					return order("done"), nil
				}, grpcadmit.WithOnLapse(onLapse), grpcadmit.WithHandlerTimeout(timeout), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
				if a := send(t, conn, "k"); status.Convert(a.err).Message() != "recovered: out of tea" {
					t.Fatalf("the panic did not go on: %v", a.err)
				}
				a := send(t, conn, "k")
				if onLapse == client.Hold {
					want(t, a, grpcadmit.ReasonInFlight, codes.Aborted)
				} else if a.err != nil || a.replayed() {
					t.Errorf("answered %+v", a)
				}
			})
		}
	}
}

// A handler that has not returned is never released, and what it answers is recorded.
func TestHandlerTimeout(t *testing.T) {
	t.Run("alone", func(t *testing.T) { handlerTimeout(t) })
	t.Run("and WithCallerCancel", func(t *testing.T) { handlerTimeout(t, grpcadmit.WithCallerCancel()) })
}

func handlerTimeout(t *testing.T, options ...grpcadmit.Option) {
	goOn := make(chan struct{})
	var runs atomic.Int32
	conn := serve(t, func(ctx context.Context, _ *structpb.Struct) (any, error) {
		runs.Add(1)
		<-goOn
		if ctx.Err() != nil {
			t.Error("its context ended with its caller")
		}
		return order("late"), nil
	}, append(options, grpcadmit.WithHandlerTimeout(30*time.Millisecond))...)
	first := send(t, conn, "k")
	second := send(t, conn, "k")
	close(goOn)
	want(t, first, grpcadmit.ReasonHandlerTimeout, codes.Unavailable)
	want(t, second, grpcadmit.ReasonInFlight, codes.Aborted)
	eventually(t, "the late answer is replayed", func() bool {
		a := send(t, conn, "k")
		return a.replayed() && proto.Equal(a.message, order("late"))
	})
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// A handler that has returned in time does not go on, however long recording takes after it: its
// caller is told that it has run.
func TestHandlerThatReturnsInTime(t *testing.T) {
	c := own(t, client.WithDialOptions(grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			if _, commit := request.(*coordinatorv1.CommitRequest); commit {
				select {
				case <-ctx.Done():
				case <-t.Context().Done():
				}
				return status.Error(codes.Unavailable, "no answer")
			}
			return invoke(ctx, method, request, reply, conn, options...)
		})), client.WithSettleTimeout(2*time.Second))
	guard := grpcadmit.New(c.client, caller(t.Name()), grpcadmit.WithHandlerTimeout(100*time.Millisecond), grpcadmit.WithSettleWait(time.Second),
		grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	_, err := guard(keyed(t.Context(), "k"), order("tea"), infoOf(wipe), func(context.Context, any) (any, error) { return order("done"), nil })
	want(t, answered{err: err}, grpcadmit.ReasonUnavailable, codes.Unavailable)
	if info, ok := status.Convert(err).Details()[0].(*errdetails.ErrorInfo); !ok || info.GetMetadata()["executed"] != "true" {
		t.Errorf("%v", err)
	}
}

// A handler beyond its time that panics takes nothing with it.
func TestPanicBeyondItsTime(t *testing.T) {
	goOn := make(chan struct{})
	var runs atomic.Int32
	conn := serve(t, func(context.Context, *structpb.Struct) (any, error) {
		if runs.Add(1) == 1 {
			<-goOn
			panic("too late")
		}
		return order("done"), nil
	}, grpcadmit.WithHandlerTimeout(30*time.Millisecond), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	want(t, send(t, conn, "k"), grpcadmit.ReasonHandlerTimeout, codes.Unavailable)
	close(goOn)
	eventually(t, "it runs again", func() bool { return send(t, conn, "k").err == nil })
}

// The caller's deadline is not the handler's.
func TestCallerThatGoesAway(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		t.Run(fmt.Sprint("cancels ", cancels), func(t *testing.T) {
			gone, goOn := make(chan struct{}), make(chan struct{})
			var ended atomic.Bool
			var runs atomic.Int32
			options := []grpcadmit.Option{grpcadmit.WithLogger(slog.New(slog.DiscardHandler))}
			if cancels {
				options = append(options, grpcadmit.WithCallerCancel())
			}
			conn := serve(t, func(ctx context.Context, _ *structpb.Struct) (any, error) {
				runs.Add(1)
				close(gone)
				if cancels {
					<-ctx.Done()
				}
				<-goOn
				ended.Store(ctx.Err() != nil)
				if cancels {
					return nil, status.FromContextError(ctx.Err()).Err()
				}
				return order("done"), nil
			}, options...)
			ctx, hangUp := context.WithCancel(t.Context())
			go func() {
				<-gone
				hangUp()
			}()
			if a := invoke(ctx, conn, place, "k", order("tea")); status.Code(a.err) != codes.Canceled {
				t.Fatalf("answered %v", a.err)
			}
			close(goOn)
			if cancels {
				want(t, send(t, conn, "k"), grpcadmit.ReasonInFlight, codes.Aborted) // uncertain
			} else {
				eventually(t, "the answer is replayed", func() bool { return send(t, conn, "k").replayed() })
			}
			if ended.Load() != cancels || runs.Load() != 1 {
				t.Errorf("the handler's context had ended: %v; %d runs", ended.Load(), runs.Load())
			}
		})
	}
}

// A handler that outlives its reservation, and somebody else is admitted: the other's answer
// counts.
func TestLost(t *testing.T) {
	var runs atomic.Int32
	over := make(chan struct{})
	var cause error
	conn := serve(t, func(ctx context.Context, _ *structpb.Struct) (any, error) {
		if runs.Add(1) == 1 {
			<-ctx.Done()
			cause = context.Cause(ctx)
			<-over
			return order("first"), nil
		}
		return order("second"), nil
	}, grpcadmit.WithPendingTTL(100*time.Millisecond), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	first := make(chan answered, 1)
	var waits sync.WaitGroup
	waits.Go(func() { first <- invoke(context.WithoutCancel(t.Context()), conn, place, "k", order("tea")) })
	eventually(t, "somebody else is admitted", func() bool { return runs.Load() > 0 && send(t, conn, "k").err == nil })
	close(over)
	waits.Wait()
	a := <-first
	want(t, a, grpcadmit.ReasonLost, codes.Unavailable)
	if !errors.Is(cause, client.ErrLapsed) {
		t.Errorf("the handler's context ended with %v", cause)
	}
	if a := send(t, conn, "k"); !proto.Equal(a.message, order("second")) || !a.replayed() {
		t.Errorf("answered %+v", a)
	}
}

// Under hold a handler that ends in silence leaves the key in doubt, and it can be settled.
func TestInDoubt(t *testing.T) {
	who := unique(t.Name())
	var runs atomic.Int32
	conn := serve(t, func(context.Context, *structpb.Struct) (any, error) {
		runs.Add(1)
		return nil, status.Error(codes.Unavailable, "the exchange gives no answer")
	}, as(who), grpcadmit.WithOnLapse(client.Hold), grpcadmit.WithPendingTTL(100*time.Millisecond))
	send(t, conn, "k")
	var a answered
	eventually(t, "it is in doubt", func() bool {
		a = send(t, conn, "k")
		return a.reason() != string(grpcadmit.ReasonInFlight)
	})
	want(t, a, grpcadmit.ReasonInDoubt, codes.FailedPrecondition)
	if _, after := outgoing.Refusal(a.err); after != 0 {
		t.Errorf("it says that waiting for %v helps", after)
	}
	id := client.Identity{Principal: who, Operation: place, Key: "k"}
	record, err := shared.start().Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.start().ResolveApplied(t.Context(), id, record.Revision, client.Response{}, "it was filled"); err != nil {
		t.Fatal(err)
	}
	if a := send(t, conn, "k"); a.err != nil || !a.replayed() || !proto.Equal(a.message, &structpb.Struct{}) || runs.Load() != 1 {
		t.Errorf("answered %+v after %d runs", a, runs.Load())
	}
}

func TestKeepAliveAndWait(t *testing.T) {
	who := unique(t.Name())
	var runs atomic.Int32
	started := make(chan struct{})
	conn := serve(t, func(ctx context.Context, _ *structpb.Struct) (any, error) {
		runs.Add(1)
		close(started)
		timer := time.NewTimer(700 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
			return order("done"), nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}, as(who), grpcadmit.WithPendingTTL(300*time.Millisecond), grpcadmit.WithKeepAlive(), grpcadmit.WithWait(10*time.Second),
		grpcadmit.WithOwner("a test"), grpcadmit.WithRetention(time.Minute), grpcadmit.WithOperation(func(string, proto.Message) string { return "an operation" }))
	first := make(chan answered, 1)
	go func() { first <- invoke(context.WithoutCancel(t.Context()), conn, place, "k", order("tea")) }()
	<-started
	record, err := shared.start().Get(t.Context(), client.Identity{Principal: who, Operation: "an operation", Key: "k"})
	if err != nil || record.Owner != "a test" {
		t.Errorf("%+v, %v", record, err)
	}
	if a := send(t, conn, "k"); a.err != nil || !a.replayed() {
		t.Errorf("the one that waits: %+v", a)
	}
	if a := <-first; a.err != nil || a.replayed() || runs.Load() != 1 {
		t.Errorf("the first: %+v, %d runs", a, runs.Load())
	}
}

// Without the coordinator no keyed call is carried out, and the others are.
func TestCoordinatorAway(t *testing.T) {
	c := own(t, client.WithCallTimeout(300*time.Millisecond), client.WithTryTimeout(100*time.Millisecond))
	var runs atomic.Int32
	conn := serveFor(t, c.client, func(context.Context, *structpb.Struct) (any, error) {
		runs.Add(1)
		return order("done"), nil
	}, grpcadmit.WithRetryAfter(7*time.Second), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	if err := c.node.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := send(t, conn, "k")
	want(t, a, grpcadmit.ReasonUnavailable, codes.Unavailable)
	if _, after := outgoing.Refusal(a.err); after < 7*time.Second || runs.Load() != 0 {
		t.Errorf("after %v, %d runs", after, runs.Load())
	}
	if a := send(t, conn, "-"); a.err != nil || runs.Load() != 1 {
		t.Errorf("a call without a key: %v", a.err)
	}
	_ = c.client.Close()
	want(t, send(t, conn, "k"), grpcadmit.ReasonUnavailable, codes.Unavailable)
}

// Nobody who uses the defaults waits long for a no, and who has less patience says so.
func TestAwayIsSaidSoon(t *testing.T) {
	away, err := client.Dial([]string{"127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for _, test := range []struct {
		options []grpcadmit.Option
		most    time.Duration
	}{
		{nil, 6 * time.Second}, // 3 s, on a machine that has much to do
		{[]grpcadmit.Option{grpcadmit.WithWait(time.Minute), grpcadmit.WithReserveTimeout(200 * time.Millisecond)}, 2 * time.Second},
	} {
		conn := serveFor(t, away, nil, append(test.options, grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))...)
		began := time.Now()
		want(t, send(t, conn, "k"), grpcadmit.ReasonUnavailable, codes.Unavailable)
		if took := time.Since(began); took > test.most {
			t.Errorf("after %v", took)
		}
	}
}

// The coordinator goes away while the handler runs: the caller is told that it was carried
// out, and not what it answered.
func TestCoordinatorGoesAway(t *testing.T) {
	c := own(t, client.WithCallTimeout(300*time.Millisecond), client.WithTryTimeout(100*time.Millisecond), client.WithSettleTimeout(500*time.Millisecond))
	ready(t, c)
	conn := serveFor(t, c.client, func(ctx context.Context, _ *structpb.Struct) (any, error) {
		return order("done"), c.node.Stop(context.WithoutCancel(ctx))
	}, grpcadmit.WithSettleWait(50*time.Millisecond), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	a := send(t, conn, "k")
	want(t, a, grpcadmit.ReasonUnavailable, codes.Unavailable)
	info, ok := status.Convert(a.err).Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.GetMetadata()["executed"] != "true" {
		t.Errorf("answered %v", info)
	}
}

// What was answered is replayed by a coordinator that was started anew.
func TestReplayAfterARestart(t *testing.T) {
	c := own(t)
	ready(t, c)
	conn := serveFor(t, c.client, func(context.Context, *structpb.Struct) (any, error) { return order("done"), nil })
	if a := send(t, conn, "k"); a.err != nil {
		t.Fatal(a.err)
	}
	if err := c.node.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := node.Default()
	cfg.DataDir, cfg.Listen, cfg.Shards = c.dir, c.node.Address().String(), 1
	again, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.node = again
	var a answered
	eventually(t, "the coordinator gives answers again", func() bool {
		a = send(t, conn, "k")
		return a.reason() != string(grpcadmit.ReasonUnavailable)
	})
	if a.err != nil || !a.replayed() || !proto.Equal(a.message, order("done")) {
		t.Errorf("answered %+v", a)
	}
}

// What is secret in the metadata of a call, in its request and in what its handler sets does not
// get to the coordinator's disk; the answer that is stored does.
func TestSecretsAreNotStored(t *testing.T) {
	c := own(t)
	ready(t, c)
	const token, asked, header, trailer, failed, kept = "b34r3r-t0k3n-0f-0n3", "c4rd-numb3r-0f-0n3", "s3cr3t-h34d3r-0f-1", "s3cr3t-tr41l3r-0f-1", "s3cr3t-0f-4-f41lur3", "kept-v4lu3-0f-a11"
	conn := serveFor(t, c.client, func(ctx context.Context, r *structpb.Struct) (any, error) {
		if err := grpc.SetHeader(ctx, metadata.Pairs("set-session", header)); err != nil {
			t.Error(err)
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("set-session", trailer)); err != nil {
			t.Error(err)
		}
		if r.GetFields()["item"].GetStringValue() == asked {
			return order(kept), nil
		}
		return nil, status.Error(codes.Unavailable, failed)
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	for i := range 2 {
		a := invoke(ctx, conn, place, "k", order(asked))
		if a.err != nil || a.replayed() != (i == 1) || (len(a.trailer.Get("set-session")) == 1) != (i == 0) {
			t.Errorf("answered %+v", a)
		}
	}
	if a := invoke(ctx, conn, place, "other", order("tea")); status.Code(a.err) != codes.Unavailable {
		t.Errorf("answered %+v", a)
	}
	if err := c.node.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	err := filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, needle := range []string{token, asked, header, trailer, failed, kept} {
			found[needle] = found[needle] || strings.Contains(string(text), needle)
		}
		return err
	})
	if err != nil || !found[kept] {
		t.Fatalf("what is stored is not there to be found: %v", err)
	}
	for needle, is := range found {
		if is && needle != kept {
			t.Errorf("%q is on disk", needle)
		}
	}
}

// ready waits until the coordinator gives answers.
func ready(t *testing.T, c *coordinator) {
	t.Helper()
	eventually(t, "the coordinator gives answers", func() bool {
		_, err := c.client.Get(t.Context(), client.Identity{Key: "any"})
		return errors.Is(err, client.ErrNotFound)
	})
}

// What is wrong with the options is found when the program starts.
func TestOptions(t *testing.T) {
	c := shared.start()
	for name, make := range map[string]func(){
		"no client":              func() { grpcadmit.New(nil, grpcadmit.WithAnonymous()) },
		"no principal":           func() { grpcadmit.New(c) },
		"no keys":                func() { grpcadmit.New(c, caller("x"), grpcadmit.WithKeys()) },
		"an empty key":           func() { grpcadmit.New(c, caller("x"), grpcadmit.WithKeys(nil)) },
		"no field":               func() { grpcadmit.New(c, caller("x"), grpcadmit.WithKeys(grpcadmit.KeyFromField())) },
		"no methods":             func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods()) },
		"no slash":               func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods(place[1:])) },
		"a service":              func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods(place, "/shop.v1.Orders/")) },
		"a star":                 func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods("/shop.v1.Orders/*")) },
		"a space":                func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods("/shop.v1 Orders/Place")) },
		"by dots":                func() { grpcadmit.New(c, caller("x"), grpcadmit.WithMethods("shop.v1.Orders.Place")) },
		"fingerprint":            func() { grpcadmit.New(c, caller("x"), grpcadmit.WithFingerprint(nil)) },
		"operation":              func() { grpcadmit.New(c, caller("x"), grpcadmit.WithOperation(nil)) },
		"logger":                 func() { grpcadmit.New(c, caller("x"), grpcadmit.WithLogger(nil)) },
		"limit":                  func() { grpcadmit.New(c, caller("x"), grpcadmit.WithResponseLimit(-1)) },
		"timeout":                func() { grpcadmit.New(c, caller("x"), grpcadmit.WithHandlerTimeout(-1)) },
		"settle wait":            func() { grpcadmit.New(c, caller("x"), grpcadmit.WithSettleWait(0)) },
		"retry after":            func() { grpcadmit.New(c, caller("x"), grpcadmit.WithRetryAfter(0)) },
		"no time":                func() { grpcadmit.New(c, caller("x"), grpcadmit.WithReserveTimeout(0)) },
		"a code":                 func() { grpcadmit.New(c, caller("x"), grpcadmit.WithStatusCode(grpcadmit.ReasonInFlight, codes.OK)) },
		"no such code":           func() { grpcadmit.New(c, caller("x"), grpcadmit.WithStatusCode(grpcadmit.ReasonInFlight, 17)) },
		"no such reason":         func() { grpcadmit.New(c, caller("x"), grpcadmit.WithStatusCode("X", codes.Aborted)) },
		"option 2 of New is nil": func() { grpcadmit.New(c, caller("x"), nil) },
		"WithPendingTTL is 0s, it must be from 100ms to 24h0m0s":      func() { grpcadmit.New(c, caller("x"), grpcadmit.WithPendingTTL(0)) },
		"WithPendingTTL is 25h0m0s, it must be from 100ms to 24h0m0s": func() { grpcadmit.New(c, caller("x"), grpcadmit.WithPendingTTL(25*time.Hour)) },
		"WithRetention is 0s, it must be from 1s to 720h0m0s":         func() { grpcadmit.New(c, caller("x"), grpcadmit.WithRetention(0)) },
		"WithRetention is 744h0m0s, it must be from 1s to 720h0m0s":   func() { grpcadmit.New(c, caller("x"), grpcadmit.WithRetention(31*24*time.Hour)) },
		"WithOwner is 129 bytes long, the limit is 128":               func() { grpcadmit.New(c, caller("x"), grpcadmit.WithOwner(strings.Repeat("o", 129))) },
		"WithOnLapse is 7, it must be client.Reopen or client.Hold":   func() { grpcadmit.New(c, caller("x"), grpcadmit.WithOnLapse(7)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				said, ok := recover().(string)
				if !ok || !strings.HasPrefix(said, "grpcadmit: ") || strings.ContainsAny(name, "0123456789") && said != "grpcadmit: "+name {
					t.Errorf("%q", said)
				}
			}()
			make()
		})
	}
	for v, text := range map[grpcadmit.Verdict]string{0: "default", 1: "store", 2: "release", 3: "uncertain"} {
		if v.String() != text {
			t.Errorf("%d is %q", v, v)
		}
	}
}

// A request that is no proto message cannot be told from others.
func TestRequestThatIsNoMessage(t *testing.T) {
	guard := grpcadmit.New(shared.start(), caller(t.Name()), grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	_, err := guard(t.Context(), "text", infoOf(wipe), func(context.Context, any) (any, error) { return nil, nil })
	want(t, answered{err: err}, grpcadmit.ReasonMisconfigured, codes.Internal)
	_, err = guard(keyed(t.Context(), "k"), order("\xff"), infoOf(wipe), func(context.Context, any) (any, error) { return nil, nil })
	want(t, answered{err: err}, grpcadmit.ReasonMisconfigured, codes.Internal)
	// A method whose name is no operation is cut, with its hash.
	long := "/" + strings.Repeat("ü", 200)
	_, err = guard(keyed(t.Context(), "k"), order("tea"), infoOf(long), func(ctx context.Context, _ any) (any, error) {
		if name := grpcadmit.Reservation(ctx).Identity().Operation; len(name) > 255 || !strings.Contains(name, "sha256:") {
			t.Errorf("the operation is %q", name)
		}
		return order("done"), nil
	})
	if err != nil {
		t.Error(err)
	}
}
