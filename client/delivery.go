package client

import (
	"context"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// delivery is what a call to one node came to, over its session or by itself: all that is known
// of it, and the same of both.
type delivery[A any] struct {
	answer  A           // where there is no error
	err     error       // a status, or an *Error of what was not fit to be sent
	header  metadata.MD // what the node said of its cluster and of the shard, refused or not
	reached bool        // the node may have received it
}

// method is a call of the service, with a stream of its own.
type method[Q, A any] func(coordinatorv1.CoordinatorServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// byItself makes a call that has a stream of its own.
func byItself[Q, A any](ctx context.Context, service coordinatorv1.CoordinatorServiceClient, request Q, call method[Q, A]) delivery[A] {
	// gRPC fills in the peer once the call has been given a stream on a connection:
	// before that it cannot have been sent.
	var (
		to     peer.Peer
		header metadata.MD
	)
	answer, err := call(service, ctx, request, grpc.Peer(&to), grpc.Header(&header))
	return delivery[A]{answer: answer, err: err, header: header, reached: to.Addr != nil}
}

// fromSession is what a call of a session came to, as if it had been made by itself.
func fromSession[A proto.Message](shared delivery[*coordinatorv1.SessionAnswer], from func(*coordinatorv1.SessionAnswer) A) delivery[A] {
	came := delivery[A]{err: shared.err, header: shared.header, reached: shared.reached}
	if came.err != nil {
		return came
	}
	if failed := shared.answer.GetError(); failed != nil {
		came.err = status.FromProto(&spb.Status{Code: failed.GetCode(), Message: failed.GetMessage(), Details: failed.GetDetails()}).Err()
	} else if came.answer = from(shared.answer); !came.answer.ProtoReflect().IsValid() {
		// The call was carried out, and what it came to is not understood.
		came.err = status.Error(codes.Unavailable, "the node answered another call than it was asked for")
	}
	return came
}
