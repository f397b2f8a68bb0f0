package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
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
	// callBytes is what a call is counted at, beside twice the bytes of its request, which is
	// there as it came and as it is passed on, until it has been carried out; then its answer is,
	// beside its bytes, at answerBytes until gRPC has it.
	//
	// Of 2,000 Reserves that waited here each took 8.0 KiB of stack, and 2.3 to 3.0 KiB for its
	// contexts, its request and what the shard keeps of it. One that is forwarded takes 18 KiB of
	// stacks, and 8 KiB with gRPC's stream: it is not known before which one it is. An answer that
	// waits is a message with a token, and what is counted of it.
	callBytes   = 26 << 10
	answerBytes = 1 << 10
	// sessionBytes is what a session is counted at while it is open: 25 KiB for its stacks, its
	// contexts and gRPC's stream, 256 KiB that gRPC keeps of what is sent and not read
	// ([shard.StreamWindow]), and 128 KiB of answers that it has taken and not sent: its quota and
	// one message.
	sessionBytes = 416 << 10
	// sessionStalledMax is how long a client may take no answers. Its session is ended then,
	// so that it does not keep what others need.
	sessionStalledMax = 10 * time.Second
	// sessionsOfLinkMax is how many sessions a connection may have. A client is served as well by
	// one as by many.
	sessionsOfLinkMax = 16
	// sessionsIdleMax is how many goroutines of all sessions wait for further calls: their
	// stacks have grown already, to 8 KiB.
	sessionsIdleMax = 512
)

// sessionRoom is what all sessions of a node may take, [Settings].SessionBytesMax altogether: a
// quarter for the sessions that are open, beyond which none is opened; a quarter for their
// messages, each for as long as calls of it wait to be started, beyond which a session that sends
// one is ended; and a half for their calls and answers, beyond which calls wait. What is left to
// wait for, then, is calls that are under way, and each of those ends.
type sessionRoom struct {
	sessionsMax     int
	messagesMax     int64 // bytes
	messages, calls *semaphore.Weighted
}

func newSessionRoom(bytes int64) sessionRoom {
	return sessionRoom{
		sessionsMax: int(bytes / 4 / sessionBytes),
		messagesMax: bytes / 4,
		messages:    semaphore.NewWeighted(bytes / 4),
		calls:       semaphore.NewWeighted(bytes / 2),
	}
}

// Session implements coordinatorv1.CoordinatorServiceServer.
//
// A call of a session takes the same way as one that is made by itself: through the
// handler of its method, with a context that has its deadline, what its answer holds, and
// a place for what would be its headers.
func (s *coordinatorService) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	link := linkOf(stream.Context())
	if err := s.workers.open(link); err != nil {
		return err
	}
	defer s.workers.close(link)
	ctx, cancel := context.WithCancel(stream.Context())
	x := &session{
		service: s,
		stream:  stream,
		ctx:     ctx,
		link:    link,
		room:    newRoom(sessionCallsMax, sessionBytesMax),
		running: make(map[uint64]context.CancelFunc),
		answers: newAnswers(),
		stalled: make(chan struct{}, 1),
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
	case <-s.stopping:
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

	answers *answers // that are done; no more come once no call is under way
}

// sessionAnswer is an answer on its way out.
type sessionAnswer struct {
	message *coordinatorv1.SessionAnswer
	bytes   int
	held    *held // what it holds until gRPC has written it
	request int   // bytes of the request
	counted int64 // bytes that it has of what calls and answers of all sessions may have
}

// large reports whether an answer goes out by itself.
func (a sessionAnswer) large() bool { return a.bytes > unsentFree }

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
	x.answers.end()
}

// drop lets what is under way end, and gives back what is held by answers that nobody
// will send. A sender that is still there finds that there are no more.
func (x *session) drop() {
	x.finish()
	for _, answer := range x.answers.take() {
		x.settle(answer, false)
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
		if err := x.startAll(request); err != nil {
			return err
		}
	}
}

// startAll starts the calls of one message, which is kept until the last of them has been.
func (x *session) startAll(request *coordinatorv1.SessionRequest) error {
	received := time.Now()
	size := int64(len(request.ProtoReflect().GetUnknown()))
	if !x.service.sessions.messages.TryAcquire(size) {
		return reason.Error(reason.Overloaded, fmt.Sprintf(
			"as many bytes of calls wait in the sessions of this node as may, %d; what is not answered is to be asked again", x.service.sessions.messagesMax))
	}
	defer x.service.sessions.messages.Release(size)
	for call, err := range callsOf(request) {
		if err == nil {
			err = x.start(call, received)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// start starts one call once there is room for it. Its time has run since it was received: its
// caller may have given it up, and is not heard before all that it has sent has been started.
func (x *session) start(came receivedCall, received time.Time) error {
	call := came.call
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
	if x.service.sessions.calls.Acquire(x.accepting, costOf(size)) != nil {
		x.room.give(size)
		return nil // as above
	}
	w := &sessionWork{session: x, call: call, received: received, size: size, wrong: came.wrong, held: held{node: x.service.unsent, link: x.link}}
	w.begin(x.ctx)
	if err := x.admit(call.GetId(), w.cancel); err != nil {
		w.cancel()
		x.give(size, costOf(size))
		return err
	}
	x.service.workers.give(w)
	return nil
}

// sessionWork is a call that is to be carried out, and its context: what its answer holds
// and says of its shard is found by it.
type sessionWork struct {
	context.Context // ends with the session, at the call's deadline, or when it is cancelled
	cancel          context.CancelFunc

	session  *session
	call     *coordinatorv1.SessionCall
	received time.Time
	size     int
	wrong    error // with the call
	held     held
	told     told
}

// begin gives the call a context of the session's.
func (w *sessionWork) begin(ctx context.Context) {
	if w.call.GetTimeout() != nil {
		var timeout time.Duration
		if timeout, w.wrong = decodeWindow("timeout", w.call.GetTimeout(), 0, time.Nanosecond, timeoutMax); w.wrong == nil {
			w.Context, w.cancel = context.WithDeadline(ctx, w.received.Add(timeout))
			return
		}
	}
	w.Context, w.cancel = context.WithCancel(ctx)
}

// Value implements [context.Context].
func (w *sessionWork) Value(key any) any {
	switch key.(type) {
	case heldKey:
		return &w.held
	case toldKey:
		return &w.told
	}
	return w.Context.Value(key)
}

// costOf is what a call is counted at whose request has so many bytes.
func costOf(request int) int64 { return callBytes + 2*int64(request) }

func (x *session) carryOut(w *sessionWork) {
	defer x.calls.Done()
	defer w.cancel()
	answer := x.answer(w)
	x.mu.Lock()
	delete(x.running, w.call.GetId())
	x.mu.Unlock()
	w.call = nil // what the answer holds may be kept for longer
	answer.counted = answerBytes
	if !answer.large() { // otherwise it is counted as one that is not sent yet
		answer.counted += int64(answer.bytes)
	}
	x.service.sessions.calls.Release(costOf(w.size) - answer.counted)
	answer.held.done()
	x.answers.put(answer)
}

// give gives back what a call took.
func (x *session) give(request int, counted int64) {
	x.service.sessions.calls.Release(counted)
	x.room.give(request)
}

// settle is the end of an answer: gRPC has it, or nobody will.
func (x *session) settle(answer sessionAnswer, sent bool) {
	if !sent || !answer.large() {
		answer.held.end()
	}
	x.give(answer.request, answer.counted)
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
func (x *session) answer(w *sessionWork) sessionAnswer {
	answer := &coordinatorv1.SessionAnswer{Id: w.call.GetId()}
	err := x.call(w, answer)
	x.service.calls.ofSession(w.call, answer, w.received, err)
	if err != nil {
		w.held.end()
		failed := status.Convert(err).Proto()
		answer.Result = &coordinatorv1.SessionAnswer_Error{Error: &coordinatorv1.SessionError{
			Code: failed.GetCode(), Message: failed.GetMessage(), Details: failed.GetDetails(),
		}}
	}
	answer.Shard, answer.Leader = w.told.shard, w.told.leader
	return sessionAnswer{message: answer, bytes: proto.Size(answer), held: &w.held, request: w.size}
}

// call hands a call to the handler of its method.
func (x *session) call(w *sessionWork, answer *coordinatorv1.SessionAnswer) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = Panicked(x.service.logger, coordinatorv1.CoordinatorService_Session_FullMethodName, cause)
		}
	}()
	if w.wrong != nil {
		return w.wrong
	}
	switch called := w.call.GetCall().(type) {
	case *coordinatorv1.SessionCall_Reserve:
		done, err := x.service.Reserve(w, called.Reserve)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Reserve{Reserve: done}
		}
		return err
	case *coordinatorv1.SessionCall_Commit:
		done, err := x.service.Commit(w, called.Commit)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Commit{Commit: done}
		}
		return err
	case *coordinatorv1.SessionCall_Release:
		done, err := x.service.Release(w, called.Release)
		if err == nil {
			answer.Result = &coordinatorv1.SessionAnswer_Release{Release: done}
		}
		return err
	case *coordinatorv1.SessionCall_Extend:
		done, err := x.service.Extend(w, called.Extend)
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
	for {
		<-x.answers.some
		runtime.Gosched() // those that are about to be done go with it
		done := x.answers.take()
		if len(done) == 0 {
			return nil
		}
		for len(done) > 0 {
			batch := done[:together(done)]
			done = done[len(batch):]
			if err := x.write(batch); err != nil {
				for _, answer := range done {
					x.settle(answer, false)
				}
				return err
			}
		}
	}
}

// together returns how many of the answers go into one message.
func together(done []sessionAnswer) int {
	size := done[0].bytes
	for i, answer := range done[1:] {
		if size += answer.bytes; done[0].large() || answer.large() || i+1 == sessionAnswersMax || size > sessionAnswerBytesMax {
			return i + 1
		}
	}
	return len(done)
}

// answers are those of a session that are done and not taken yet: as many as calls are under
// way at most, and memory for as many as there are.
type answers struct {
	some chan struct{} // capacity 1: there are some, or no more will come; closed then

	mu    sync.Mutex
	done  []sessionAnswer
	ended bool
}

func newAnswers() *answers { return &answers{some: make(chan struct{}, 1)} }

func (a *answers) put(answer sessionAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = append(a.done, answer)
	select {
	case a.some <- struct{}{}:
	default: // it has been said
	}
}

// end says that no more come.
func (a *answers) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		a.ended = true
		close(a.some)
	}
}

// take takes all of them. There are none after a word of some only where no more will come.
func (a *answers) take() []sessionAnswer {
	a.mu.Lock()
	defer a.mu.Unlock()
	done := a.done
	a.done = nil
	select {
	case <-a.some: // they have been taken, too
	default:
	}
	return done
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
	timer := time.AfterFunc(sessionStalledMax, func() {
		select {
		case x.stalled <- struct{}{}:
		default: // it has been told before
		}
	})
	// Small answers are encoded as large ones are: into a buffer of their size.
	err := x.stream.SendMsg(answered{message, batch[0].held})
	timer.Stop()
	for _, answer := range batch {
		x.settle(answer, err == nil)
	}
	return err
}

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
