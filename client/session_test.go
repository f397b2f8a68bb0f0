package client

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/metakey"
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
		s := newSharing(nil, true, func() bool { return true })
		s.session = &session{calls: map[uint64]*sharedCall{}, queued: make(chan struct{}, 1), ended: ended}
		request := &coordinatorv1.ReleaseRequest{}
		came := deliver(&ending{Context: t.Context(), after: after}, s, request,
			func(_ coordinatorv1.CoordinatorServiceClient, ctx context.Context, _ *coordinatorv1.ReleaseRequest, _ ...grpc.CallOption) (*coordinatorv1.ReleaseResponse, error) {
				return nil, status.FromContextError(ctx.Err()).Err() // as gRPC does
			}, func(*coordinatorv1.ReleaseRequest) *coordinatorv1.SessionCall { return &coordinatorv1.SessionCall{} }, (*coordinatorv1.SessionAnswer).GetRelease)
		if failed := failure(callRelease, came.err, came.reached, false); came.err != nil && (failed.Code != codes.DeadlineExceeded || !failed.retriable || failed.MaybeApplied) {
			t.Errorf("over after %d looks: %+v", after, failed)
		}
	}
}

// What a try is told of a call of a session, however far that has come and whatever ends it.
func TestWhatACallOfASessionComesTo(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	broke, idle, unknown := status.Error(codes.Unavailable, "broke"), errIdle, status.Error(codes.Unimplemented, "")
	for _, row := range []struct {
		name      string
		sent      bool // else it is queued
		answered  bool
		ctx       context.Context
		ended     error // of the session; nil: it goes on
		elsewhere bool  // it is to be made by itself
		code      codes.Code
		reached   bool
		told      bool // the node is, that nobody waits
	}{
		{"answered", true, true, t.Context(), nil, false, codes.OK, true, false},
		{"answered as its caller goes", true, true, cancelled, nil, false, codes.OK, true, false},
		{"answered as the session ends", true, true, t.Context(), broke, false, codes.OK, true, false},
		{"its caller goes before it is sent", false, false, cancelled, nil, false, codes.Canceled, false, false},
		{"its caller goes after it was sent", true, false, cancelled, nil, false, codes.Canceled, true, true},
		{"the session ends before it is sent", false, false, t.Context(), broke, true, codes.OK, false, false},
		{"the session ends after it was sent", true, false, t.Context(), broke, false, codes.Unavailable, true, false},
		{"the session is worth it no more", true, false, t.Context(), idle, false, codes.Unavailable, true, false},
		{"the node knows no sessions", true, false, t.Context(), unknown, true, codes.OK, false, false},
		{"an answer to what was not sent", false, true, t.Context(), broke, true, codes.OK, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			x := &session{
				calls: map[uint64]*sharedCall{}, told: map[uint32]toldHeader{}, cluster: []string{"c"},
				queued: make(chan struct{}, 1), ended: make(chan struct{}),
			}
			call := x.add(&coordinatorv1.SessionCall{}, time.Time{}, true)
			if row.sent && len(x.take().GetCalls()) != 1 {
				t.Fatal("it was not sent")
			}
			if row.answered && call.take(&coordinatorv1.SessionAnswer{}) != row.sent {
				t.Fatal("what was sent takes an answer, and nothing else does")
			}
			if row.ended != nil {
				x.end(row.ended)
			}
			came, was := x.wait(row.ctx, call)
			if was == row.elsewhere {
				t.Fatalf("is to be made by itself: %v", !was)
			}
			if !row.elsewhere && (status.Code(came.err) != row.code || came.reached != row.reached || (came.answer != nil) != (row.code == codes.OK)) {
				t.Errorf("%+v", came)
			}
			// What the node said of its cluster is told of what it may have received.
			if !row.elsewhere && (len(came.header.Get(metakey.Cluster)) == 1) != row.reached {
				t.Errorf("header %v", came.header)
			}
			message := x.take()
			if told := len(message.GetCalls()) == 1 && message.GetCalls()[0].GetCancel() != nil; told != row.told || !told && message != nil {
				t.Errorf("sent then: %v", message)
			}
			if !row.answered && call.take(&coordinatorv1.SessionAnswer{}) {
				t.Error("what was dropped takes an answer")
			}
		})
	}
}

// A call whose time is over before it is sent never is.
func TestACallWhoseTimeIsOverIsNotSent(t *testing.T) {
	x := &session{calls: map[uint64]*sharedCall{}, queued: make(chan struct{}, 1)}
	late := x.add(&coordinatorv1.SessionCall{}, time.Now(), true)
	if soon := x.add(&coordinatorv1.SessionCall{}, time.Now().Add(time.Hour), true); len(x.take().GetCalls()) != 1 || !soon.drop() {
		t.Error("one that has time left is not sent")
	}
	if late.send() || late.drop() {
		t.Error("it may have been sent")
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

// dialSlow returns a client of that service, whose calls share a stream, and what makes them.
func dialSlow(t *testing.T, node *slowService) (*Client, *sharing) {
	t.Helper()
	c, err := Dial([]string{"127.0.0.1:1"}, WithCluster(strings.Repeat("0f", clusterIDLength/2)))
	if err != nil {
		t.Fatal(err)
	}
	s := c.router.endpoints[0].service
	s.service = node
	s.underWay.Add(sessionFrom)
	return c, s
}

// A call may be encoded after its caller has given it up: what it was given for bytes is the
// caller's again by then, and what is sent is what was meant.
func TestBytesOfACallThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowService{take: make(chan struct{})}
		c, _ := dialSlow(t, node)
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

// byHand is a node that keeps the bytes that it was given for a body.
type byHand struct {
	coordinatorv1.CoordinatorServiceClient
	body []byte
}

func (s *byHand) Commit(_ context.Context, request *coordinatorv1.CommitRequest, _ ...grpc.CallOption) (*coordinatorv1.CommitResponse, error) {
	s.body = request.GetResponse().GetBody()
	return &coordinatorv1.CommitResponse{}, nil
}

// A body is copied where it goes into a stream that others share, and nowhere else: gRPC has
// encoded it by the time at which a call by itself returns.
func TestOnlyWhatIsSharedIsCopied(t *testing.T) {
	body := make([]byte, sharedBytesMost+1)
	node := &byHand{}
	s := newSharing(nil, true, func() bool { return true })
	s.service = node
	all := Response{Code: 7, Headers: []Header{{"a", "b"}}, ContentType: "text/x", Body: body}
	request := &coordinatorv1.CommitRequest{Identity: Identity{Key: "k"}.wire(), Token: "t", Response: all.wire(), Retention: durationpb.New(time.Hour)}
	for _, message := range []protoreflect.Message{request.ProtoReflect(), request.GetResponse().ProtoReflect()} {
		for i := range message.Descriptor().Fields().Len() {
			if field := message.Descriptor().Fields().Get(i); !message.Has(field) {
				t.Errorf("%s is not looked at here", field.FullName())
			}
		}
	}
	if came := s.commit(t.Context(), request); came.err != nil || &node.body[0] != &body[0] {
		t.Errorf("a call by itself: %v, copied", came.err)
	}
	shared := commitCall(request)
	if !proto.Equal(shared.GetCommit(), request) || &shared.GetCommit().GetResponse().GetBody()[0] == &body[0] || &request.GetResponse().GetBody()[0] != &body[0] {
		t.Errorf("one that is shared: %v", shared)
	}
}

// What is kept of calls that were given up before they were sent is bounded, however long a node
// takes nothing.
func TestCallsThatAreGivenUpUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowService{take: make(chan struct{})}
		c, s := dialSlow(t, node)
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
