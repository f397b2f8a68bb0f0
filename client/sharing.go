package client

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

const (
	// sessionFrom is how many calls are under way to a node before they share a stream.
	// With fewer a stream each is as good.
	sessionFrom = 16
	// sharedBytesMost is the size of a call, from which on it has a stream of its own: it
	// would hold up the others.
	sharedBytesMost = 64 << 10
)

// sharing makes the calls to one node. While many are under way they share a stream, which
// costs both ends less than a stream each. A call cannot tell: it has the same deadline,
// errors and headers, and one whose session broke is in doubt like one whose connection
// did.
type sharing struct {
	service coordinatorv1.CoordinatorServiceClient // a stream for each call
	named   func() bool                            // it is known which cluster calls are for

	underWay atomic.Int64 // of the calls that may be shared
	alone    atomic.Bool  // no sessions: they are not wanted, or the node knows none

	mu      sync.Mutex
	session *session  // nil: none is open
	refused time.Time // when the node last had no room for one; zero: never
	closed  bool
	running sync.WaitGroup // what sessions run behind the scenes
}

// newSharing returns the calls over a connection. Without sessions each has a stream. named
// reports whether it is known which cluster the calls are for: a session says so once, for all
// that it will ever carry, so that none is opened before.
func newSharing(conn grpc.ClientConnInterface, sessions bool, named func() bool) *sharing {
	s := &sharing{service: coordinatorv1.NewCoordinatorServiceClient(conn), named: named}
	s.alone.Store(!sessions)
	return s
}

// close ends the session, and waits for it. The connection has been closed.
func (s *sharing) close() {
	s.mu.Lock()
	s.closed = true
	session := s.session
	s.mu.Unlock()
	if session != nil {
		session.cancel()
	}
	s.running.Wait()
}

// reserve makes the call of this name, as the others do.
func (s *sharing) reserve(ctx context.Context, request *coordinatorv1.ReserveRequest) delivery[*coordinatorv1.ReserveResponse] {
	form := func(request *coordinatorv1.ReserveRequest) *coordinatorv1.SessionCall {
		return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Reserve{Reserve: request}}
	}
	if request.GetWait().AsDuration() > 0 { // it may be held back for long
		form = nil
	}
	return deliver(ctx, s, request, coordinatorv1.CoordinatorServiceClient.Reserve, form, (*coordinatorv1.SessionAnswer).GetReserve)
}

func (s *sharing) commit(ctx context.Context, request *coordinatorv1.CommitRequest) delivery[*coordinatorv1.CommitResponse] {
	return deliver(ctx, s, request, coordinatorv1.CoordinatorServiceClient.Commit, commitCall, (*coordinatorv1.SessionAnswer).GetCommit)
}

// commitCall is a commit as it goes over a session, with a body of its own: it may be encoded after
// its caller has given it up, and uses the bytes for something else.
func commitCall(request *coordinatorv1.CommitRequest) *coordinatorv1.SessionCall {
	response := request.GetResponse()
	return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Commit{Commit: &coordinatorv1.CommitRequest{
		Identity: request.GetIdentity(), Token: request.GetToken(), Retention: request.GetRetention(),
		Response: &coordinatorv1.Response{
			Code: response.GetCode(), Headers: response.GetHeaders(), ContentType: response.GetContentType(), Body: bytes.Clone(response.GetBody()),
		},
	}}}
}

func (s *sharing) release(ctx context.Context, request *coordinatorv1.ReleaseRequest) delivery[*coordinatorv1.ReleaseResponse] {
	form := func(request *coordinatorv1.ReleaseRequest) *coordinatorv1.SessionCall {
		return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: request}}
	}
	return deliver(ctx, s, request, coordinatorv1.CoordinatorServiceClient.Release, form, (*coordinatorv1.SessionAnswer).GetRelease)
}

func (s *sharing) extend(ctx context.Context, request *coordinatorv1.ExtendRequest) delivery[*coordinatorv1.ExtendResponse] {
	form := func(request *coordinatorv1.ExtendRequest) *coordinatorv1.SessionCall {
		return &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Extend{Extend: request}}
	}
	return deliver(ctx, s, request, coordinatorv1.CoordinatorServiceClient.Extend, form, (*coordinatorv1.SessionAnswer).GetExtend)
}

func (s *sharing) get(ctx context.Context, request *coordinatorv1.GetRequest) delivery[*coordinatorv1.GetResponse] {
	return byItself(ctx, s.service, request, coordinatorv1.CoordinatorServiceClient.Get)
}

func (s *sharing) resolve(ctx context.Context, request *coordinatorv1.ResolveRequest) delivery[*coordinatorv1.ResolveResponse] {
	return byItself(ctx, s.service, request, coordinatorv1.CoordinatorServiceClient.Resolve)
}

// deliver makes a call over the session where that can be, and else by itself. form makes of the
// request what goes over a session, and is nil where it is not to be shared; from finds the answer
// in what comes back.
func deliver[Q, A proto.Message](
	ctx context.Context, s *sharing, request Q, call method[Q, A],
	form func(Q) *coordinatorv1.SessionCall, from func(*coordinatorv1.SessionAnswer) A,
) delivery[A] {
	busy := s.underWay.Add(1) >= sessionFrom
	defer s.underWay.Add(-1)
	if form != nil {
		if came, was := shared(ctx, s, request, form, busy); was {
			return fromSession(came, from)
		}
	}
	return byItself(ctx, s.service, request, call)
}

// shared makes a call over the session if it is worth one and there is one. It reports false where
// the node cannot have received it, and it is to be made by itself.
func shared[Q proto.Message](
	ctx context.Context, s *sharing, request Q, form func(Q) *coordinatorv1.SessionCall, busy bool,
) (delivery[*coordinatorv1.SessionAnswer], bool) {
	var none delivery[*coordinatorv1.SessionAnswer]
	if s.alone.Load() || proto.Size(request) > sharedBytesMost {
		return none, false
	}
	if _, tagged := metadata.FromOutgoingContext(ctx); tagged { // it would not be sent
		return none, false
	}
	session := s.open(busy)
	if session == nil {
		return none, false
	}
	deadline, _ := ctx.Deadline()
	call := session.add(form(request), deadline, busy)
	if call == nil {
		return none, false
	}
	return session.wait(ctx, call)
}

// open returns the session, or nil where there is none. It is opened where it is worth it.
func (s *sharing) open(worth bool) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := !s.refused.IsZero() && time.Since(s.refused) < sessionIdle
	if s.session != nil || s.closed || !worth || full || s.alone.Load() || !s.named() {
		return s.session
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &session{
		cancel: cancel,
		calls:  make(map[uint64]*sharedCall),
		told:   make(map[uint32]toldHeader),
		queued: make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
	s.session = x
	s.running.Go(func() {
		err := x.run(ctx, s.service)
		if status.Code(err) == codes.Unimplemented {
			s.alone.Store(true)
		}
		s.mu.Lock()
		s.session = nil
		if errors.Is(err, errNoRoom) {
			s.refused = time.Now()
		}
		s.mu.Unlock()
		cancel()
		x.end(err)
	})
	return x
}
