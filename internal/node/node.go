package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/metrics"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
	"github.com/atmostonce/coordinator/internal/store"
)

// Node is a running node.
type Node struct {
	cfg        Config
	lock       *membership.Lock
	file       *membership.File
	security   security
	membership *membership.Membership
	port       *peer.Port
	shards     *shards
	public     *grpc.Server // for clients
	internal   *grpc.Server // for calls that other nodes forward
	health     *health.Server
	http       *http.Server // nil: none
	scrapes    *http.Server // of metrics; nil: none
	metrics    *metrics.Metrics
	arriving   rpc.Arriving // at the gRPC servers
	looking    rpc.Arriving // at the HTTP servers
	listener   *clientListener
	httpAt     net.Addr // nil: none
	metricsAt  net.Addr // nil: none

	ctx         context.Context // ends when the node begins to stop
	cancel      context.CancelFunc
	work        sync.WaitGroup // everything that runs until then
	serverWork  sync.WaitGroup // the servers
	storageFull atomic.Bool
	freeBytes   atomic.Int64           // as looked at last; negative: not yet
	clusterID   atomic.Pointer[string] // nil: not found yet
	ready       chan struct{}

	healthMu sync.Mutex
	serving  bool

	declined declined // by [Node.balance]

	failOnce sync.Once
	failed   chan struct{}
	failure  error // set before failed is closed

	stopOnce sync.Once
	closing  chan struct{} // closed before the shards are, by Stop
	stopped  chan struct{}
	stopErr  error
}

// Start starts a node. It returns once its ports are open; see the package comment for
// what goes on afterwards. ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, health: newHealth(), ready: make(chan struct{}), failed: make(chan struct{}), closing: make(chan struct{}), stopped: make(chan struct{})}
	n.freeBytes.Store(-1)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.prepare(ctx); err != nil {
		n.cancel()
		return nil, errors.Join(err, n.undo())
	}
	n.serve()
	n.work.Go(n.run)
	n.work.Go(func() { n.watchDisk(n.ctx) })
	n.watchCertificates()
	return n, nil
}

func (c *Config) withDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ListenOn == nil {
		c.ListenOn = net.Listen
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	if c.FreeBytes == nil {
		c.FreeBytes = freeBytes
	}
	if c.FilesMax == nil {
		c.FilesMax = filesMax
	}
}

// prepare takes the directory and the ports, and puts everything together. What it has
// taken when it fails is for undo.
func (n *Node) prepare(ctx context.Context) (err error) {
	cfg := &n.cfg
	if n.security, err = openSecurity(cfg); err != nil {
		return err
	}
	if n.lock, err = membership.Acquire(ctx, cfg.DataDir); err != nil {
		return err
	}
	if n.file, err = membership.Open(cfg.DataDir, cfg.NodeID, cfg.Shards, ShardsDefault); err != nil {
		return err
	}
	if err := n.file.CheckPeers(cfg.Peers); err != nil {
		return err
	}
	if members := len(n.file.State().Members); members > 1 && cfg.peerListen() == "" {
		return wrong("peers", "is missing, and the data directory is that of a member of a cluster of %d, whom the others could not reach: "+
			"give it as at the first start, or --peer-listen", members)
	}
	starts, err := n.file.CountStart()
	if err != nil {
		return err
	}
	state := n.file.State()
	n.shards = newShards(state.Shards)

	most := n.clientConnectionsMax(state.Shards, cfg.nodes(&state))
	if n.listener, err = listenForClients(cfg, "listen", cfg.Listen, most); err != nil {
		return err
	}
	peers := net.Listener(newNowhere())
	peerAddress := ""
	if at := cfg.peerListen(); at != "" {
		if peers, err = listen(cfg, "peer-listen", at); err != nil {
			return err
		}
		set := cfg.PeerAdvertise
		if set == "" {
			set = cfg.listed()
		}
		peerAddress = advertised(set, peers.Addr(), hostname)
	}
	if err := n.openPort(&state, peer.NewLife(starts), peers, peerAddress); err != nil {
		return errors.Join(err, peers.Close())
	}
	return n.register()
}

// nodes is how many nodes there are, by the list of peers or the members that are known.
func (c *Config) nodes(state *membership.State) int { return max(len(c.Peers), len(state.Members)) }

func listen(cfg *Config, setting, address string) (net.Listener, error) {
	listener, err := cfg.ListenOn("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return listener, nil
}

// listenForClients is listen for a port that clients reach.
func listenForClients(cfg *Config, setting, address string, most int64) (*clientListener, error) {
	listener, err := listen(cfg, setting, address)
	if err != nil {
		return nil, err
	}
	return &clientListener{Listener: listener, most: most, logger: cfg.Logger}, nil
}

// hostname is what an address that stands for all of the machine's is called outside.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

func (n *Node) openPort(state *membership.State, life peer.Life, listener net.Listener, peerAddress string) (err error) {
	cfg := membership.Default()
	cfg.File = n.file
	cfg.PeerAddress = peerAddress
	cfg.ClientAddress = advertised(n.cfg.Advertise, n.listener.Addr(), func() string {
		if host, _, err := net.SplitHostPort(peerAddress); err == nil {
			return host
		}
		return hostname()
	})
	cfg.Peers = n.cfg.Peers
	cfg.JoinWait = n.cfg.JoinWait
	cfg.Logger = n.cfg.Logger
	cfg.StorageFull = n.storageFull.Load
	n.membership = membership.New(cfg)
	port := peer.Default()
	port.Listener, port.Dial = listener, n.cfg.Dial
	if secured := n.security.peers; secured != nil {
		if host, _, err := net.SplitHostPort(peerAddress); err == nil {
			secured.Among(host)
		}
		port.Listener, port.Dial = secured.Listener(listener), secured.Dialer(n.cfg.Dial)
	}
	port.Self, port.Life = state.ID(), life
	port.Advertise = peerAddress
	port.Hello = n.membership.Hello
	port.Superseded = n.supersede
	port.AddressOf = n.membership.Directory().Find
	port.Logger = n.cfg.Logger
	port.ConnectionsMax = connectionsMax(state.Shards, n.cfg.nodes(state))
	n.port, err = peer.Listen(port)
	return err
}

// connectionsMax is how many connections others may have to a node's peer port, so that every
// replica there has those that it needs. What a replica has led or voted in once it keeps
// connections for, so each node may have some to each shard of each other.
func connectionsMax(shards, nodes int) int {
	return peer.Default().ConnectionsMax + shards*max(nodes-1, 0)*raftfsm.ConnectionsMax
}

// register makes the servers.
func (n *Node) register() error {
	calls := rpc.Config{
		Shards:      n.shards,
		Cluster:     cluster{n},
		Membership:  cluster{n},
		Settings:    n.cfg.Calls,
		StorageFull: n.storageFull.Load,
		Space:       n.space,
		Logger:      n.cfg.Logger,
		Stopping:    n.ctx.Done(),
		Closing:     n.closing,
		Calls:       []*rpc.Calls{rpc.NewCalls(), rpc.NewCalls()},
	}
	n.public = n.newServer(n.security.forClients(n.cfg.Logger))
	n.internal = n.newServer(insecure.NewCredentials()) // the peer port is encrypted as a whole
	if err := rpc.Register(calls, n.public, n.internal); err != nil {
		return err
	}
	n.registerPublic()
	if err := n.registerMetrics(calls.Calls[0], calls.Calls[1]); err != nil {
		return err
	}
	var err error
	if at := n.cfg.HTTPListen; at != "" {
		if n.http, n.httpAt, err = n.openHTTP("http-listen", at, n.probes()); err != nil {
			return err
		}
	}
	if at := n.cfg.MetricsListen; at != "" {
		if n.scrapes, n.metricsAt, err = n.openHTTP("metrics-listen", at, n.metricsHandler()); err != nil {
			return err
		}
	}
	return nil
}

// undo gives back what a start that failed had taken.
func (n *Node) undo() error {
	var failures []error
	for _, server := range n.httpServers() {
		failures = append(failures, server.Close())
	}
	for _, server := range []*grpc.Server{n.public, n.internal} {
		if server != nil {
			server.Stop()
		}
	}
	n.serverWork.Wait()
	if n.port != nil {
		failures = append(failures, n.port.Close())
	}
	if n.listener != nil {
		failures = append(failures, n.listener.Close())
	}
	if n.lock != nil {
		failures = append(failures, n.lock.Release())
	}
	return errors.Join(failures...)
}

// serve starts the gRPC servers. One that was stopped before it had begun to serve says so
// with an error, which is none of the node's.
func (n *Node) serve() {
	n.serverWork.Go(func() {
		if err := n.public.Serve(n.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			n.fail(fmt.Errorf("serve gRPC on %s: %w", n.listener.Addr(), err))
		}
	})
	n.serverWork.Go(func() {
		if err := n.internal.Serve(n.port.CallListener()); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			n.fail(fmt.Errorf("serve gRPC on the peer port: %w", err))
		}
	})
	state := n.file.State()
	n.cfg.Logger.Info("listening", "node", string(state.ID()), "version", n.cfg.Version, "data_dir", n.cfg.DataDir,
		"grpc", n.listener.Addr().String(), "client_address", n.membership.Directory().ClientAddress(state.ID()),
		"client_tls", n.cfg.TLS.Given(), "clients_are_asked", n.cfg.TLS.Authorities != "",
		"peers", n.port.Advertised(), "peer_tls", n.cfg.PeerTLS.Given(), "shards", state.Shards)
}

// run finds the cluster, opens the shards, and keeps the members informed.
func (n *Node) run() {
	state, err := n.membership.Find(n.ctx, n.port)
	if n.ctx.Err() != nil {
		return
	}
	if err != nil {
		n.fail(err)
		return
	}
	n.port.JoinCluster(state.ClusterID)
	n.clusterID.Store(&state.ClusterID)
	router, err := shard.Open(n.shardConfig(&state))
	if err != nil {
		n.fail(err)
		return
	}
	n.shards.open(router)
	if !state.ShardsCreated {
		if err := n.file.ShardsCreated(); err != nil {
			n.fail(err)
			return
		}
	}
	n.cfg.Logger.Info("the shards are open", "cluster", state.ClusterID)
	close(n.ready)
	for i := range router.Shards() {
		n.work.Go(func() { n.watchHealth(n.ctx, i) })
	}
	n.work.Go(func() { n.balance(n.ctx) })
	n.membership.Exchange(n.ctx, n.port, n.servers)
}

func (n *Node) shardConfig(state *membership.State) shard.Config {
	cfg := shard.Config{
		Dir:       filepath.Join(n.cfg.DataDir, membership.ShardsDirName),
		ClusterID: state.ClusterID,
		Self:      state.ID(),
		Shards:    state.Shards,
		Create:    !state.ShardsCreated,
		Opened:    n.shards.opened,
		Layer:     func(number int) raft.StreamLayer { return n.port.Layer(number) },
		Addresses: n.port.Addresses(),
		Directory: n.membership.Directory(),
		CallDial:  n.port.CallDial,
		Timing:    n.cfg.Timing,
		Space:     store.NewSpace(n.freeNow, n.cfg.FreeBytesMin),
		Actor:     n.cfg.Actor,
		Logger:    n.cfg.Logger,
		Fatal:     n.fail,
	}
	if state.Founder && !state.ShardsCreated {
		cfg.Bootstrap = bootstrap(state.Members)
	}
	if len(state.Members) == 1 && cfg.Timing == raftfsm.DefaultTiming() {
		cfg.Timing.Heartbeat, cfg.Timing.Election, cfg.Timing.Lease = aloneTimeout, aloneTimeout, aloneTimeout
	}
	return cfg
}

// freeNow looks at the free space.
func (n *Node) freeNow() (int64, error) { return n.cfg.FreeBytes(n.cfg.DataDir) }

// aloneTimeout is how long a node that is its own majority listens for a leader before it
// elects itself, unless it was told otherwise. There is nobody whom it might not hear.
const aloneTimeout = 100 * time.Millisecond

// bootstrap is the configuration that every shard of a new cluster begins with.
func bootstrap(members []peer.Member) *raft.Configuration {
	configuration := &raft.Configuration{}
	for _, m := range members {
		configuration.Servers = append(configuration.Servers, raft.Server{
			Suffrage: raft.Voter, ID: m.ID(), Address: peer.Address(m.ID(), m.PeerAddress),
		})
	}
	return configuration
}

// fail ends the node: the first reason counts.
func (n *Node) fail(err error) {
	n.failOnce.Do(func() {
		n.failure = err
		close(n.failed)
	})
}

// supersede ends the node for good: another process is newer under its identity.
func (n *Node) supersede(err *peer.SupersededError) {
	noted := after(func() {
		if err := n.file.Supersede(err.By); err != nil {
			n.cfg.Logger.Error("could not note that this data directory must not be used again", "error", err)
		}
	})
	// A disk that hangs does not keep the node alive.
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-noted:
	case <-timer.C:
	}
	n.fail(err)
}

// Done is closed when the node cannot go on; the process should end. See [Node.Err].
func (n *Node) Done() <-chan struct{} { return n.failed }

// Err returns why the node cannot go on, or nil.
func (n *Node) Err() error {
	select {
	case <-n.failed:
		return n.failure
	default:
		return nil
	}
}

// Ready is closed once the shards are open. They may still be without leaders.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Address returns where the gRPC services are.
func (n *Node) Address() net.Addr { return n.listener.Addr() }

// MetricsAddress returns where /metrics is; nil without it.
func (n *Node) MetricsAddress() net.Addr { return n.metricsAt }

// HTTPAddress returns where /livez and /readyz are; nil without them.
func (n *Node) HTTPAddress() net.Addr { return n.httpAt }
