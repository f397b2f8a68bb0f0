package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/peer"
)

// revived are nodes that run in this process on directories as a failure may have left
// them. It is the program without the process: the same start, the same
// recovery, the same services. Several find each other under the addresses that they
// had, which lead to other ports here.
type revived struct {
	nodes []*node.Node
	conns []*grpc.ClientConn
	log   bytes.Buffer
	logMu sync.Mutex

	portsMu sync.Mutex
	ports   map[string]string
}

// Write implements [io.Writer] for the nodes' log.
func (r *revived) Write(line []byte) (int, error) {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.Write(line)
}

func (r *revived) said() string {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.String()
}

func (r *revived) listen(network, address string) (net.Listener, error) {
	listener, err := net.Listen(network, "127.0.0.1:0")
	if err == nil {
		r.portsMu.Lock()
		defer r.portsMu.Unlock()
		r.ports[address] = listener.Addr().String()
	}
	return listener, err
}

func (r *revived) dial(ctx context.Context, address string) (net.Conn, error) {
	r.portsMu.Lock()
	port := r.ports[address]
	r.portsMu.Unlock()
	if port == "" {
		return nil, fmt.Errorf("nobody listens at %s", address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", port)
}

// revive starts nodes n1, n2, … on the directories of these names. peers is nil for one
// node.
func revive(dir string, count, shards int, peers []peer.Listed) (*revived, error) {
	r := &revived{ports: make(map[string]string)}
	for i := range count {
		cfg := node.Default()
		cfg.NodeID = fmt.Sprintf("n%d", i+1)
		cfg.DataDir = filepath.Join(dir, cfg.NodeID)
		cfg.Shards = shards
		cfg.Listen = fmt.Sprintf("127.0.0.1:%d", 1+i) // names it; see listen
		cfg.Peers = peers
		cfg.BalanceEvery = 0
		cfg.StopTimeout = 5 * time.Second
		cfg.FreeBytes = func(string) (int64, error) { return 1 << 40, nil }
		cfg.ListenOn, cfg.Dial = r.listen, r.dial
		cfg.Timing.Heartbeat, cfg.Timing.Election, cfg.Timing.Lease = 50*time.Millisecond, 50*time.Millisecond, 25*time.Millisecond
		if count > 1 { // the machine is busy
			cfg.Timing.Heartbeat, cfg.Timing.Election, cfg.Timing.Lease = 500*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
		}
		cfg.Logger = slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelInfo})).With("node", cfg.NodeID)
		n, err := node.Start(context.Background(), cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s does not start: %w", cfg.NodeID, err), r.close())
		}
		r.nodes = append(r.nodes, n)
		conn, err := grpc.NewClient("passthrough:///"+n.Address().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.conns = append(r.conns, conn)
	}
	return r, nil
}

// failed returns why a node cannot go on, or nil.
func (r *revived) failed() error {
	for i, n := range r.nodes {
		if err := n.Err(); err != nil {
			return fmt.Errorf("n%d does not go on: %w", i+1, err)
		}
	}
	return nil
}

// serving waits until a node knows a leader of every shard.
func (r *revived) serving(within time.Duration) error {
	var last error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err := r.failed(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		answer, err := coordinatorv1.NewAdminServiceClient(r.conns[0]).ClusterStatus(ctx, &coordinatorv1.ClusterStatusRequest{})
		cancel()
		if err == nil && answer.GetHealthy() {
			return nil
		}
		last = fmt.Errorf("%v, %w", answer.GetProblems(), err)
	}
	return fmt.Errorf("not serving after %v: %w", within, last)
}

// close stops the nodes. What does not stop well is an error.
func (r *revived) close() error {
	var failures []error
	for _, conn := range r.conns {
		failures = append(failures, conn.Close())
	}
	for _, n := range r.nodes {
		if n.Err() != nil {
			_ = n.Stop(context.Background()) // it has failed, and that has been told
			continue
		}
		failures = append(failures, n.Stop(context.Background()))
	}
	return errors.Join(failures...)
}

// retried makes a call again while no leader is there, which a busy machine may cost.
func (r *revived) retried(call func() error) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := call()
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded || r.failed() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// scratch returns a new directory for one recovery: in memory where that can be, so that
// what the recovery syncs costs nothing.
func scratch() (string, error) {
	base := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		base = "/dev/shm"
	}
	return os.MkdirTemp(base, "disk-")
}

// firstLine shortens what is told of a failure.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
