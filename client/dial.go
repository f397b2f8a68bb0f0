package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// forever is as long as anything takes: what is longer is cut to it, so that sums of such times,
// and of moments, do not run over.
const forever = math.MaxInt64 / 4

const (
	// connectTimeout is after how long a node that does not answer is given up.
	connectTimeout = time.Second
	// pingAfter and pingTimeout find a connection that is dead while a call waits on it.
	// The nodes permit a ping every 5 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// messageBytesMax is the largest message that a node takes.
	messageBytesMax = 2 << 20
	// givingBackMost bounds how many reservations are given back behind the scenes at a time,
	// and givenBackMost how many wait for that.
	givingBackMost = 64
	givenBackMost  = 4096
)

// Client speaks to one cluster. It may be used by several goroutines at once, and one
// is enough for a process.
type Client struct {
	dialConfig
	router *router

	// elapsed measures what calls take, which clock would do at the price of a system call.
	elapsed clock

	// ended is the context of what runs behind the scenes.
	ended      context.Context
	end        context.CancelFunc
	mu         sync.Mutex // guards closed, and background's growth against Close
	closed     bool
	background sync.WaitGroup
	waiting    chan struct{} // a place for each reservation that is to be given back
	calling    chan struct{} // and for each that is being given back
}

// Dial returns a client of the cluster whose nodes are reached at the endpoints, each a
// host:port, in any order; the port is a number, 1 to 65535. One is enough to find the leaders of a cluster; more are for
// the time when that one is away. Nothing is connected to before the first call.
//
// It fails where there is no endpoint or one that nobody could connect to, where one is not on
// loopback and neither [WithTLS] nor [WithInsecure] is given, and where an option is out of range, those
// of [WithReserveDefaults] included.
func Dial(endpoints []string, options ...DialOption) (*Client, error) {
	cfg := dialConfig{
		callTimeout: callTimeoutDefault, tryTimeout: tryTimeoutDefault, settleTimeout: settleTimeoutDefault,
	}
	for _, option := range given("Dial", options) {
		option.applyToDial(&cfg)
	}
	for _, bound := range []struct {
		name  string
		value *time.Duration
	}{{"call", &cfg.callTimeout}, {"try", &cfg.tryTimeout}, {"settle", &cfg.settleTimeout}} {
		if *bound.value <= 0 {
			return nil, fmt.Errorf("client: the %s timeout is %v, it must be more than 0", bound.name, *bound.value)
		}
		*bound.value = min(*bound.value, forever)
	}
	var defaults reserveConfig
	for _, option := range cfg.defaults {
		option.applyToReserve(&defaults)
	}
	if err := defaults.check(); err != nil {
		return nil, fmt.Errorf("client: WithReserveDefaults: %w", err)
	}
	if cfg.cluster != nil {
		if err := checkCluster(*cfg.cluster); err != nil {
			return nil, err
		}
	}
	if cfg.clock == nil {
		cfg.clock = systemClock()
	}
	if cfg.logger == nil {
		cfg.logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{dialConfig: cfg, elapsed: monotonic(), waiting: make(chan struct{}, givenBackMost), calling: make(chan struct{}, givingBackMost)}
	c.ended, c.end = context.WithCancel(context.Background())
	c.router = newRouter(c.connect, c.elapsed, cfg.endpointsOnly)
	c.router.cluster.Store(cfg.cluster)
	c.router.sessions = len(cfg.grpc) == 0
	if cfg.sessions != nil {
		c.router.sessions = *cfg.sessions
	}
	if len(endpoints) == 0 {
		c.end()
		return nil, errors.New("client: there is no endpoint")
	}
	for _, endpoint := range endpoints {
		if err := c.router.add(endpoint); err != nil {
			_ = c.Close()
			return nil, fmt.Errorf("client: endpoint %q %w", endpoint, err)
		}
	}
	return c, nil
}

// Close closes the connections and ends what runs behind the scenes: renewals, and
// reservations that were about to be given back. Calls in flight end with [ErrClosed].
// Reservations stay what they are, and so do their contexts; they cannot be committed any
// more, so close a client after its last Commit. Closing again does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.router.close()
	c.background.Wait()
	return nil
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// start runs a function behind the scenes, with a context that ends with the client,
// and reports whether it does: a client that is closed starts nothing.
func (c *Client) start(run func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.background.Go(func() { run(c.ended) })
	return true
}

// errBusy and errLate report reservations that were not given back.
var (
	errBusy = errors.New("too many others wait to be given back")
	errLate = errors.New("the others took too long")
)

// giveBack runs what gives a reservation back that nobody heard of, behind the scenes and
// for as long as settling may take. One that is not given back blocks its key until it lapses;
// the log is told. The context is that of the call which has ended, for the log only.
func (c *Client) giveBack(of context.Context, id Identity, run func(context.Context) error) {
	failed := func(err error) {
		c.logger.WarnContext(of, "a reservation that nobody heard of could not be given back, and blocks its key until it lapses",
			append(id.named(), "error", err)...)
	}
	select {
	case c.waiting <- struct{}{}:
	default:
		failed(errBusy)
		return
	}
	started := c.start(func(closing context.Context) {
		defer func() { <-c.waiting }()
		ctx, cancel := context.WithTimeout(closing, c.settleTimeout)
		defer cancel()
		select {
		case c.calling <- struct{}{}:
		case <-ctx.Done():
			failed(errLate)
			return
		}
		defer func() { <-c.calling }()
		if err := run(ctx); err != nil {
			failed(err)
		}
	})
	if !started {
		<-c.waiting
		failed(ErrClosed)
	}
}

// What a node may send ahead of what is read, in bytes. Windows that gRPC finds by itself are
// measured with a ping for nearly every call, which wakes both ends twice.
const (
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
)

// errPlain reports an address that would be spoken to in plain text.
var errPlain = errors.New("is not on loopback: use WithTLS, or WithInsecure to go without")

// connect makes the connection to one address, without connecting yet.
func (c *Client) connect(address string) (*grpc.ClientConn, error) {
	if err := checkEndpoint(address); err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	switch {
	case c.credentials != nil:
		transport = c.credentials
	case !loopback(address):
		return nil, errPlain
	}
	target := address
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(), // nodes are named as they are reached; WithDialer is for the rest
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // what is sent again is decided in invoke
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithChainUnaryInterceptor(c.router.nameUnary),
		grpc.WithChainStreamInterceptor(c.router.nameStream),
	}
	if c.dialer != nil {
		target = "passthrough:///" + address
		options = append(options, grpc.WithContextDialer(c.dialer))
	}
	return grpc.NewClient(target, append(options, c.grpc...)...)
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
