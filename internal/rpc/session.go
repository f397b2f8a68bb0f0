package rpc

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Bounds of one session.
const (
	// sessionCallsMax is how many calls are under way, and sessionBytesMax how many bytes
	// of requests. Whoever sends more waits, as it is not read.
	sessionCallsMax = 1024
	sessionBytesMax = 4 << 20
	// sessionAnswersMax and sessionAnswerBytesMax are what is put into one message of
	// answers that are done at the same time.
	sessionAnswersMax     = 256
	sessionAnswerBytesMax = 64 << 10
	// sessionsBytesMax bounds what is under way in all sessions of a node: the bytes of the
	// requests, and callBytes for each call. Beyond it no session is read.
	sessionsBytesMax = 64 << 20
	callBytes        = 1 << 10
	// sessionStalledMax is how long a client may take no answers. Its session is ended then,
	// so that it does not keep what others need.
	sessionStalledMax = 10 * time.Second
	// sessionIdleMax is how many goroutines of a session wait for further calls: their
	// stacks have grown already.
	sessionIdleMax = 64
)

// Session implements coordinatorv1.CoordinatorServiceServer.
//
// A call of a session takes the same way as one that is made by itself: through the
// handler of its method, with a context that has its deadline, what its answer holds, and
// a place for its headers.
func (s *coordinatorService) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	x := &session{
		service: s,
		stream:  stream,
		ctx:     ctx,
		link:    linkOf(ctx),
		room:    newRoom(sessionCallsMax, sessionBytesMax),
		running: make(map[uint64]context.CancelFunc),
		answers: make(chan sessionAnswer, sessionCallsMax),
		stalled: make(chan struct{}, 1),
		work:    make(chan sessionWork),
	}
	x.accepting, x.stop = context.WithCancel(ctx)
	defer context.AfterFunc(ctx, x.room.close)()
	defer x.drop()
	defer cancel()

	// A receiver that waits for the next message ends with the stream, after this returns.
	received := make(chan error, 1)
	go func() { received <- x.receive() }()
	sent := make(chan error, 1)
	go func() { sent <- x.send() }()

	var err error
	select {
	case err = <-received: // no more calls, or none that can be read
	case err = <-sent: // the stream is broken
		return err
	case <-x.stalled:
		return stalled()
	case <-s.closing:
		err = reason.Error(reason.ShuttingDown, "")
	}
	x.finish()
	select {
	case failed := <-sent:
		if failed != nil {
			return failed
		}
		return err
	case <-x.stalled:
		return stalled()
	}
}

// stalled is how a session ends whose client takes no answers.
func stalled() error {
	return reason.Error(reason.Overloaded, "the client takes no answers; what it was not told is to be asked again")
}

// session is one stream with its calls.
type session struct {
	service *coordinatorService
	stream  grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	ctx     context.Context
	link    *link
	room    *room
	stalled chan struct{} // capacity 1: the client takes no answers

	accepting context.Context // calls are started until it ends
	stop      context.CancelFunc

	mu      sync.Mutex
	running map[uint64]context.CancelFunc // by the call's id
	ended   bool                          // no call is started any more
	calls   sync.WaitGroup                // none is added once it has ended

	// work hands a call to a goroutine that has nothing to do; there are idle of them.
	work chan sessionWork
	idle atomic.Int32

	// answers has room for every call that is under way: putting one in never blocks.
	answers chan sessionAnswer
}

// sessionAnswer is an answer on its way out.
type sessionAnswer struct {
	message *coordinatorv1.SessionAnswer
	held    *held // what it holds until gRPC has written it
	request int   // bytes of the request
	large   bool  // it goes out by itself
}

// end starts no more calls, and waits for those that are under way.
func (x *session) end() {
	x.stop()
	x.room.close()
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	x.calls.Wait()
}

// finish lets what is under way be answered, and the sender end.
func (x *session) finish() {
	x.end()
	close(x.answers)
}

// drop gives back what is held by answers that nobody will send.
func (x *session) drop() {
	x.end()
	for {
		select {
		case answer, ok := <-x.answers:
			if !ok {
				return
			}
			x.settle(answer, false)
		default:
			return
		}
	}
}

// receive starts calls until there are no more, and returns nil at the end.
func (x *session) receive() error {
	for {
		request, err := x.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		for _, call := range request.GetCalls() {
			if err := x.start(call); err != nil {
				return err
			}
		}
	}
}

// start starts one call once there is room for it.
func (x *session) start(call *coordinatorv1.SessionCall) error {
	received := time.Now()
	if call.GetCancel() != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if cancel := x.running[call.GetId()]; cancel != nil {
			cancel()
		}
		return nil
	}
	size := proto.Size(call)
	if !x.room.take(size) {
		return nil // the session is ending: what is not started is not answered
	}
	if x.service.sessions.Acquire(x.accepting, int64(callBytes+size)) != nil {
		x.room.give(size)
		return nil // as above
	}
	ctx, cancel := context.WithCancel(x.ctx)
	if err := x.admit(call.GetId(), cancel); err != nil {
		cancel()
		x.give(size)
		return err
	}
	w := sessionWork{ctx: ctx, cancel: cancel, call: call, received: received, size: size}
	select {
	case x.work <- w:
	default:
		go x.serve(w)
	}
	return nil
}

// sessionWork is a call that is to be carried out.
type sessionWork struct {
	ctx      context.Context
	cancel   context.CancelFunc
	call     *coordinatorv1.SessionCall
	received time.Time
	size     int
}

// serve carries out a call, and then others, as long as no more than enough goroutines
// wait for one.
func (x *session) serve(w sessionWork) {
	for {
		x.carryOut(w)
		if x.idle.Add(1) > sessionIdleMax {
			x.idle.Add(-1)
			return
		}
		select {
		case w = <-x.work:
			x.idle.Add(-1)
		case <-x.ctx.Done():
			return
		}
	}
}

func (x *session) carryOut(w sessionWork) {
	defer x.calls.Done()
	defer w.cancel()
	answer := x.answer(w.ctx, w.call, w.received)
	answer.request = w.size
	x.mu.Lock()
	delete(x.running, w.call.GetId())
	x.mu.Unlock()
	x.answers <- answer
}

// give gives back what a call took.
func (x *session) give(size int) {
	x.service.sessions.Release(int64(callBytes + size))
	x.room.give(size)
}

// settle is the end of an answer: gRPC has it, or nobody will.
func (x *session) settle(answer sessionAnswer, sent bool) {
	if !sent || !answer.large {
		answer.held.end()
	}
	x.give(answer.request)
}

// errEnding reports a call that came too late to be started.
var errEnding = errors.New("the session is ending")

// admit counts a call as one that is under way.
func (x *session) admit(id uint64, cancel context.CancelFunc) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return errEnding
	}
	if _, twice := x.running[id]; twice {
		return invalid("calls.id", "%d is that of a call that is under way", id)
	}
	x.running[id] = cancel
	x.calls.Add(1)
	return nil
}

// answer carries a call out.
func (x *session) answer(ctx context.Context, call *coordinatorv1.SessionCall, received time.Time) sessionAnswer {
	holds := &held{node: x.service.unsent, link: x.link}
	headers := &sessionHeaders{}
	ctx = context.WithValue(ctx, heldKey{}, holds)
	ctx = grpc.NewContextWithServerTransportStream(ctx, headers)
	answer := &coordinatorv1.SessionAnswer{Id: call.GetId()}
	err := x.call(ctx, call, answer, received)
	x.service.calls.ofSession(call, answer, received, err)
	if err != nil {
		holds.end()
		failed := status.Convert(err).Proto()
		answer.Result = &coordinatorv1.SessionAnswer_Error{Error: &coordinatorv1.SessionError{
			Code: failed.GetCode(), Message: failed.GetMessage(), Details: failed.GetDetails(),
		}}
	}
	answer.Shard, answer.Leader = headers.shard, headers.leader
	return sessionAnswer{message: answer, held: holds, large: proto.Size(answer) > unsentFree}
}

// call hands a call to the handler of its method.
func (x *session) call(
	ctx context.Context, call *coordinatorv1.SessionCall, answer *coordinatorv1.SessionAnswer, received time.Time,
) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = Panicked(x.service.logger, coordinatorv1.CoordinatorService_Session_FullMethodName, cause)
		}
	}()
	if call.GetTimeout() != nil {
		timeout, err := decodeWindow("timeout", call.GetTimeout(), 0, time.Nanosecond, timeoutMax)
		if err != nil {
			return err
		}
		deadline, cancel := context.WithDeadline(ctx, received.Add(timeout))
		defer cancel()
		ctx = deadline
	}
	switch called := call.GetCall().(type) {
	case *coordinatorv1.SessionCall_Reserve:
		done, err := x.service.Reserve(ctx, called.Reserve)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Reserve{Reserve: done}
		}
		return err
	case *coordinatorv1.SessionCall_Commit:
		done, err := x.service.Commit(ctx, called.Commit)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Commit{Commit: done}
		}
		return err
	case *coordinatorv1.SessionCall_Release:
		done, err := x.service.Release(ctx, called.Release)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Release{Release: done}
		}
		return err
	case *coordinatorv1.SessionCall_Extend:
		done, err := x.service.Extend(ctx, called.Extend)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Extend{Extend: done}
		}
		return err
	}
	return invalid("call", "is required: reserve, commit, release or extend")
}

// timeoutMax is the longest that a call may be given: more than any is worked on.
const timeoutMax = 365 * 24 * time.Hour

// send sends answers, those that are done at the same time in one message, until there
// are no more. A call is under way until its answer has been given to gRPC, which waits
// for a client that does not read.
func (x *session) send() error {
	var next *sessionAnswer // taken, and too large to go with those before it
	for {
		var batch []sessionAnswer
		if next != nil {
			batch, next = append(batch, *next), nil
		} else {
			first, more := <-x.answers
			if !more {
				return nil
			}
			batch = append(batch, first)
			runtime.Gosched() // those that are about to be done go with it
		}
		size := proto.Size(batch[0].message)
	gather:
		for !batch[0].large && len(batch) < sessionAnswersMax && size < sessionAnswerBytesMax {
			select {
			case another, more := <-x.answers:
				switch {
				case !more:
					break gather
				case another.large:
					next = &another
					break gather
				}
				batch = append(batch, another)
				size += proto.Size(another.message)
			default:
				break gather
			}
		}
		if err := x.write(batch); err != nil {
			if next != nil {
				x.settle(*next, false)
			}
			return err
		}
	}
}

// write sends one message. A large answer is alone in its message, which gives back what
// the answer holds once it is written.
func (x *session) write(batch []sessionAnswer) error {
	message := &coordinatorv1.SessionResponse{
		Answers: make([]*coordinatorv1.SessionAnswer, len(batch)),
		Shards:  uint32(x.service.shards.Shards()),
	}
	for i, answer := range batch {
		message.Answers[i] = answer.message
	}
	timer := time.AfterFunc(sessionStalledMax, func() { x.stalled <- struct{}{} })
	var err error
	if batch[0].large {
		err = x.stream.SendMsg(answered{message, batch[0].held})
	} else {
		err = x.stream.Send(message)
	}
	timer.Stop()
	for _, answer := range batch {
		x.settle(answer, err == nil)
	}
	return err
}

// sessionHeaders stands for the headers of one call, which would be the stream's: see
// [server.tell]. Whoever sets others has them dropped.
type sessionHeaders struct {
	shard  *uint32
	leader string
}

// Method implements [grpc.ServerTransportStream].
func (*sessionHeaders) Method() string {
	return coordinatorv1.CoordinatorService_Session_FullMethodName
}

// SetHeader implements [grpc.ServerTransportStream].
func (*sessionHeaders) SetHeader(metadata.MD) error { return nil }

// SendHeader implements [grpc.ServerTransportStream].
func (*sessionHeaders) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements [grpc.ServerTransportStream].
func (*sessionHeaders) SetTrailer(metadata.MD) error { return nil }

// room bounds what is under way: calls, and their bytes. A call that is larger than the
// bound by itself is let in alone.
type room struct {
	mu                  sync.Mutex
	changed             *sync.Cond
	calls, bytes        int
	callsMost, byteMost int
	closed              bool
}

func newRoom(calls, bytes int) *room {
	r := &room{callsMost: calls, byteMost: bytes}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// take waits for room, and reports whether there is some: not after it was closed.
func (r *room) take(bytes int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && r.calls > 0 && (r.calls >= r.callsMost || r.bytes+bytes > r.byteMost) {
		r.changed.Wait()
	}
	if r.closed {
		return false
	}
	r.calls++
	r.bytes += bytes
	return true
}

// give gives back what one call took.
func (r *room) give(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
	r.bytes -= bytes
	r.changed.Signal()
}

// close lets nothing in any more.
func (r *room) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changed.Broadcast()
}
