package client

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

const (
	// sessionFrom is how many calls are under way to a node before they share a stream.
	// With fewer a stream each is as good.
	sessionFrom = 16
	// sessionMost is how many share one; a node does not read more. Those beyond it have
	// a stream each.
	sessionMost = 1024
	// sharedBytesMost is the size of a call, from which on it has a stream of its own: it
	// would hold up the others.
	sharedBytesMost = 64 << 10
	// messageBytesEnough is how much goes into one message of calls.
	messageBytesEnough = 256 << 10
	// sessionIdle is how long a stream stays open while fewer are under way than that.
	sessionIdle = 5 * time.Second
)

// sharing makes the calls to one node. While many are under way they share a stream, which
// costs both ends less than a stream each. A call cannot tell: it has the same deadline,
// errors and headers, and one whose session broke is in doubt like one whose connection
// did.
type sharing struct {
	coordinatorv1.CoordinatorServiceClient // a stream for each call

	underWay atomic.Int64
	alone    atomic.Bool // no sessions: they are not wanted, or the node knows none

	mu      sync.Mutex
	session *session // nil: none is open
	closed  bool
	running sync.WaitGroup // what sessions run behind the scenes
}

// newSharing returns the calls over a connection. Without sessions each has a stream.
func newSharing(conn grpc.ClientConnInterface, sessions bool) *sharing {
	s := &sharing{CoordinatorServiceClient: coordinatorv1.NewCoordinatorServiceClient(conn)}
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

// Reserve implements coordinatorv1.CoordinatorServiceClient.
func (s *sharing) Reserve(ctx context.Context, request *coordinatorv1.ReserveRequest, options ...grpc.CallOption) (*coordinatorv1.ReserveResponse, error) {
	call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Reserve{Reserve: request}}}
	if request.GetWait().AsDuration() > 0 { // it may be held back for long
		call = nil
	}
	return callShared(ctx, s, call, (*coordinatorv1.SessionAnswer).GetReserve, s.CoordinatorServiceClient.Reserve, request, options)
}

// Commit implements coordinatorv1.CoordinatorServiceClient.
func (s *sharing) Commit(ctx context.Context, request *coordinatorv1.CommitRequest, options ...grpc.CallOption) (*coordinatorv1.CommitResponse, error) {
	call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Commit{Commit: request}}}
	return callShared(ctx, s, call, (*coordinatorv1.SessionAnswer).GetCommit, s.CoordinatorServiceClient.Commit, request, options)
}

// Release implements coordinatorv1.CoordinatorServiceClient.
func (s *sharing) Release(ctx context.Context, request *coordinatorv1.ReleaseRequest, options ...grpc.CallOption) (*coordinatorv1.ReleaseResponse, error) {
	call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: request}}}
	return callShared(ctx, s, call, (*coordinatorv1.SessionAnswer).GetRelease, s.CoordinatorServiceClient.Release, request, options)
}

// Extend implements coordinatorv1.CoordinatorServiceClient.
func (s *sharing) Extend(ctx context.Context, request *coordinatorv1.ExtendRequest, options ...grpc.CallOption) (*coordinatorv1.ExtendResponse, error) {
	call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Extend{Extend: request}}}
	return callShared(ctx, s, call, (*coordinatorv1.SessionAnswer).GetExtend, s.CoordinatorServiceClient.Extend, request, options)
}

// callShared makes a call over the session if it is worth one and there is one, and else by
// itself. A call that is nil is not to be shared.
func callShared[Q, A proto.Message](
	ctx context.Context, s *sharing, call *sharedCall,
	from func(*coordinatorv1.SessionAnswer) A,
	alone func(context.Context, Q, ...grpc.CallOption) (A, error),
	request Q, options []grpc.CallOption,
) (A, error) {
	underWay := s.underWay.Add(1)
	defer s.underWay.Add(-1)
	var none A
	if call == nil || s.alone.Load() || proto.Size(request) > sharedBytesMost {
		return alone(ctx, request, options...)
	}
	if _, tagged := metadata.FromOutgoingContext(ctx); tagged { // it would not be sent
		return alone(ctx, request, options...)
	}
	call.deadline, _ = ctx.Deadline()
	busy := underWay >= sessionFrom
	session := s.open(busy)
	if session == nil || !session.add(call, busy) {
		return alone(ctx, request, options...)
	}
	answer, err := session.wait(ctx, call)
	switch {
	case errors.Is(err, errNotSent): // where its time is over by now, gRPC says so
		return alone(ctx, request, options...)
	case err != nil && call.sent:
		fill(options, call, session.named()) // one of another cluster has done nothing in this one
		return none, err
	case err != nil:
		return none, err
	}
	fill(options, call, session.header(answer))
	if failed := answer.GetError(); failed != nil {
		return none, status.FromProto(&spb.Status{Code: failed.GetCode(), Message: failed.GetMessage(), Details: failed.GetDetails()}).Err()
	}
	got := from(answer)
	if !got.ProtoReflect().IsValid() {
		// The call was carried out, and what it came to is not understood.
		return none, status.Error(codes.Unavailable, "the node answered another call than it was asked for")
	}
	return got, nil
}

// fill does what a call that is made by itself does for its options.
func fill(options []grpc.CallOption, call *sharedCall, header metadata.MD) {
	for _, option := range options {
		switch option := option.(type) {
		case grpc.HeaderCallOption:
			*option.HeaderAddr = header
		case grpc.PeerCallOption:
			option.PeerAddr.Addr = call.peer
		}
	}
}

// open returns the session, or nil where there is none. It is opened where it is worth it.
func (s *sharing) open(worth bool) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil || s.closed || !worth || s.alone.Load() {
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
		err := x.run(ctx, s.CoordinatorServiceClient)
		if status.Code(err) == codes.Unimplemented {
			s.alone.Store(true)
		}
		s.mu.Lock()
		s.session = nil
		s.mu.Unlock()
		cancel()
		x.end(err)
	})
	return x
}

// session is one stream that calls share.
type session struct {
	cancel context.CancelFunc
	queued chan struct{} // capacity 1: there is something to send
	ended  chan struct{}

	mu     sync.Mutex
	last   uint64                 // id that was given out
	calls  map[uint64]*sharedCall // that have no answer yet, by id
	queue  []*sharedCall          // not sent yet, in order
	given  []uint64               // calls that their callers have given up, to be told
	shards uint32
	// cluster is what the node has named as its own, if it was asked.
	cluster []string
	told    map[uint32]toldHeader // by shard
	busy    bool                  // it was worth it, since that was looked at last
	err     error
}

// sharedCall is one call. What is below message is the session's until done is closed.
type sharedCall struct {
	message *coordinatorv1.SessionCall

	deadline time.Time // zero: none
	sent     bool      // it may have been
	peer     sessionPeer
	answer   *coordinatorv1.SessionAnswer
	done     chan struct{}
}

// sessionPeer says of a call that it may have been sent.
type sessionPeer struct{}

// Network implements net.Addr.
func (sessionPeer) Network() string { return "session" }

// String implements net.Addr.
func (sessionPeer) String() string { return "session" }

var (
	// errNotSent reports a call that the node cannot have received.
	errNotSent = errors.New("the session has ended before the call was sent")
	errIdle    = errors.New("the session was not worth it any more")
)

// add takes a call on, unless there are too many; those that were given up before they were sent
// are there until the node takes them.
func (x *session) add(call *sharedCall, busy bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if max(len(x.calls), len(x.queue)) >= sessionMost || x.err != nil {
		return false
	}
	x.last++
	call.message.Id = x.last
	call.done = make(chan struct{})
	x.calls[x.last] = call
	x.queue = append(x.queue, call)
	x.busy = x.busy || busy
	x.wake()
	return true
}

func (x *session) wake() {
	select {
	case x.queued <- struct{}{}:
	default:
	}
}

// wait waits for the answer, or for the end of the session or of ctx.
func (x *session) wait(ctx context.Context, call *sharedCall) (*coordinatorv1.SessionAnswer, error) {
	select {
	case <-call.done:
	case <-x.ended:
	case <-ctx.Done():
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.calls, call.message.GetId())
	switch {
	case call.answer != nil:
		return call.answer, nil
	case !call.sent:
		call.message = nil // the sender leaves it out
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, errNotSent
	case ctx.Err() != nil:
		x.given = append(x.given, call.message.GetId())
		x.wake()
		return nil, status.FromContextError(ctx.Err()).Err()
	case status.Code(x.err) == codes.Unimplemented:
		return nil, errNotSent
	}
	return nil, status.Error(codes.Unavailable, "the session has ended: "+x.err.Error())
}

// run sends what is queued and takes answers until the stream breaks, or is not worth it.
func (x *session) run(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) error {
	stream, err := service.Session(ctx)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- x.receive(stream) }()
	idle := time.NewTicker(sessionIdle)
	defer idle.Stop()
	for {
		select {
		case <-x.queued:
		case err := <-received:
			return err
		case <-idle.C:
			if x.idle() {
				x.cancel()
				return errors.Join(errIdle, <-received)
			}
		}
		runtime.Gosched() // those who are about to call go with it
		for message := x.take(); message != nil; message = x.take() {
			if err := stream.Send(message); err != nil {
				x.cancel()
				return <-received // which knows why
			}
		}
	}
}

// receive gives answers to their calls, and returns why there are no more.
func (x *session) receive(stream grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	header, err := stream.Header() // comes before the first message
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.cluster = header.Get(clusterKey)
	x.mu.Unlock()
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		x.mu.Lock()
		x.shards = message.GetShards()
		for _, answer := range message.GetAnswers() {
			if call := x.calls[answer.GetId()]; call != nil && call.sent {
				delete(x.calls, answer.GetId())
				call.answer = answer
				close(call.done)
			}
		}
		x.mu.Unlock()
	}
}

// take returns the next message of calls, or nil where nothing is queued.
func (x *session) take() *coordinatorv1.SessionRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	message := &coordinatorv1.SessionRequest{}
	for _, id := range x.given {
		message.Calls = append(message.Calls, &coordinatorv1.SessionCall{
			Id: id, Call: &coordinatorv1.SessionCall_Cancel{Cancel: &coordinatorv1.SessionCancel{}},
		})
	}
	x.given = nil
	bytes := 0
	for len(x.queue) > 0 && bytes < messageBytesEnough {
		call := x.queue[0]
		x.queue[0] = nil
		x.queue = x.queue[1:]
		if call.message == nil {
			continue // its caller has given it up
		}
		if !call.deadline.IsZero() {
			left := time.Until(call.deadline)
			if left <= 0 {
				continue // its caller is about to
			}
			call.message.Timeout = durationpb.New(left)
		}
		call.sent = true
		message.Calls = append(message.Calls, call.message)
		bytes += proto.Size(call.message)
	}
	if len(message.Calls) == 0 {
		x.queue = nil
		return nil
	}
	return message
}

// idle lets no more calls in once it was not worth it for a while, and reports whether none
// is left.
func (x *session) idle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.busy {
		x.err = errIdle
	}
	x.busy = false
	return x.err != nil && len(x.calls) == 0
}

// end tells the calls that are left why they have no answer.
func (x *session) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	close(x.ended)
}

// named returns the cluster that the node has named as its own, as a call by itself has it in its
// headers, refused or not.
func (x *session) named() metadata.MD {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.cluster) == 0 {
		return nil
	}
	return metadata.MD{clusterKey: x.cluster}
}

// header returns what an answer says, as a call by itself has it in its headers.
// Most answers say the same: the latest of each shard is kept, and nobody changes it.
func (x *session) header(answer *coordinatorv1.SessionAnswer) metadata.MD {
	x.mu.Lock()
	defer x.mu.Unlock()
	if told, ok := x.told[answer.GetShard()]; ok && told.shards == x.shards && told.known == (answer.Shard != nil) && told.leader == answer.GetLeader() {
		return told.header
	}
	header := metadata.Pairs(shardsKey, strconv.FormatUint(uint64(x.shards), 10))
	if answer.Shard != nil {
		header.Set(shardKey, strconv.FormatUint(uint64(answer.GetShard()), 10))
	}
	if answer.GetLeader() != "" {
		header.Set(leaderKey, answer.GetLeader())
	}
	if len(x.cluster) > 0 {
		header.Set(clusterKey, x.cluster...)
	}
	if _, kept := x.told[answer.GetShard()]; kept || len(x.told) < toldMost {
		x.told[answer.GetShard()] = toldHeader{shards: x.shards, known: answer.Shard != nil, leader: answer.GetLeader(), header: header}
	}
	return header
}

// toldHeader are the headers of an answer, and what they say.
type toldHeader struct {
	shards uint32
	known  bool // the shard is
	leader string
	header metadata.MD
}

// toldMost bounds of how many shards headers are kept.
const toldMost = 256
