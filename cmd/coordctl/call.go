package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/metakey"
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
	endpoint    string
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
		made := &connection{endpoint: c.endpoints[i]}
		// Names are looked up as they are dialed, so that it is known why one was not.
		opened, err := grpc.NewClient("passthrough:///"+made.endpoint,
			grpc.WithContextDialer(c.contacts.dial),
			grpc.WithTransportCredentials(c.security.credentials(func(_ string, err error) { c.contacts.spoken(made.endpoint, err) })),
			grpc.WithUnaryInterceptor(c.naming),
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
		made.grpc = opened
		made.coordinator = coordinatorv1.NewCoordinatorServiceClient(opened)
		made.admin = coordinatorv1.NewAdminServiceClient(opened)
		c.connections[i] = made
	}
	return c.connections[i], nil
}

// naming names the cluster that was given, if one was.
func (c *control) naming(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if c.cluster != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, metakey.Cluster, c.cluster)
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

// failedInWords says in one line what a failure is that no server has named. sent says that
// the call may have reached the node, answered that the failure is its answer, bound is which time
// it has.
func (c *control) failedInWords(endpoint string, failure reason.Failure, sent, answered bool, bound string) string {
	over := failure.Code == codes.DeadlineExceeded
	switch failure.Code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		if answered {
			return answerInWords(endpoint, failure)
		}
	}
	switch failure.Code {
	case codes.Canceled:
		return "interrupted before there was an answer"
	case codes.DeadlineExceeded, codes.Unavailable:
	default:
		return failure.Message // said by whoever answered
	}
	switch known := c.contacts.of(endpoint); {
	case sent && over:
		return bound + " was over before " + endpoint + " answered"
	case sent:
		return brokeInWords(endpoint)
	case over && known.why() == nil && known.dialed:
		return bound + " was over before " + endpoint + " answered as a coordinator"
	case over && known.why() == nil:
		return bound + " was over before " + endpoint + " was connected to"
	}
	return c.unconnected(endpoint)
}

// brokeInWords is a connection that broke with a call on it.
func brokeInWords(address string) string {
	return "the connection to " + address + " broke before there was an answer"
}

// answered reports whether a failure that no reason was given for is the node's answer, or that of
// something before it, and not made on this side of a connection that broke or a time that was over.
func answered(ctx context.Context, failure reason.Failure, header, trailer metadata.MD) bool {
	if ctx.Err() != nil && failure.Code != codes.Unavailable {
		return false
	}
	// Who answers that at the end of the time, which it is told, says no more than that it is over.
	if deadline, bound := ctx.Deadline(); bound && failure.Code == codes.DeadlineExceeded && time.Until(deadline) < connectTimeout {
		return false
	}
	// What answers as a web server does, and not as gRPC, has neither: gRPC says so.
	return len(header)+len(trailer) > 0 || strings.HasPrefix(failure.Message, "unexpected HTTP status code")
}

// answerInWords is an answer of whoever is at an address.
func answerInWords(address string, failure reason.Failure) string {
	said := address + " answered " + reason.CodeName(failure.Code)
	if failure.Message != "" {
		said += ": " + failure.Message
	}
	return said
}

// rootCause is what is at the bottom of a failed dial, such as "connection refused".
func rootCause(err error) string {
	var (
		name  *net.DNSError
		errno syscall.Errno
	)
	switch {
	case errors.As(err, &name):
		return "no address is known by this name"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	}
	return strings.TrimPrefix(err.Error(), "tls: ")
}

func (c *control) close() {
	defer c.security.close()
	for _, opened := range c.connections {
		if opened != nil {
			_ = opened.grpc.Close()
		}
	}
}

// sender makes one call on one connection.
type sender[A any] func(context.Context, *connection, ...grpc.CallOption) (A, error)

// method is a call of the service of a client S, such as
// [coordinatorv1.CoordinatorServiceClient.Reserve].
type method[S, Q, A any] func(S, context.Context, Q, ...grpc.CallOption) (A, error)

// callCoordinator is [call] with a call for those that want to be admitted.
func callCoordinator[Q, A any](
	ctx context.Context, c *control, timeout time.Duration, m method[coordinatorv1.CoordinatorServiceClient, Q, A], request Q,
) (A, error) {
	return call(ctx, c, timeout, func(ctx context.Context, to *connection, options ...grpc.CallOption) (A, error) {
		return m(to.coordinator, ctx, request, options...)
	})
}

// callAdmin is [call] with a call for operators.
func callAdmin[Q, A any](
	ctx context.Context, c *control, timeout time.Duration, m method[coordinatorv1.AdminServiceClient, Q, A], request Q,
) (A, error) {
	return call(ctx, c, timeout, func(ctx context.Context, to *connection, options ...grpc.CallOption) (A, error) {
		return m(to.admin, ctx, request, options...)
	})
}

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
	if !c.looks {
		keepPipe() // what became of it is told all the same
	}
	var (
		answer  A
		gravest reason.Failure
		tried   = make([]reason.Failure, endpoints) // what each has come to
		pause   = backoffFirst
	)
	for try := 0; ; try++ {
		connection, err := c.connect(try % endpoints)
		if err != nil {
			return answer, usagef("--endpoints: %v", err)
		}
		// gRPC fills in the peer once the call has been given a stream on a connection:
		// before that it cannot have been sent.
		var (
			to              peer.Peer
			header, trailer metadata.MD
		)
		if answer, err = send(ctx, connection, grpc.Peer(&to), grpc.Header(&header), grpc.Trailer(&trailer)); err == nil {
			return answer, nil
		}
		failure := reason.Of(err)
		if other := metakey.Foreign(header, c.cluster); other != "" {
			failure.Message = fmt.Sprintf("at %s cluster %s answers, and the call is for cluster %s", connection.endpoint, other, c.cluster)
		}
		if !failure.Info {
			if to.Addr == nil {
				failure.Applied = reason.No
			}
			failure.Message = c.failedInWords(connection.endpoint, failure, to.Addr != nil, answered(ctx, failure, header, trailer), c.boundOf(timeout))
		}
		if c.looks {
			failure.Applied = reason.No
		}
		if failure.Applied == reason.Maybe {
			failure.ExitCode = reason.ExitUnavailable // whatever was answered: the outcome is not known
		}
		if at := &tried[try%endpoints]; failure.Code != codes.Canceled {
			*at = graver(*at, failure)
		}
		switch failure.Code {
		case codes.Unavailable:
			gravest = graver(gravest, failure)
		case codes.DeadlineExceeded, codes.Canceled:
			return answer, callError{failure: allTried(graver(gravest, failure), tried)}
		default:
			if gravest.Code != codes.OK && gravest.Applied == reason.Maybe && !failure.Reason.Row().OfRecord {
				failure = gravest
			}
			return answer, callError{failure: failure}
		}
		if (try+1)%endpoints == 0 {
			if !rest(ctx, max(jittered(pause), failure.RetryAfter)) {
				return answer, callError{failure: allTried(gravest, tried)}
			}
			pause = min(2*pause, backoffMax)
		}
	}
}

// triedMost is how many endpoints a failure names.
const triedMost = 8

// allTried returns the failure to report with what each endpoint has come to, in their order: who reads
// of one may think that it is the only one that is away. What a node has said is an answer, and a doubt
// is of one delivery: those stay as they are.
func allTried(of reason.Failure, tried []reason.Failure) reason.Failure {
	if of.Info || of.Applied == reason.Maybe {
		return of
	}
	var said []string
	for _, failure := range tried {
		if failure.Code != codes.OK && !slices.Contains(said, failure.Message) {
			said = append(said, failure.Message)
		}
	}
	if more := len(said) - triedMost; more > 0 {
		said = append(said[:triedMost], fmt.Sprintf("and %d more that gave no answer", more))
	}
	if len(said) > 1 {
		of.Message = strings.Join(said, "; ")
	}
	return of
}

// boundOf says which time a call has.
func (c *control) boundOf(timeout time.Duration) string {
	flags := "--timeout"
	if c.waits {
		flags += " and --wait"
	}
	return fmt.Sprintf("the time of %s (%v)", flags, timeout)
}

// graver returns the failure to report of two that followed each other: the one that
// leaves a doubt, for no other failure takes it away; else the one that a server has
// named, which tells more than a connection that failed; else the one that is not only
// about the time being over. Of two that are alike it is the first that leaves a doubt,
// and otherwise the later one.
func graver(before, after reason.Failure) reason.Failure {
	switch {
	case before.Code == codes.OK:
		return after
	case before.Applied != after.Applied:
		if before.Applied == reason.Maybe {
			return before
		}
		return after
	case before.Info != after.Info:
		if before.Info {
			return before
		}
		return after
	case before.Applied == reason.Maybe, after.Code != codes.Unavailable:
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
