package client

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/metakey"
)

const (
	// sessionMost is how many calls share one; a node does not read more. Those beyond it have
	// a stream each.
	sessionMost = 1024
	// messageBytesEnough is how much goes into one message of calls.
	messageBytesEnough = 256 << 10
	// sessionIdle is how long a stream stays open while fewer than sessionFrom are under way.
	sessionIdle = 5 * time.Second
)

// session is one stream that calls share.
//
// Why nobody is told that a call was not sent when it was: one goroutine puts calls into messages
// (take) and each caller ends its own (wait), both under the mutex, and a call that was dropped
// goes into none.
type session struct {
	cancel context.CancelFunc
	queued chan struct{} // capacity 1: there is something to send
	ended  chan struct{}

	mu     sync.Mutex
	last   uint64                 // id that was given out
	calls  map[uint64]*sharedCall // that have no answer yet, by id
	queue  []*sharedCall          // queued or dropped, in order
	given  []uint64               // calls that were dropped after they were sent, to be told
	shards uint32
	// cluster is what the node has named as its own, if it was asked.
	cluster []string
	told    map[uint32]toldHeader // by shard
	busy    bool                  // it was worth it, since that was looked at last
	err     error
}

var (
	// errIdle is why a session ended that nothing was wrong with.
	errIdle = errors.New("the session was not worth it any more")
	// errNoRoom is why one ended that the node refused, as it has as many as it may: it has
	// carried out nothing, and takes calls by themselves.
	errNoRoom = errors.New("the node has no room for a session")
)

// add takes a call on, or returns nil where there are too many; those that were dropped before they
// were sent are there until the node takes what is before them.
func (x *session) add(message *coordinatorv1.SessionCall, deadline time.Time, busy bool) *sharedCall {
	x.mu.Lock()
	defer x.mu.Unlock()
	if max(len(x.calls), len(x.queue)) >= sessionMost || x.err != nil {
		return nil
	}
	x.last++
	message.Id = x.last
	call := &sharedCall{id: x.last, message: message, deadline: deadline, done: make(chan struct{})}
	x.calls[call.id] = call
	x.queue = append(x.queue, call)
	x.busy = x.busy || busy
	x.wake()
	return call
}

func (x *session) wake() {
	select {
	case x.queued <- struct{}{}:
	default:
	}
}

// wait waits for the answer, or for the end of the session or of ctx, and takes the call out of the
// session. It reports false where the session ended and the node cannot have received the call:
// it may be made otherwise, and where its time is over by now gRPC says so.
func (x *session) wait(ctx context.Context, call *sharedCall) (delivery[*coordinatorv1.SessionAnswer], bool) {
	select {
	case <-call.done:
	case <-x.ended:
	case <-ctx.Done():
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if call.state == callAnswered {
		return delivery[*coordinatorv1.SessionAnswer]{answer: call.answer, header: x.header(call.answer), reached: true}, true
	}
	delete(x.calls, call.id)
	var came delivery[*coordinatorv1.SessionAnswer]
	if came.reached = call.drop(); came.reached {
		came.header = x.named() // one of another cluster has done nothing in this one
	}
	switch over := ctx.Err(); {
	case over != nil:
		if came.reached {
			x.given = append(x.given, call.id)
			x.wake()
		}
		came.err = status.FromContextError(over).Err()
	case !came.reached || status.Code(x.err) == codes.Unimplemented || errors.Is(x.err, errNoRoom):
		return came, false
	default:
		came.err = status.Error(codes.Unavailable, "the session has ended: "+x.err.Error())
	}
	return came, true
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
	x.cluster = header.Get(metakey.Cluster)
	x.mu.Unlock()
	for {
		message, err := stream.Recv()
		switch {
		case err == nil:
		case header == nil && status.Code(err) == codes.ResourceExhausted: // it has not begun
			return errors.Join(errNoRoom, err)
		default:
			return err
		}
		x.mu.Lock()
		x.shards = message.GetShards()
		for _, answer := range message.GetAnswers() {
			if call := x.calls[answer.GetId()]; call != nil && call.take(answer) {
				delete(x.calls, call.id)
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
		if call.send() {
			message.Calls = append(message.Calls, call.message)
			bytes += proto.Size(call.message)
		}
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
// headers, refused or not; x.mu is held.
func (x *session) named() metadata.MD {
	if len(x.cluster) == 0 {
		return nil
	}
	return metadata.MD{metakey.Cluster: x.cluster}
}

// header returns what an answer says, as a call by itself has it in its headers.
// Most answers say the same: the latest of each shard is kept, and nobody changes it. x.mu is held.
func (x *session) header(answer *coordinatorv1.SessionAnswer) metadata.MD {
	if told, ok := x.told[answer.GetShard()]; ok && told.shards == x.shards && told.known == (answer.Shard != nil) && told.leader == answer.GetLeader() {
		return told.header
	}
	header := metadata.Pairs(metakey.Shards, strconv.FormatUint(uint64(x.shards), 10))
	if answer.Shard != nil {
		header.Set(metakey.Shard, strconv.FormatUint(uint64(answer.GetShard()), 10))
	}
	if answer.GetLeader() != "" {
		header.Set(metakey.Leader, answer.GetLeader())
	}
	if len(x.cluster) > 0 {
		header.Set(metakey.Cluster, x.cluster...)
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
