package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Bounds that hold where no option says otherwise.
const (
	callTimeoutDefault   = 15 * time.Second
	tryTimeoutDefault    = 3 * time.Second
	settleTimeoutDefault = time.Minute
)

// DialOption is an option of [Dial].
type DialOption interface{ applyToDial(*dialConfig) }

type dialConfig struct {
	credentials   credentials.TransportCredentials // nil: plain text, to loopback only
	grpc          []grpc.DialOption
	dialer        func(context.Context, string) (net.Conn, error)
	callTimeout   time.Duration
	tryTimeout    time.Duration
	sessions      *bool // nil: as it fits the gRPC options
	settleTimeout time.Duration
	endpointsOnly bool
	cluster       *string // nil: that which answers first
	defaults      []ReserveOption
	clock         clock
	logger        *slog.Logger
}

type dialOption func(*dialConfig)

func (o dialOption) applyToDial(c *dialConfig) { o(c) }

// WithTLS encrypts the connections. A client certificate goes into the configuration: one that is
// renewed while the client is open into its GetClientCertificate, which is asked for each connection.
func WithTLS(config *tls.Config) DialOption {
	return WithTransportCredentials(credentials.NewTLS(config))
}

// WithInsecure permits connections in plain text, to any address. Without it, and
// without [WithTLS], only loopback addresses are dialed.
func WithInsecure() DialOption { return WithTransportCredentials(insecure.NewCredentials()) }

// WithTransportCredentials is [WithTLS] for credentials of every kind.
func WithTransportCredentials(c credentials.TransportCredentials) DialOption {
	return dialOption(func(d *dialConfig) { d.credentials = c })
}

// WithDialer replaces how an address is connected to. Addresses, those of leaders
// included, then reach it as they are.
func WithDialer(dial func(ctx context.Context, address string) (net.Conn, error)) DialOption {
	return dialOption(func(d *dialConfig) { d.dialer = dial })
}

// WithDialOptions adds gRPC's own options to every connection, such as per-call
// credentials and interceptors. An interceptor sees every try, and must not retry by
// itself: it would not know that a deadline is counted from the try that was answered.
func WithDialOptions(options ...grpc.DialOption) DialOption {
	given("WithDialOptions", options)
	return dialOption(func(d *dialConfig) { d.grpc = append(d.grpc, options...) })
}

// WithSessions says whether calls share a stream while 16 or more of them are under way
// to one node. That costs both ends less, and nobody can tell but interceptors, per-call
// credentials and outgoing metadata, which would see the stream and not the calls.
// Default: true, and false where [WithDialOptions] is given; a call whose context carries
// outgoing metadata always has a stream of its own.
func WithSessions(on bool) DialOption {
	return dialOption(func(c *dialConfig) { c.sessions = &on })
}

// WithCallTimeout bounds a call with all its retries; what Reserve waits comes on top.
// Its caller's context may end it earlier. Default: 15 s. d must be more than 0.
func WithCallTimeout(d time.Duration) DialOption {
	return dialOption(func(c *dialConfig) { c.callTimeout = d })
}

// WithTryTimeout bounds one try of a call, so that a node that hangs does not use up the
// call's time; what Reserve waits comes on top. Default: 3 s, which lets a node wait for a
// new leader. d must be more than 0.
func WithTryTimeout(d time.Duration) DialOption {
	return dialOption(func(c *dialConfig) { c.tryTimeout = d })
}

// WithSettleTimeout bounds how long [Client.Do] tries to commit, Commit and Release under the
// reservation's own context try at all, and a reservation that nobody heard of is tried to be
// given back. Default: 1 min. d must be more than 0.
func WithSettleTimeout(d time.Duration) DialOption {
	return dialOption(func(c *dialConfig) { c.settleTimeout = d })
}

// WithEndpointsOnly dials nothing but the endpoints: for nodes behind a load balancer,
// whose own addresses cannot be reached. A call may then take one hop more.
func WithEndpointsOnly() DialOption {
	return dialOption(func(c *dialConfig) { c.endpointsOnly = true })
}

// WithReserveDefaults gives options to every Reserve, before its own.
func WithReserveDefaults(options ...ReserveOption) DialOption {
	given("WithReserveDefaults", options)
	return dialOption(func(c *dialConfig) { c.defaults = append(c.defaults, options...) })
}

// WithClock replaces the clock that deadlines of owners are counted on, for tests in
// virtual time. It returns the time since some fixed moment, never runs backwards, and
// may be read by several goroutines.
func WithClock(now func() time.Duration) DialOption {
	return dialOption(func(c *dialConfig) { c.clock = now })
}

// WithLogger is told what no caller hears of: a reservation that could not be given
// back, with the identity it blocks, its key included; an address at which another cluster
// answers. Default: nobody.
func WithLogger(logger *slog.Logger) DialOption {
	return dialOption(func(c *dialConfig) { c.logger = logger })
}
