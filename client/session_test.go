package client

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// ending is a context whose time is over after it has been asked for its error so many times.
type ending struct {
	context.Context
	mu    sync.Mutex
	after int
}

func (e *ending) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.after--; e.after >= 0 {
		return nil
	}
	return context.DeadlineExceeded
}

// The session of a call ends before it is sent, and then the time of its try does. That is a try
// that took too long and that was not sent, and another may be made.
func TestATryThatEndsWithItsSession(t *testing.T) {
	for after := range 4 {
		ended := make(chan struct{})
		close(ended)
		s := newSharing(nil, true)
		s.session = &session{calls: map[uint64]*sharedCall{}, queued: make(chan struct{}, 1), ended: ended}
		request := &coordinatorv1.ReleaseRequest{}
		call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: request}}}
		var to peer.Peer
		_, err := callShared(&ending{Context: t.Context(), after: after}, s, call, (*coordinatorv1.SessionAnswer).GetRelease,
			func(ctx context.Context, _ *coordinatorv1.ReleaseRequest, _ ...grpc.CallOption) (*coordinatorv1.ReleaseResponse, error) {
				return nil, status.FromContextError(ctx.Err()).Err() // as gRPC does
			}, request, []grpc.CallOption{grpc.Peer(&to)})
		if failed := failure(callRelease, err, to.Addr != nil, false); err != nil && (failed.Code != codes.DeadlineExceeded || !failed.retriable || failed.MaybeApplied) {
			t.Errorf("over after %d looks: %+v", after, failed)
		}
	}
}

// slowService is a node whose sessions take what is sent only when they are told to.
type slowService struct {
	coordinatorv1.CoordinatorServiceClient
	take chan struct{}
	sent [][]byte
}

func (*slowService) Commit(context.Context, *coordinatorv1.CommitRequest, ...grpc.CallOption) (*coordinatorv1.CommitResponse, error) {
	return nil, status.Error(codes.Canceled, "")
}

func (s *slowService) Session(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse], error) {
	return &slowStream{service: s, ctx: ctx}, nil
}

type slowStream struct {
	grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	service *slowService
	ctx     context.Context
}

func (*slowStream) Header() (metadata.MD, error) { return nil, nil } //nolint:nilnil // it has none

func (s *slowStream) Recv() (*coordinatorv1.SessionResponse, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

func (s *slowStream) Send(message *coordinatorv1.SessionRequest) error {
	<-s.service.take
	wire, err := proto.Marshal(message)
	s.service.sent = append(s.service.sent, wire)
	return err
}

// A call may be encoded after its caller has given it up: what it was given for bytes is the
// caller's again by then, and what is sent is what was meant.
func TestBytesOfACallThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowService{take: make(chan struct{})}
		c, err := Dial([]string{"127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		s := c.router.endpoints[0].service
		s.CoordinatorServiceClient = node
		s.underWay.Add(sessionFrom)
		ctx, giveUp := context.WithCancel(t.Context())
		ended := make(chan error)
		body := []byte("mine")
		r := &Reservation{client: c, token: "t"}
		go func() { ended <- r.commit(ctx, Response{Body: body}, nil, c.callTimeout) }()
		synctest.Wait()
		giveUp()
		if err := <-ended; status.Code(err) == codes.OK {
			t.Fatal(err)
		}
		copy(body, "else")
		close(node.take)
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		var sent coordinatorv1.SessionRequest
		if len(node.sent) == 0 || proto.Unmarshal(node.sent[0], &sent) != nil || string(sent.GetCalls()[0].GetCommit().GetResponse().GetBody()) != "mine" {
			t.Errorf("%d messages, the first is %v", len(node.sent), &sent)
		}
	})
}

// What is kept of calls that were given up before they were sent is bounded, however long a node
// takes nothing.
func TestCallsThatAreGivenUpUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowService{take: make(chan struct{})}
		c, err := Dial([]string{"127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		s := c.router.endpoints[0].service
		s.CoordinatorServiceClient = node
		s.underWay.Add(sessionFrom)
		r := &Reservation{client: c, token: "t"}
		for range 30 {
			ctx, giveUp := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { _ = r.commit(ctx, Response{}, nil, c.callTimeout) })
			}
			synctest.Wait()
			giveUp()
			callers.Wait()
		}
		s.session.mu.Lock()
		kept := len(s.session.queue)
		s.session.mu.Unlock()
		if kept > sessionMost {
			t.Errorf("%d calls are kept that nobody waits for", kept)
		}
		close(node.take)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
