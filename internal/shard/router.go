package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// Directory knows the members of the cluster.
type Directory interface {
	// NodeID is the name of the node behind a server id.
	NodeID(raft.ServerID) string
	// PeerAddress is where a server is dialed, as host:port.
	PeerAddress(raft.ServerID, raft.ServerAddress) string
	// ClientAddress is where clients reach it, or "" while that is unknown.
	ClientAddress(raft.ServerID) string
}

// Config is what a node's shards are made of.
type Config struct {
	// Dir is the directory that holds one directory a shard.
	Dir       string
	ClusterID string
	Self      raft.ServerID
	Shards    int
	// Create lets shards that do not exist yet be made, with the configuration of
	// Bootstrap where this node is to begin the cluster.
	Create    bool
	Bootstrap *raft.Configuration
	// Opened is told of each shard that is open, in any goroutine: it may lead from then on,
	// while others are read still, and whoever leads is to serve. Nil: nobody is told.
	Opened func(router *Router, shard int, replica *Replica)

	Layer     func(shard int) raft.StreamLayer
	Addresses raft.ServerAddressProvider
	Directory Directory
	// CallDial connects to a node's internal gRPC server over its peer port.
	CallDial func(ctx context.Context, target raft.ServerID, address string) (net.Conn, error)
	// CallOptions are added to those connections.
	CallOptions []grpc.DialOption

	Timing raftfsm.Timing
	// Space is what the states may take where they lie.
	Space *store.Space
	// Actor holds the bounds; the router fills in group, store and logger.
	Actor  actor.Config
	Logger *slog.Logger
	Fatal  func(error)
}

// What one end of a gRPC connection to a node may send ahead of what the other reads, in
// bytes, of one stream and of all: gRPC asks for the rest of a message as it reads it, so no
// call waits for more than a round trip. Windows that gRPC would find by itself grow to 16 MiB,
// and are measured with a ping for nearly every call, which wakes both ends twice.
const (
	StreamWindow     = 256 << 10
	ConnectionWindow = 1 << 20
)

// callIdle is how long a connection to a node outlives the last call that was forwarded to it.
// gRPC dials a node that it has lost again and again, by default for half an hour: also one
// that was replaced, at whose address its successor refuses each of these connections.
const callIdle = time.Minute

// Router holds a node's replicas, one for each shard.
type Router struct {
	cfg      Config
	replicas []*Replica

	mu     sync.Mutex
	calls  map[raft.ServerID]*grpc.ClientConn
	closed bool
}

// Open opens every shard. It returns once their states are loaded; leaders are
// elected afterwards.
func Open(cfg Config) (*Router, error) {
	r := &Router{cfg: cfg, replicas: make([]*Replica, cfg.Shards), calls: make(map[raft.ServerID]*grpc.ClientConn)}
	if cfg.Create {
		if err := makeDirectory(cfg.Dir); err != nil {
			return nil, err
		}
	}
	failures := make([]error, cfg.Shards)
	var opening sync.WaitGroup
	for i := range r.replicas {
		opening.Go(func() {
			r.replicas[i], failures[i] = r.open(i)
			if failures[i] == nil && cfg.Opened != nil {
				cfg.Opened(r, i, r.replicas[i])
			}
		})
	}
	opening.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, errors.Join(err, r.Close(context.Background()), r.Disconnect())
	}
	return r, nil
}

// makeDirectory makes the directory of the shards, whose name is durable before any of them
// votes or serves.
func makeDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return disk.SyncDirectory(filepath.Dir(dir))
}

func (r *Router) open(shard int) (*Replica, error) {
	cfg := r.cfg
	logger := cfg.Logger.With("shard", shard)
	group, err := raftfsm.Open(raftfsm.GroupConfig{
		Dir:            filepath.Join(cfg.Dir, fmt.Sprintf("%04d", shard)),
		Identification: store.Identification{ClusterID: cfg.ClusterID, Shard: shard, Shards: cfg.Shards},
		Self:           cfg.Self,
		Layer:          cfg.Layer(shard),
		Addresses:      cfg.Addresses,
		Create:         cfg.Create,
		Bootstrap:      cfg.Bootstrap,
		Timing:         cfg.Timing,
		Logger:         logger,
		Fatal:          cfg.Fatal,
		Store:          store.Config{Space: cfg.Space},
	})
	if err != nil {
		return nil, err
	}
	act := cfg.Actor
	act.Group, act.Store, act.Logger = group, group.Store(), logger
	act.ConfirmWithin = cfg.Timing.WithDefaults().Election
	started, err := actor.Start(act)
	if err != nil {
		return nil, errors.Join(err, group.Close(context.Background()))
	}
	return &Replica{shard: shard, self: cfg.Self, group: group, actor: started, directory: cfg.Directory}, nil
}

// Shards is how many there are.
func (r *Router) Shards() int { return len(r.replicas) }

// ShardOf returns the number of the shard that owns the identity.
func (r *Router) ShardOf(id admission.Identity) int { return id.Shard(len(r.replicas)) }

// Replica returns this node's replica of a shard, from 0 to Shards()-1.
func (r *Router) Replica(shard int) *Replica { return r.replicas[shard] }

// Call returns a connection to another node's internal gRPC server, for a call that is
// forwarded. The connection is shared; it is made when it is used, and kept for callIdle.
func (r *Router) Call(to Leader) (grpc.ClientConnInterface, error) {
	target := raft.ServerID(to.ServerID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, actor.ErrShuttingDown
	}
	if conn := r.calls[target]; conn != nil {
		return conn, nil
	}
	options := append([]grpc.DialOption{
		// The peer port checks whom a connection is meant for.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			// It may have moved since the connection was made.
			address := r.cfg.Directory.PeerAddress(target, raft.ServerAddress(to.PeerAddress))
			return r.cfg.CallDial(ctx, target, address)
		}),
		// gRPC would wait up to two minutes before it tries a node again that has been
		// away for a while, and refuse every call meanwhile.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		// A connection whose other end is gone without a word is noticed.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}),
		grpc.WithIdleTimeout(callIdle),
		grpc.WithStaticStreamWindowSize(StreamWindow),
		grpc.WithStaticConnWindowSize(ConnectionWindow),
		// Whether a call may be sent again is decided where its outcome is understood.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
	}, r.cfg.CallOptions...)
	conn, err := grpc.NewClient("passthrough:///"+to.ServerID, options...)
	if err != nil {
		return nil, err
	}
	r.calls[target] = conn
	return conn, nil
}

// Close answers whoever is waiting, and closes every replica: what this node leads should have
// been handed over. Where the context ends first the rest is done without waiting. Calls that
// were forwarded go on until [Router.Disconnect], and no others are.
func (r *Router) Close(ctx context.Context) error {
	failures := make([]error, len(r.replicas))
	var closing sync.WaitGroup
	for i, replica := range r.replicas {
		if replica != nil {
			closing.Go(func() { failures[i] = replica.close(ctx) })
		}
	}
	closing.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return errors.Join(failures...)
}

// Disconnect closes the connections to other nodes. The outcome of what was forwarded over
// them and is not answered yet is unknown. It comes after Close.
func (r *Router) Disconnect() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failures []error
	for _, conn := range r.calls {
		failures = append(failures, conn.Close())
	}
	clear(r.calls)
	return errors.Join(failures...)
}
