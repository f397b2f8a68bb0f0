package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// handlersIdleMax is how many goroutines of a port wait for further calls, whose stacks have grown
// already: to 8 KiB, so 2 MiB altogether. Calls beyond that many at a time get new ones, each of
// which grows its stack twice, which is a tenth of a node's processor time
// (docs/decisions/0004-entries-follow-each-other.md).
const handlersIdleMax = 256

// pingWithin is how long a client may leave a ping, or anything that was sent, unacknowledged.
const pingWithin = 10 * time.Second

// newServer returns a gRPC server as both ports have one. It is to be stopped, served or not.
func (n *Node) newServer(accept credentials.TransportCredentials) *grpc.Server {
	cfg := &n.cfg
	return grpc.NewServer(append(rpc.ServerOptions(accept, &n.arriving, cfg.Calls),
		grpc.MaxConcurrentStreams(cfg.StreamsMax),
		grpc.MaxHeaderListSize(64<<10),
		// What says nothing, or no HTTP/2, keeps a file no longer than on the peer port.
		grpc.ConnectionTimeout(peer.HandshakeTimeoutDefault),
		// A client may ask every 10 s whether the connection still works, also while no
		// call runs: behind a load balancer that is how it learns.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: pingWithin}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(handlersIdleMax),
		grpc.ChainUnaryInterceptor(recoverUnary(cfg.Logger)),
		grpc.ChainStreamInterceptor(recoverStream(cfg.Logger)),
	)...)
}

// recoverUnary turns a panic into an answer (invariant 6).
func recoverUnary(logger *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				answer, err = nil, rpc.Panicked(logger, info.FullMethod, cause)
			}
		}()
		return handler(ctx, request)
	}
}

func recoverStream(logger *slog.Logger) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = rpc.Panicked(logger, info.FullMethod, cause)
			}
		}()
		return handler(service, stream)
	}
}

// services are the names that the health service answers for; "" is the server.
func services() []string {
	return []string{"", coordinatorv1.CoordinatorService_ServiceDesc.ServiceName, coordinatorv1.AdminService_ServiceDesc.ServiceName}
}

// looksMax is how many calls of the services that only show how the node is, and what it offers, are
// under way at a time, for whoever may hold them open, and how many streams beside these.
// looksOfConnectionMax is how many of those streams a connection may have: one for each of the names
// that the health service answers for, and some more.
const (
	looksMax             = 1024
	looksOfConnectionMax = 16
)

// registerPublic adds what only the port for clients has.
func (n *Node) registerPublic() {
	server := rpc.Looks(n.public, looksMax, looksOfConnectionMax, n.cfg.Logger)
	healthv1.RegisterHealthServer(server, n.health)
	n.setHealth(false)
	reflection.Register(server)
}

func newHealth() *health.Server { return health.NewServer() }

func (n *Node) setHealth(serving bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range services() {
		n.health.SetServingStatus(name, status)
	}
}

// watchHealth keeps the health service up to date with one shard's leader, until ctx
// ends. The node serves once every shard has a leader that it knows.
func (n *Node) watchHealth(ctx context.Context, number int) {
	for {
		// Asked for first: a change after this is not missed.
		changed := n.shards.Replica(number).LeaderChanged()
		n.healthMu.Lock()
		serving := len(n.shards.leaderless()) == 0
		if serving != n.serving {
			n.serving = serving
			n.setHealth(serving)
			if serving {
				n.cfg.Logger.Info("every shard has a leader")
			} else {
				n.cfg.Logger.Warn("there are shards without a leader that this node knows", "shards", n.shards.leaderless())
			}
		}
		n.healthMu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// notReady says why the node is not ready, or "".
func (n *Node) notReady() string {
	if n.ctx.Err() != nil {
		return "the node is stopping"
	}
	if waiting := n.membership.Waiting(); waiting != "" {
		return waiting
	}
	if n.shards.router.Load() == nil {
		return "the shards are being opened"
	}
	if n.membership.Removed() {
		return "the cluster goes on without this node: it was replaced"
	}
	without := n.shards.leaderless()
	if len(without) == 0 {
		return ""
	}
	texts := make([]string, len(without))
	for i, number := range without {
		texts[i] = strconv.Itoa(number)
	}
	return "without a leader that this node knows: shard " + strings.Join(texts, ", ")
}

// probes answers /livez and /readyz.
func (n *Node) probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := n.notReady(); why != "" {
			answer(w, http.StatusServiceUnavailable, why)
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	return mux
}

// openHTTP listens, and serves until the server is closed.
func (n *Node) openHTTP(setting, address string, handler http.Handler) (*http.Server, net.Addr, error) {
	listener, err := listenForClients(&n.cfg, setting, address, lookConnectionsMax)
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      answerWithin,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(n.cfg.Logger.Handler(), slog.LevelDebug),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state != http.StateNew {
				n.looking.Remove(conn)
			} else if !n.looking.Add(conn) {
				_ = conn.Close()
			}
		},
	}
	n.serverWork.Go(func() {
		if err := server.Serve(n.security.forLooks(listener)); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("serve http on %s: %w", listener.Addr(), err))
		}
	})
	n.cfg.Logger.Info("listening for HTTP", "setting", setting, "address", listener.Addr().String())
	return server, listener.Addr(), nil
}

// answerWithin is more than several scrapes take one after the other while shards hang.
const answerWithin = 15 * time.Second

// httpServers are those that there are.
func (n *Node) httpServers() []*http.Server {
	var servers []*http.Server
	for _, server := range []*http.Server{n.http, n.scrapes} {
		if server != nil {
			servers = append(servers, server)
		}
	}
	return servers
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}
