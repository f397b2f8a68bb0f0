package cluster_test

import (
	"context"
	"crypto/rand"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// callTimeout bounds a call beyond what it asks to wait.
const callTimeout = 5 * time.Second

// newAttempt draws an attempt id.
func newAttempt() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return id
}

func identity(key string) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Operation: "op", Key: key}
}

func service(c *cluster.Cluster, node string) coordinatorv1.CoordinatorServiceClient {
	return coordinatorv1.NewCoordinatorServiceClient(c.Conn(node))
}

// reserve makes one call.
func reserve(ctx context.Context, c *cluster.Cluster, node string, request *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, request.GetWait().AsDuration()+callTimeout)
	defer cancel()
	return service(c, node).Reserve(ctx, request)
}

// again reports whether a call that ended like this is to be made again.
func again(err error) bool {
	failure := reason.Of(err)
	switch failure.Reason {
	case reason.NoLeader, reason.ShuttingDown, reason.OutcomeUnknown, reason.Overloaded, reason.DeadlineExceeded:
		return true
	}
	return failure.Code == codes.Unavailable || failure.Code == codes.DeadlineExceeded
}

// notApplied reports whether the error says that the call changed nothing and will not.
func notApplied(err error) bool {
	failure := reason.Of(err)
	return failure.Info && (failure.Reason == reason.NoLeader || failure.Reason == reason.ShuttingDown)
}

func window(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
