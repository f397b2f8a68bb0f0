package main

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Backoff between rounds over all endpoints.
const (
	backoffFirst = 50 * time.Millisecond
	backoffMax   = time.Second
	// connectTimeout is after how long an endpoint that does not answer is given up
	// for the next.
	connectTimeout = time.Second
)

// connection is one endpoint. It is dialed when it is first called.
type connection struct {
	grpc        *grpc.ClientConn
	coordinator coordinatorv1.CoordinatorServiceClient
	admin       coordinatorv1.AdminServiceClient
}

// connect returns the connection to the i-th endpoint.
func (c *control) connect(i int) (*connection, error) {
	if c.connections == nil {
		c.connections = make([]*connection, len(c.endpoints))
	}
	if c.connections[i] == nil {
		opened, err := grpc.NewClient(c.endpoints[i],
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithNoProxy(), // nodes are named as they are reached
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(), // what is sent again is decided in call
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay: backoffFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: backoffMax,
				},
				MinConnectTimeout: connectTimeout,
			}))
		if err != nil {
			return nil, err
		}
		c.connections[i] = &connection{
			grpc:        opened,
			coordinator: coordinatorv1.NewCoordinatorServiceClient(opened),
			admin:       coordinatorv1.NewAdminServiceClient(opened),
		}
	}
	return c.connections[i], nil
}

func (c *control) close() {
	for _, opened := range c.connections {
		if opened != nil {
			_ = opened.grpc.Close()
		}
	}
}

// sender makes one call on one connection.
type sender[A any] func(context.Context, *connection, ...grpc.CallOption) (A, error)

// call makes one call, on the first endpoint that has an answer. What is sent again
// after UNAVAILABLE is the very same request, and every request of the services is
// made to be sent again. It takes timeout at most.
func call[A any](ctx context.Context, c *control, timeout time.Duration, send sender[A]) (A, error) {
	return callEndpoints(ctx, c, timeout, len(c.endpoints), send)
}

// callEndpoints is [call] with the first so many endpoints.
func callEndpoints[A any](ctx context.Context, c *control, timeout time.Duration, endpoints int, send sender[A]) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var (
		answer  A
		gravest reason.Failure
		pause   = backoffFirst
	)
	for try := 0; ; try++ {
		connection, err := c.connect(try % endpoints)
		if err != nil {
			return answer, usagef("--endpoints: %v", err)
		}
		// gRPC fills in the peer once the call has been given a stream on a connection:
		// before that it cannot have been sent.
		var to peer.Peer
		if answer, err = send(ctx, connection, grpc.Peer(&to)); err == nil {
			return answer, nil
		}
		failure := reason.Of(err)
		if to.Addr == nil && !failure.Info {
			failure.Applied = reason.No
		}
		switch failure.Code {
		case codes.Unavailable:
			gravest = graver(gravest, failure)
		case codes.DeadlineExceeded, codes.Canceled:
			return answer, callError{failure: graver(gravest, failure)}
		default:
			// This is an answer: the truth, whatever became of earlier deliveries.
			return answer, callError{failure: failure}
		}
		if (try+1)%endpoints == 0 {
			if !rest(ctx, max(jittered(pause), failure.RetryAfter)) {
				return answer, callError{failure: gravest}
			}
			pause = min(2*pause, backoffMax)
		}
	}
}

// graver returns the failure to report of two that followed each other: the first
// that leaves a doubt, for no later failure takes it away. Where neither does, the
// later one, unless it only says that time was over.
func graver(before, after reason.Failure) reason.Failure {
	switch {
	case before.Code == codes.OK:
		return after
	case before.Applied == reason.Maybe:
		return before
	case after.Applied == reason.Maybe:
		return after
	case after.Code != codes.Unavailable:
		return before
	}
	return after
}

// jittered returns between a half of d and all of it, so that callers that failed
// together do not come back together.
func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter need not be unguessable
}

// rest waits, and reports whether there is time left after it.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
