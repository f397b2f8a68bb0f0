package client

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/internal/metakey"
)

// Addresses may be wrong: a node may advertise one at which another cluster answers, and
// an address may pass from one cluster to another. What has been done in one cluster would
// be granted by another. So a client is for one cluster: the one of [WithCluster], or else
// the one that answers first. Every call names it (metakey.Cluster), and an answer of another
// one is none.

// named reports whether it is known which cluster this client is for.
func (r *router) named() bool { return r.cluster.Load() != nil }

// naming names the cluster in a call's metadata. What is there already under the keys of the
// coordinator is not this client's: it was passed on from another call, with what its caller had put
// there.
func (r *router) naming(ctx context.Context) context.Context {
	name := ""
	if known := r.cluster.Load(); known != nil {
		name = *known
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	if len(sent[metakey.Cluster])+len(sent[metakey.Forwarded]) == 0 {
		return metadata.AppendToOutgoingContext(ctx, metakey.Cluster, name)
	}
	sent.Delete(metakey.Forwarded)
	sent.Set(metakey.Cluster, name)
	return metadata.NewOutgoingContext(ctx, sent)
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

// foreign returns the cluster that an answer with these headers comes from, where that is
// another than the client is for, and otherwise "". The first that is named is the client's.
func (r *router) foreign(header metadata.MD) string {
	known := r.cluster.Load()
	if known == nil {
		first := metakey.Named(header)
		if first == "" || r.cluster.CompareAndSwap(nil, &first) {
			return ""
		}
		known = r.cluster.Load() // another answer was quicker
	}
	return metakey.Foreign(header, *known)
}

// strange is what a call comes to that a node of another cluster has answered. Whatever it
// has done there, nothing was applied here.
func (r *router) strange(call string, node *clusterNode, other string) *Error {
	return &Error{
		Call: call, Code: codes.Unavailable, Reason: "NO_LEADER", retriable: true, // as that node says
		Message: fmt.Sprintf("at %s cluster %s answers, and this client is for cluster %s", node.address, other, *r.cluster.Load()),
	}
}

// WithCluster says which cluster the endpoints are of: its id, as `coordctl status` shows it,
// 32 hex digits in lower case. What another one answers is no answer then. Default: the
// cluster that answers first, which for another client may be another one, where an endpoint
// is wrong or a node was started anew by itself.
func WithCluster(id string) DialOption {
	return dialOption(func(c *dialConfig) { c.cluster = &id })
}

// clusterIDLength is how long the id of a cluster is.
const clusterIDLength = 32

// checkCluster refuses what is no id of a cluster.
func checkCluster(id string) error {
	if len(id) != clusterIDLength || strings.Trim(id, "0123456789abcdef") != "" {
		return fmt.Errorf("client: the id of a cluster is %d hex digits in lower case, this one is %d bytes: %.40q", clusterIDLength, len(id), id)
	}
	return nil
}
