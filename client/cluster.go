package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// clusterKey names the cluster that a call is for. A node of another one refuses the call,
// before anything is asked, and names its own in a header. To a call without a name it
// names its own as well.
//
// Addresses may be wrong: a node may advertise one at which another cluster answers, and
// an address may pass from one cluster to another. What has been done in one cluster would
// be granted by another. So the first answer of all says which cluster a client is for,
// from then on every call names it, and an answer that comes from another is none.
const clusterKey = "coordinator-cluster"

// naming names the cluster in a call's metadata.
func (r *router) naming(ctx context.Context) context.Context {
	name := ""
	if known := r.cluster.Load(); known != nil {
		name = *known
	}
	return metadata.AppendToOutgoingContext(ctx, clusterKey, name)
}

// nameUnary and nameStream name the cluster in every call over a connection.
func (r *router) nameUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(r.naming(ctx), method, request, reply, conn, options...)
}

func (r *router) nameStream(
	ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(r.naming(ctx), description, conn, method, options...)
}

// isForeign reports whether an answer with these headers comes from another cluster than
// the first one did.
func (r *router) isForeign(header metadata.MD) bool {
	told := header.Get(clusterKey)
	if len(told) != 1 || told[0] == "" || r.cluster.CompareAndSwap(nil, &told[0]) {
		return false
	}
	return *r.cluster.Load() != told[0]
}

// foreign is what a call comes to that a node of another cluster has answered. Whatever it
// has done there, nothing was applied here.
func foreign(call string, node *clusterNode) *Error {
	return &Error{
		Call: call, Code: codes.Unavailable, retriable: true,
		Message: "at " + node.address + " another cluster answers than did at first",
	}
}
