package fault

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// interceptStream is a [grpc.StreamClientInterceptor]: the public client sends its calls
// over one stream while many are under way, and each is a delivery like any other.
func (c *courier) interceptStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, options...)
	if err != nil || method != coordinatorv1.CoordinatorService_Session_FullMethodName {
		return stream, err
	}
	return &watched{ClientStream: stream, courier: c, underWay: make(map[uint64]underWay)}, nil
}

// watched is a session whose calls are written down.
type watched struct {
	grpc.ClientStream
	courier *courier

	mu       sync.Mutex
	underWay map[uint64]underWay
}

// underWay is a call of a session that is not answered yet.
type underWay struct {
	sent    time.Duration
	request proto.Message
}

// SendMsg implements [grpc.ClientStream].
func (w *watched) SendMsg(m any) error {
	message, ok := m.(*coordinatorv1.SessionRequest)
	if !ok {
		return w.ClientStream.SendMsg(m)
	}
	u := w.courier.unkind.Load()
	for _, call := range message.GetCalls() {
		request, method, reply := unwrapCall(call)
		if request == nil {
			continue
		}
		if rand.IntN(1000) < u.again {
			w.courier.later(method, request, reply, time.Duration(rand.Int64N(int64(u.laterMax))))
		}
		w.mu.Lock()
		w.underWay[call.GetId()] = underWay{w.courier.log.Now(), proto.Clone(request)}
		w.mu.Unlock()
	}
	return w.ClientStream.SendMsg(m) // if it fails the stream is over, and RecvMsg says so
}

// RecvMsg implements [grpc.ClientStream].
func (w *watched) RecvMsg(m any) error {
	err := w.ClientStream.RecvMsg(m)
	if err != nil {
		w.broken(err)
		return err
	}
	message, ok := m.(*coordinatorv1.SessionResponse)
	if !ok {
		return nil
	}
	for _, answer := range message.GetAnswers() {
		w.mu.Lock()
		call, known := w.underWay[answer.GetId()]
		delete(w.underWay, answer.GetId())
		w.mu.Unlock()
		if known {
			reply, err := unwrapAnswer(answer)
			w.courier.seen.shared.Add(1)
			w.courier.record(call.request, reply, call.sent, err)
		}
	}
	return nil
}

// broken leaves everything in doubt that was not answered.
func (w *watched) broken(err error) {
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the session ended")
	}
	// Whatever the session ended with, its calls may have been carried out.
	err = status.Error(codes.Unavailable, status.Convert(err).Message())
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, call := range w.underWay {
		delete(w.underWay, id)
		w.courier.record(call.request, nil, call.sent, err)
	}
}

// unwrapCall returns a call of a session as it would be made by itself.
func unwrapCall(call *coordinatorv1.SessionCall) (request proto.Message, method string, reply proto.Message) {
	switch c := call.GetCall().(type) {
	case *coordinatorv1.SessionCall_Reserve:
		return c.Reserve, coordinatorv1.CoordinatorService_Reserve_FullMethodName, &coordinatorv1.ReserveResponse{}
	case *coordinatorv1.SessionCall_Commit:
		return c.Commit, coordinatorv1.CoordinatorService_Commit_FullMethodName, &coordinatorv1.CommitResponse{}
	case *coordinatorv1.SessionCall_Release:
		return c.Release, coordinatorv1.CoordinatorService_Release_FullMethodName, &coordinatorv1.ReleaseResponse{}
	case *coordinatorv1.SessionCall_Extend:
		return c.Extend, coordinatorv1.CoordinatorService_Extend_FullMethodName, &coordinatorv1.ExtendResponse{}
	}
	return nil, "", nil
}

// unwrapAnswer returns what such a call came to.
func unwrapAnswer(answer *coordinatorv1.SessionAnswer) (any, error) {
	switch a := answer.GetResult().(type) {
	case *coordinatorv1.SessionAnswer_Reserve:
		return a.Reserve, nil
	case *coordinatorv1.SessionAnswer_Commit:
		return a.Commit, nil
	case *coordinatorv1.SessionAnswer_Release:
		return a.Release, nil
	case *coordinatorv1.SessionAnswer_Extend:
		return a.Extend, nil
	case *coordinatorv1.SessionAnswer_Error:
		return nil, status.ErrorProto(&spb.Status{Code: a.Error.GetCode(), Message: a.Error.GetMessage(), Details: a.Error.GetDetails()})
	}
	return nil, status.Error(codes.Unimplemented, "an answer without a result")
}
