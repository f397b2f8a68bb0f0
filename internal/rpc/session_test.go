package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// session is a client's end of a session.
type session struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	next   uint64
	got    map[uint64]*coordinatorv1.SessionAnswer
}

func openSession(t *testing.T, client coordinatorv1.CoordinatorServiceClient) *session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := client.Session(ctx)
	wantNone(t, err)
	return &session{t: t, stream: stream, got: make(map[uint64]*coordinatorv1.SessionAnswer)}
}

// send sends calls in one message, and returns their ids.
func (s *session) send(calls ...*coordinatorv1.SessionCall) (ids []uint64) {
	s.t.Helper()
	for _, call := range calls {
		if call.GetId() == 0 {
			s.next++
			call.Id = s.next
		}
		ids = append(ids, call.GetId())
	}
	wantNone(s.t, s.stream.Send(&coordinatorv1.SessionRequest{Calls: calls}))
	return ids
}

// answer waits for the answer to one call.
func (s *session) answer(id uint64) *coordinatorv1.SessionAnswer {
	s.t.Helper()
	for s.got[id] == nil {
		message, err := s.stream.Recv()
		wantNone(s.t, err)
		if message.GetShards() != shardCount || len(message.GetAnswers()) == 0 {
			s.t.Errorf("a message of %d answers and %d shards", len(message.GetAnswers()), message.GetShards())
		}
		for _, answer := range message.GetAnswers() {
			if s.got[answer.GetId()] != nil {
				s.t.Errorf("call %d is answered twice", answer.GetId())
			}
			s.got[answer.GetId()] = answer
		}
	}
	return s.got[id]
}

func (s *session) do(call *coordinatorv1.SessionCall) *coordinatorv1.SessionAnswer {
	s.t.Helper()
	return s.answer(s.send(call)[0])
}

// failed returns what a call failed with, as one by itself would have.
func failed(answer *coordinatorv1.SessionAnswer) error {
	wrong := answer.GetError()
	if wrong == nil {
		return nil
	}
	s := status.New(codes.Code(wrong.GetCode()), wrong.GetMessage()).Proto()
	s.Details = wrong.GetDetails()
	return status.FromProto(s).Err()
}

func reserveCall(request *coordinatorv1.ReserveRequest) *coordinatorv1.SessionCall {
	return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Reserve{Reserve: request}}
}

func commitCall(request *coordinatorv1.CommitRequest) *coordinatorv1.SessionCall {
	return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Commit{Commit: request}}
}

// Every call, answered as by itself: what is granted, refused, forwarded and malformed.
func TestSessionAnswersAsCallsDo(t *testing.T) {
	one := start(t, "n1", nil)
	first, _ := startTwo(t, nil)
	for _, test := range []struct {
		name   string
		n      *node
		leader string
	}{{"on the leader", one, "n1:7420"}, {"on another node", first, "n2:7420"}} {
		t.Run(test.name, func(t *testing.T) {
			s := openSession(t, test.n.coordinator)
			answer := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k"), AttemptId: attempt(1)}))
			grant := answer.GetReserve().GetGranted()
			if grant.GetFence() == 0 || answer.GetLeader() != test.leader || answer.Shard == nil {
				t.Fatalf("answer %v", answer)
			}
			if again := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k"), AttemptId: attempt(1)})); again.GetReserve().GetGranted().GetToken() != grant.GetToken() {
				t.Errorf("the same attempt: %v", again)
			}
			if other := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})); other.GetReserve().GetPending() == nil {
				t.Errorf("another attempt: %v", other)
			}
			wrong := s.do(commitCall(&coordinatorv1.CommitRequest{Identity: key("k"), Token: "!"}))
			if failure := wantReason(t, failed(wrong), reason.InvalidArgument); failure.Code != codes.InvalidArgument {
				t.Errorf("code %v", failure.Code)
			}
			if wrong.Shard != nil {
				t.Errorf("a shard of a call that was not looked at: %v", wrong)
			}
			extended := s.do(&coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Extend{Extend: &coordinatorv1.ExtendRequest{Identity: key("k"), Token: grant.GetToken()}}})
			if extended.GetExtend().GetRemaining().AsDuration() <= 0 {
				t.Errorf("extended: %v", extended)
			}
			done := s.do(commitCall(&coordinatorv1.CommitRequest{Identity: key("k"), Token: grant.GetToken(), Response: &coordinatorv1.Response{Code: 201}}))
			if done.GetCommit() == nil {
				t.Errorf("committed: %v", done)
			}
			released := s.do(&coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: &coordinatorv1.ReleaseRequest{Identity: key("k"), Token: grant.GetToken()}}})
			wantReason(t, failed(released), reason.AlreadyCommitted)
			if replay := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})); replay.GetReserve().GetCommitted().GetResponse().GetCode() != 201 {
				t.Errorf("replay: %v", replay)
			}
			wantReason(t, failed(s.do(&coordinatorv1.SessionCall{})), reason.InvalidArgument)
			late := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("late")})
			late.Timeout = durationpb.New(0)
			wantReason(t, failed(s.do(late)), reason.InvalidArgument)

			wantNone(t, s.stream.CloseSend())
			if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// Many calls at once are answered once each; small answers share messages.
func TestSessionOfManyCalls(t *testing.T) {
	n := start(t, "n1", nil)
	s := openSession(t, n.coordinator)
	const calls = 2500 // more than may be under way
	go func() {
		for from := 0; from < calls; from += 50 {
			batch := &coordinatorv1.SessionRequest{}
			for i := range 50 {
				call := reserveCall(&coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint("k", from+i))})
				call.Id = uint64(from + i + 1)
				batch.Calls = append(batch.Calls, call)
			}
			if s.stream.Send(batch) != nil {
				return
			}
		}
		_ = s.stream.CloseSend()
	}()
	messages, fences := 0, make(map[string]bool)
	for {
		message, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		wantNone(t, err)
		messages++
		for _, answer := range message.GetAnswers() {
			grant := answer.GetReserve().GetGranted()
			if grant == nil || fences[grant.GetToken()] {
				t.Fatalf("answer %v", answer)
			}
			fences[grant.GetToken()] = true
		}
	}
	if len(fences) != calls {
		t.Errorf("%d calls of %d are answered", len(fences), calls)
	}
	t.Logf("%d answers in %d messages", len(fences), messages)
}

// leaderless lets calls wait for a leader, longer than any of these tests.
func leaderless(cfg *rpc.Config) { cfg.Settings.LeaderWait = time.Minute }

// A call that waits holds up nobody, and ends when its caller gives it up, or its time is
// over.
func TestSessionCancelsAndTimesOut(t *testing.T) {
	n := start(t, "n1", leaderless)
	s := openSession(t, n.coordinator)
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
	waiting := s.send(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("a")}))[0]
	hurried := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("b")})
	hurried.Timeout = durationpb.New(20 * time.Millisecond)
	wantReason(t, failed(s.answer(s.send(hurried)[0])), reason.NoLeader)
	wantNone(t, s.stream.Send(&coordinatorv1.SessionRequest{Calls: []*coordinatorv1.SessionCall{
		{Id: 99, Call: &coordinatorv1.SessionCall_Cancel{Cancel: &coordinatorv1.SessionCancel{}}}, // there is none
		{Id: waiting, Call: &coordinatorv1.SessionCall_Cancel{Cancel: &coordinatorv1.SessionCancel{}}},
	}}))
	wantReason(t, failed(s.answer(waiting)), reason.NoLeader)
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
	if answer := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("a")})); answer.GetReserve().GetGranted() == nil {
		t.Errorf("what was given up has been carried out: %v", answer)
	}
}

// A call has been received with its message, however long it then waits to be started: what its
// caller gave up meanwhile is not carried out.
func TestSessionCountsTheTimeThatCallsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) {
			leaderless(cfg)
			cfg.Settings.SessionBytesMax = 16 << 20 // of which 8 MiB are for calls, 315 at most
		})
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
		calls := make([]*coordinatorv1.SessionCall, 400)
		for i := range calls {
			calls[i] = reserveCall(&coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint(i))})
		}
		last := calls[len(calls)-1]
		last.Timeout = durationpb.New(time.Second)
		s := openSession(t, n.coordinator)
		ids := s.send(calls...)
		time.Sleep(2 * time.Second)
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
		for _, id := range ids[:len(ids)-1] {
			if s.answer(id).GetReserve().GetGranted() == nil {
				t.Fatal("not granted")
			}
		}
		wantReason(t, failed(s.answer(last.GetId())), reason.DeadlineExceeded)
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// What no client of ours sends ends the session by name, and what was under way is
// answered before.
func TestSessionThatIsMisused(t *testing.T) {
	n := start(t, "n1", leaderless)
	s := openSession(t, n.coordinator)
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
	call := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("a")})
	call.Id, call.Timeout = 7, durationpb.New(100*time.Millisecond)
	twice := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("b")})
	twice.Id = 7
	s.send(call, twice)
	wantReason(t, failed(s.answer(7)), reason.NoLeader)
	_, err := s.stream.Recv()
	wantReason(t, err, reason.InvalidArgument)

	for name, raw := range map[string][]byte{
		"no message":       {0xff, 0xff},
		"a huge one":       append([]byte{0x0a, 0x80, 0x80, 0x80, 0x01}, make([]byte, 2<<20)...),
		"a malformed call": {0x0a, 0x02, 0x1a, 0x7f},
	} {
		stream, err := n.connection.NewStream(withTimeout(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
			coordinatorv1.CoordinatorService_Session_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
		wantNone(t, err)
		wantNone(t, stream.SendMsg(raw))
		err = stream.RecvMsg(new([]byte))
		if failure := reason.Of(err); failure.Reason != reason.InvalidArgument || !failure.Info {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node that stops answers what is under way, starts nothing more, and says so.
func TestSessionEndsWithTheNode(t *testing.T) {
	closing := make(chan struct{})
	n := start(t, "n1", func(cfg *rpc.Config) {
		cfg.Stopping = closing
		leaderless(cfg)
	})
	s := openSession(t, n.coordinator)
	s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("a")}))
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
	under := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("b")})
	s.next++
	under.Id = s.next
	// Calls of one message are started in its order: once the last is answered, the first
	// is under way.
	s.answer(s.send(under, &coordinatorv1.SessionCall{})[1])
	close(closing)
	n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
	if answer := s.answer(under.GetId()); answer.GetReserve().GetGranted() == nil {
		t.Errorf("under way: %v", answer)
	}
	_, err := s.stream.Recv()
	wantReason(t, err, reason.ShuttingDown)
}

// A client that asks for large answers over a session and does not read them is held to
// the same bound as any other, and what it held is given back when it goes.
func TestSessionThatIsNotRead(t *testing.T) {
	const bound = 8 << 20
	n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = bound })
	body := commitLarge(t, n, "k")
	client, dialed := dialTCP(t, n)
	ctx, cancel := context.WithCancel(withTimeout(t))
	defer cancel()
	stream, err := coordinatorv1.NewCoordinatorServiceClient(client).Session(ctx)
	wantNone(t, err)
	s := &session{t: t, stream: stream, got: make(map[uint64]*coordinatorv1.SessionAnswer)}
	if answer := s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})); !bytes.Equal(answer.GetReserve().GetCommitted().GetResponse().GetBody(), body) {
		t.Fatal("no replay")
	}
	connection := dialed()
	resume := connection.stall()
	for range 300 {
		s.send(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")}))
	}
	// The sender is held up while others are answered, and all that is held is bounded.
	for n.unsent() == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	for i := range 50 {
		granted(t, n, &coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint("other", i))})
		if held := n.unsent(); held > bound {
			t.Errorf("%d bytes are held, the bound is %d", held, bound)
		}
	}
	_ = connection.Close()
	resume()
	for n.unsent() > 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	if held := n.unsent(); held != 0 {
		t.Errorf("%d bytes are held for nobody", held)
	}
}

// Clients that ask without end and read nothing do not keep others from their answers for
// longer than they are borne, and what they held is free again.
func TestSessionsThatAreNotReadAreEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = 4 << 20 })
		commitLarge(t, n, "k")
		// A window that does not grow, so that little is enough to fill it.
		listener := bufconn.Listen(1 << 20)
		n.serve(t, listener)
		narrow, err := grpc.NewClient("passthrough:///narrow", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
			grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(1<<20))
		wantNone(t, err)
		client := coordinatorv1.NewCoordinatorServiceClient(narrow)
		var streams []grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
		for range 4 {
			stream, err := client.Session(t.Context())
			wantNone(t, err)
			streams = append(streams, stream)
			go func() { // until nothing is taken from it any more
				for id := uint64(1); ; id++ {
					call := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})
					call.Id = id
					if stream.Send(&coordinatorv1.SessionRequest{Calls: []*coordinatorv1.SessionCall{call}}) != nil {
						return
					}
				}
			}()
		}
		time.Sleep(9 * time.Second)
		if n.unsent() == 0 {
			t.Error("nothing is held: they are not stalled")
		}
		time.Sleep(2 * time.Second)
		for _, stream := range streams {
			var err error
			for err == nil {
				_, err = stream.Recv()
			}
			wantReason(t, err, reason.Overloaded)
		}
		synctest.Wait()
		if held := n.unsent(); held != 0 {
			t.Errorf("%d bytes are held for nobody", held)
		}
		// Another one has all the room.
		s := openSession(t, n.coordinator)
		calls := make([]*coordinatorv1.SessionCall, 1000)
		for i := range calls {
			calls[i] = reserveCall(&coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint("free", i))})
		}
		for _, id := range s.send(calls...) {
			if s.answer(id).GetReserve().GetGranted() == nil {
				t.Fatal("not granted")
			}
		}
		n.server.Stop()
		_, _ = n.connection.Close(), narrow.Close()
	})
}

// A connection has no more sessions than it may, and another one has its own.
func TestSessionsOfAConnectionAreBounded(t *testing.T) {
	const most = 16
	n := start(t, "n1", nil)
	var all []*session
	for range most {
		s := openSession(t, n.coordinator)
		s.do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")}))
		all = append(all, s)
	}
	_, err := openSession(t, n.coordinator).stream.Recv()
	if failure := wantReason(t, err, reason.Overloaded); !strings.Contains(failure.Message, "this connection has as many sessions open as it may, 16;") {
		t.Errorf("it does not say how many of what: %q", failure.Message)
	}
	client, _ := dialTCP(t, n)
	openSession(t, coordinatorv1.NewCoordinatorServiceClient(client)).do(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")}))
	// One that has ended makes room.
	wantNone(t, all[0].stream.CloseSend())
	if _, err := all[0].stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	s := openSession(t, n.coordinator)
	for _, id := range s.send(reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})) {
		s.answer(id)
	}
}

// What calls cost that are under way is bounded in all sessions together, and so is what is kept for
// those to come: goroutines are most of both.
func TestGoroutinesOfSessionsAreBounded(t *testing.T) {
	const (
		sessions, calls = 12, 1024
		mostUnderWay    = 128 << 20 / (26 << 10)
		mostIdle        = 512
		others          = 10 * sessions // of the streams and of gRPC, at both ends
	)
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", leaderless)
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
		before := runtime.NumGoroutine()
		var all []*session
		for i := range sessions {
			s := openSession(t, n.coordinator)
			batch := make([]*coordinatorv1.SessionCall, calls)
			for j := range batch {
				batch[j] = reserveCall(&coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint(i, "-", j))})
			}
			s.send(batch...)
			all = append(all, s)
		}
		synctest.Wait()
		if running := runtime.NumGoroutine() - before; running > mostUnderWay+others || running < mostUnderWay*9/10 {
			t.Errorf("%d goroutines for what is under way, about %d are right", running, mostUnderWay)
		}
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
		for _, s := range all {
			for id := range uint64(calls) {
				if s.answer(id+1).GetReserve().GetGranted() == nil {
					t.Fatal("not granted")
				}
			}
		}
		synctest.Wait()
		if idle := runtime.NumGoroutine() - before; idle > mostIdle+others {
			t.Errorf("%d goroutines are left for no calls", idle)
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// late is a stream whose client takes an answer a moment after it was given up.
type late struct {
	grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	ctx      context.Context
	requests chan *coordinatorv1.SessionRequest
}

func (s *late) Context() context.Context { return s.ctx }

func (s *late) Recv() (*coordinatorv1.SessionRequest, error) {
	select {
	case request := <-s.requests:
		return request, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *late) SendMsg(any) error {
	time.Sleep(10*time.Second + time.Millisecond)
	return nil
}

// registered keeps what is registered with it.
type registered struct {
	rpc.Server
	coordinator coordinatorv1.CoordinatorServiceServer
}

// RegisterService implements grpc.ServiceRegistrar.
func (r *registered) RegisterService(_ *grpc.ServiceDesc, service any) {
	if coordinator, ok := service.(coordinatorv1.CoordinatorServiceServer); ok {
		r.coordinator = coordinator
	}
}

// Nothing of a session is left when it has been ended, also where its client wakes up in
// that moment: the bubble waits for every goroutine.
func TestNothingIsLeftOfASessionThatIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var service registered
		cfg := rpc.Config{Shards: rpctest.New(shardCount, self("n1")), Cluster: &rpctest.Cluster{Self: "n1"}, Settings: rpc.Default()}
		wantNone(t, rpc.Register(cfg, &service))
		ctx, cancel := context.WithCancel(t.Context())
		stream := &late{ctx: ctx, requests: make(chan *coordinatorv1.SessionRequest, 1)}
		call := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})
		call.Id = 1
		stream.requests <- &coordinatorv1.SessionRequest{Calls: []*coordinatorv1.SessionCall{call}}
		wantReason(t, service.coordinator.Session(stream), reason.Overloaded)
		cancel() // as gRPC does
		time.Sleep(time.Second)
	})
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
