package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/internal/reason"
)

// expected refuses a call whose caller expects another cluster than this node's: an address
// may be advertised by mistake, or have passed to others, and what has been granted there
// may be granted here once more. Nothing has been asked of anybody by then.
//
// A caller names the cluster in [ClusterKey]. With an empty name it asks for it: the answer
// says it in the same key, as every refusal does. Without the key, any cluster will do.
func (s *server) expected(ctx context.Context) error {
	named := metadata.ValueFromIncomingContext(ctx, ClusterKey)
	if len(named) == 0 {
		return nil
	}
	id := s.cluster.ID()
	if named[0] == id && id != "" {
		return nil
	}
	// It fails outside a server only, where nobody looks at headers.
	_ = grpc.SetHeader(ctx, metadata.Pairs(ClusterKey, id))
	switch {
	case named[0] == "":
		return nil
	case id == "":
		return s.noLeader()
	}
	return reason.Error(reason.NoLeader, fmt.Sprintf("this node belongs to another cluster than the call is for, to %s", id))
}
