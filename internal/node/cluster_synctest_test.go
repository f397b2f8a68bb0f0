package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is one of pipes, in which hosts can be cut off.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipes
}

type pipes struct {
	*nowhere
	conns   chan net.Conn
	address string
}

type pipeAddress string

func (pipeAddress) Network() string  { return "tcp" }
func (a pipeAddress) String() string { return string(a) }

func (n *network) listen(_, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.listeners[address]; l != nil {
		select {
		case <-l.closed:
		default:
			return nil, errors.New("address already in use")
		}
	}
	l := &pipes{nowhere: newNowhere(), conns: make(chan net.Conn), address: address}
	n.listeners[address] = l
	return l, nil
}

func (p *pipes) Addr() net.Addr { return pipeAddress(p.address) }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// world is three nodes on that network.
type world struct {
	t       *testing.T
	network *network
	log     *logged
	dirs    map[string]string
	nodes   map[string]*Node
	free    int64
}

type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, network: &network{listeners: make(map[string]*pipes)}, log: &logged{},
		dirs: make(map[string]string), nodes: make(map[string]*Node), free: 1 << 40}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.dirs[name] = filepath.Join(t.TempDir(), name)
	}
	t.Cleanup(func() {
		for name := range w.nodes {
			w.stop(name)
		}
		if t.Failed() {
			t.Log(w.log)
		}
	})
	return w
}

func threePeers() []peer.Listed {
	return []peer.Listed{{Name: "n1", Address: "n1:7430"}, {Name: "n2", Address: "n2:7430"}, {Name: "n3", Address: "n3:7430"}}
}

func (w *world) config(name string) Config {
	cfg := Default()
	cfg.DataDir, cfg.NodeID = w.dirs[name], name
	cfg.Listen = name + ":7420"
	cfg.Peers = threePeers()
	cfg.Insecure = true
	cfg.ListenOn, cfg.Dial = w.network.listen, w.network.dial
	cfg.FreeBytes = func(string) (int64, error) { return w.free, nil }
	cfg.Logger = slog.New(slog.NewTextHandler(w.log, nil)).With("node", name)
	return cfg
}

func (w *world) start(name string, change func(*Config)) *Node {
	w.t.Helper()
	cfg := w.config(name)
	if change != nil {
		change(&cfg)
	}
	n, err := Start(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes[name] = n
	return n
}

// startThree starts the three nodes, and waits until all of them serve.
func (w *world) startThree() {
	w.t.Helper()
	for _, name := range []string{"n1", "n2", "n3"} {
		w.start(name, nil)
	}
	w.serving()
}

func (w *world) stop(name string) {
	w.t.Helper()
	n := w.nodes[name]
	if n == nil {
		return
	}
	delete(w.nodes, name)
	if err := n.Stop(context.Background()); err != nil {
		w.t.Errorf("stop %s: %v", name, err)
	}
}

func (w *world) wipe(name string) {
	w.t.Helper()
	if err := os.RemoveAll(w.dirs[name]); err != nil {
		w.t.Fatal(err)
	}
}

// client connects to a node as a caller does.
func (w *world) client(name string) *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+name+":7420",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(w.network.dial))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// serving waits until every started node says that it serves.
func (w *world) serving() {
	w.t.Helper()
	for name, n := range w.nodes {
		deadline := time.Now().Add(2 * time.Minute)
		for n.notReady() != "" {
			if time.Now().After(deadline) {
				w.t.Fatalf("%s is not ready: %s", name, n.notReady())
			}
			if err := n.Err(); err != nil {
				w.t.Fatalf("%s failed: %v", name, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (w *world) reserve(name, key string) (*coordinatorv1.ReserveResponse, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	return coordinatorv1.NewCoordinatorServiceClient(w.client(name)).Reserve(ctx, &coordinatorv1.ReserveRequest{
		Identity: &coordinatorv1.Identity{Operation: "op", Key: key},
	})
}

// admits checks that a key is granted once, whichever nodes are asked.
func (w *world) admits(key string, names ...string) {
	w.t.Helper()
	granted := 0
	for _, name := range names {
		answer, err := w.reserve(name, key)
		if err != nil {
			w.t.Fatalf("reserve %s on %s: %v", key, name, err)
		}
		if answer.GetGranted() != nil {
			granted++
		}
	}
	if granted != 1 {
		w.t.Errorf("%s was granted %d times", key, granted)
	}
}

func TestOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alone := func(c *Config) { c.Peers, c.Listen = nil, "n1:7420" }
		n := w.start("n1", alone)
		w.serving()
		w.admits("k", "n1", "n1")
		status, err := healthv1.NewHealthClient(w.client("n1")).Check(t.Context(),
			&healthv1.HealthCheckRequest{Service: "coordinator.v1.CoordinatorService"})
		if err != nil || status.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("got %v, %v", status, err)
		}
		members, err := coordinatorv1.NewAdminServiceClient(w.client("n1")).Members(t.Context(), &coordinatorv1.MembersRequest{})
		if err != nil || len(members.GetMembers()) != 1 || members.GetMembers()[0].GetClientAddress() != "n1:7420" ||
			members.GetClusterId() != n.file.State().ClusterID {
			t.Errorf("got %v, %v", members, err)
		}
		w.stop("n1")
		w.start("n1", alone)
		w.serving()
		answer, err := w.reserve("n1", "k")
		if err != nil || answer.GetPending() == nil {
			t.Errorf("after a restart: %v, %v", answer, err)
		}
	})
}

func TestThreeNodesInAnyOrder(t *testing.T) {
	for _, order := range [][]string{{"n1", "n2", "n3"}, {"n3", "n2", "n1"}, {"n2", "n1", "n3"}} {
		for _, late := range []time.Duration{0, 10 * time.Minute} {
			t.Run(fmt.Sprint(order, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.start(order[0], nil)
					w.start(order[1], nil)
					time.Sleep(late)
					if late > 0 {
						if _, err := w.reserve(order[0], "early"); reason.Of(err).Reason != reason.NoLeader {
							t.Errorf("before there is a cluster: %v", err)
						}
						if why := w.nodes[order[0]].notReady(); !strings.Contains(why, order[2]) {
							t.Errorf("does not say whom it waits for: %q", why)
						}
					}
					w.start(order[2], nil)
					w.serving()
					for i := range 6 {
						w.admits(fmt.Sprint("key", i), "n1", "n2", "n3")
					}
				})
			})
		}
	}
}

// A node that comes back without its disk takes part in nothing: with it and one
// other node there is no majority.
func TestWipedNodeNeitherVotesNorAcknowledges(t *testing.T) {
	for _, wiped := range []string{"n1", "n2"} {
		t.Run(wiped, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.startThree()
				w.admits("k", "n1", "n2", "n3")
				w.stop(wiped)
				w.stop("n3")
				w.wipe(wiped)
				n := w.start(wiped, func(c *Config) { c.JoinWait = time.Minute })
				time.Sleep(30 * time.Second)
				other := "n1"
				if wiped == "n1" {
					other = "n2"
				}
				if _, err := w.reserve(other, "new"); err == nil {
					t.Error("two nodes, one of them empty, acknowledged a reservation")
				}
				if n.shards.router.Load() != nil {
					t.Error("the empty node has opened shards")
				}
				if why := n.notReady(); !strings.Contains(why, "coordctl members replace "+wiped) {
					t.Errorf("does not say what to do: %q", why)
				}
				<-n.Done()
				if !errors.Is(n.Err(), membership.ErrExcluded) {
					t.Errorf("got %v", n.Err())
				}
				w.start("n3", nil)
				delete(w.nodes, wiped)
				if err := n.Stop(context.Background()); err != nil {
					t.Error(err)
				}
				w.serving()
				answer, err := w.reserve(other, "k")
				if err != nil || answer.GetPending() == nil {
					t.Errorf("the old record: %v, %v", answer, err)
				}
			})
		})
	}
}

// The way out for an operator: the empty node takes the place of what it was.
func TestReplaceMember(t *testing.T) {
	for _, lost := range []string{"n1", "n2"} {
		t.Run(lost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.startThree()
				for i := range 10 {
					w.admits(fmt.Sprint("before", i), "n1", "n2", "n3")
				}
				replace := func(name string) (*coordinatorv1.ReplaceMemberResponse, error) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					return coordinatorv1.NewAdminServiceClient(w.client("n3")).ReplaceMember(ctx,
						&coordinatorv1.ReplaceMemberRequest{NodeId: name})
				}
				for name, want := range map[string]string{
					"n9": "no node of this cluster", "": "no node",
				} {
					if _, err := replace(name); reason.Of(err).Reason != reason.InvalidArgument || !strings.Contains(err.Error(), want) {
						t.Errorf("replace %q: %v", name, err)
					}
				}
				// Where nothing is lost there is nothing to do, whoever is asked and whatever they lead.
				for name := range w.nodes {
					if answer, err := replace(name); err != nil || len(answer.GetShards()) != 0 || answer.GetIncarnation() != w.nodes[name].file.State().Incarnation {
						t.Errorf("replace %s, which is well: %v, %v", name, answer, err)
					}
				}
				w.stop(lost)
				// Whoever is only down keeps what it has: nothing may sound as if it were to be wiped.
				down := "node_id names " + lost + ", which does not answer (dial " + lost + ":7430: connection refused). " +
					"If its data directory still exists, start it with that; only if it is lost, start it with an empty one and run this again"
				if _, err := replace(lost); reason.Of(err).Reason != reason.InvalidArgument || reason.Of(err).Message != down || !reason.Blames(err, reason.NodeDoesNotAnswer) {
					t.Errorf("replace a node that is down: %v", err)
				}
				w.wipe(lost)
				n := w.start(lost, func(c *Config) { c.JoinWait = time.Hour })
				time.Sleep(10 * time.Second)
				answer, err := replace(lost)
				if err != nil || len(answer.GetShards()) != 3 || answer.GetIncarnation() != n.file.State().Incarnation {
					t.Fatalf("replace: %v, %v", answer, err)
				}
				w.serving()
				time.Sleep(20 * time.Second) // the directories settle
				for name, other := range w.nodes {
					state := other.file.State()
					if len(state.Members) != 3 || state.ClusterID != n.file.State().ClusterID {
						t.Errorf("%s has %+v", name, state)
					}
				}
				// It counts: with it and one other there is a majority again.
				w.stop("n3")
				w.serving()
				other := map[string]string{"n1": "n2", "n2": "n1"}[lost]
				time.Sleep(10 * time.Second)
				for i := range 10 {
					if answer, err := w.reserve(other, fmt.Sprint("before", i)); err != nil || answer.GetPending() == nil {
						t.Errorf("an old record: %v, %v", answer, err)
					}
					w.admits(fmt.Sprint("after", i), "n1", "n2")
				}
				// And it stays a member when it starts again.
				w.stop(lost)
				w.start(lost, nil)
				w.serving()
			})
		})
	}
}

// Who has just been put in place is listed once and is not advised to be replaced, whichever
// node is asked, from the moment on at which the replacement has been answered.
func TestReplacedNodeIsOneMemberAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n2")
		w.wipe("n2")
		time.Sleep(10 * time.Second) // for the others to lead everything
		n := w.start("n2", func(c *Config) { c.JoinWait = time.Hour })
		time.Sleep(2300 * time.Millisecond) // between two rounds in which the directories are looked after
		answer, err := coordinatorv1.NewAdminServiceClient(w.client("n3")).ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2"})
		if err != nil || len(answer.GetShards()) != 3 {
			t.Fatalf("replace: %v, %v", answer, err)
		}
		names := []string{"n1", "n2", "n3"}
		asked := make(map[string]coordinatorv1.AdminServiceClient)
		for _, name := range names {
			asked[name] = coordinatorv1.NewAdminServiceClient(w.client(name))
		}
		var problems []string
		for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(20 * time.Millisecond) {
			problems = nil
			for _, name := range names {
				status, err := asked[name].ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				at := fmt.Sprintf("%s, %v after the replacement", name, time.Since(began))
				var members []string
				for _, m := range status.GetMembers() {
					members = append(members, m.GetNodeId())
					if m.GetNodeId() == "n2" && m.GetIncarnation() != n.file.State().Incarnation {
						t.Errorf("%s: the one that was replaced is listed", at)
					}
				}
				// The newcomer knows nobody before it has heard that it belongs to them.
				if len(members) != 0 || name != "n2" {
					if !slices.Equal(members, names) {
						t.Errorf("%s: the members are %v", at, members)
					}
				}
				for _, problem := range status.GetProblems() {
					if strings.Contains(problem, "another incarnation") || strings.Contains(problem, "empty") && name != "n2" {
						t.Errorf("%s: %s", at, problem)
					}
				}
				problems = append(problems, status.GetProblems()...)
			}
			if t.Failed() {
				return
			}
		}
		if len(problems) != 0 {
			t.Errorf("in the end there are problems: %v", problems)
		}
	})
}

// A replacement that was broken off is told as one, and not as a member that is to be replaced by an
// empty one: the node that is half in its place would be it.
func TestAReplacementThatIsHalfDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n2")
		w.wipe("n2")
		n := w.start("n2", func(c *Config) { c.JoinWait = time.Hour })
		time.Sleep(10 * time.Second)
		admin := coordinatorv1.NewAdminServiceClient(w.client("n3"))
		if _, err := admin.ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2", Shard: proto.Uint32(1)}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for _, name := range []string{"n1", "n3"} {
				status, err := coordinatorv1.NewAdminServiceClient(w.client(name)).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if members := status.GetMembers(); len(members) != 3 || members[1].GetIncarnation() != n.file.State().Incarnation {
					t.Errorf("%s: the members are %v", name, members)
				}
				told := strings.Join(status.GetProblems(), " ")
				if !strings.Contains(told, "Node n2 is joining: 2 of 3 shards have yet to take it in") || strings.Contains(told, "another incarnation") {
					t.Errorf("%s: %s", name, told)
				}
			}
			time.Sleep(time.Minute)
		}
		if _, err := admin.ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2"}); err != nil {
			t.Fatal(err)
		}
		w.serving()
		time.Sleep(time.Minute)
		status, err := admin.ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
		if err != nil || !status.GetHealthy() || len(status.GetMembers()) != 3 {
			t.Errorf("in the end: %v, %v", status, err)
		}
	})
}

// A node whose place another has taken says so where an orchestrator asks.
func TestReplacedNodeSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n2")
		old := w.dirs["n2"]
		w.dirs["n2"] = old + ".new"
		w.start("n2", func(c *Config) { c.JoinWait = time.Hour })
		time.Sleep(10 * time.Second)
		if _, err := coordinatorv1.NewAdminServiceClient(w.client("n3")).ReplaceMember(t.Context(),
			&coordinatorv1.ReplaceMemberRequest{NodeId: "n2"}); err != nil {
			t.Fatal(err)
		}
		w.serving()
		w.stop("n2")
		w.dirs["n2"] = old
		n := w.start("n2", nil)
		time.Sleep(time.Minute)
		if why := n.notReady(); !strings.Contains(why, "it was replaced") {
			t.Errorf("a replaced node is not ready: %q", why)
		}
		// It cannot be put back, in one shard as little as in all.
		admin := coordinatorv1.NewAdminServiceClient(w.client("n3"))
		for _, shard := range []*uint32{nil, proto.Uint32(0), proto.Uint32(1), proto.Uint32(2)} {
			_, err := admin.ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2", Shard: shard})
			if reason.Of(err).Reason != reason.InvalidArgument || !strings.Contains(err.Error(), "has been taken") {
				t.Errorf("replace by the one that was replaced: %v", err)
			}
		}
		status, err := admin.ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
		if err != nil || status.GetHealthy() || !strings.Contains(strings.Join(status.GetProblems(), " "), "another incarnation of it answers") {
			t.Errorf("what the others say of it: %v, %v", status, err)
		}
		w.stop("n2")
		w.dirs["n2"] = old + ".new"
		w.start("n2", nil)
		w.serving()
		// A second time there is nothing to do, and that is no mistake.
		answer, err := admin.ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2"})
		if err != nil || len(answer.GetShards()) != 0 {
			t.Errorf("replace once more: %v, %v", answer, err)
		}
	})
}

// Where a majority has lost its data nobody is told to replace it, which needs one.
func TestAMajorityThatLostItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		for _, lost := range []string{"n2", "n3"} {
			w.stop(lost)
			w.wipe(lost)
		}
		admin := coordinatorv1.NewAdminServiceClient(w.client("n1"))
		told := func() string {
			time.Sleep(10 * time.Second)
			status, err := admin.ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
			if err != nil || status.GetHealthy() {
				t.Fatalf("status: %v, %v", status, err)
			}
			return strings.Join(status.GetProblems(), " ")
		}
		w.start("n2", func(c *Config) { c.JoinWait = time.Hour })
		if problems := told(); !strings.Contains(problems, "run coordctl members replace n2") {
			t.Errorf("one is lost, and one is away: %s", problems)
		}
		w.start("n3", func(c *Config) { c.JoinWait = time.Hour })
		problems := told()
		if strings.Contains(problems, "run coordctl members replace") ||
			strings.Count(problems, "That is so for 2 of 3 nodes.") != 2 || !strings.Contains(problems, "coordctl members replace cannot help then") {
			t.Errorf("two are lost: %s", problems)
		}
		_, err := admin.ReplaceMember(t.Context(), &coordinatorv1.ReplaceMemberRequest{NodeId: "n2"})
		if reason.Of(err).Reason != reason.InvalidArgument || !strings.Contains(err.Error(), "A replacement needs a majority that kept its data") {
			t.Errorf("replace: %v", err)
		}
	})
}

// Where several addresses are known of a node, as in the middle of a replacement, others may
// have come to live at one of them.
func TestANewcomerIsLookedForAtEveryAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		n1, n2, n3 := w.nodes["n1"], w.nodes["n2"].file.State(), w.nodes["n3"].file.State()
		at, _ := n1.membership.Directory().Find(n2.ID())
		other, _ := n1.membership.Directory().Find(n3.ID())
		lost := peer.Member{Name: "n2", Incarnation: strings.Repeat("ab", peer.IncarnationBytes)}
		for _, lost.PeerAddress = range []string{other, "gone:7431"} {
			servers := n1.servers()
			servers[lost.ID()] = peer.Address(lost.ID(), lost.PeerAddress)
			n1.membership.Observe(servers)
			if _, err := n1.membership.Hello(t.Context(), peer.HelloMessage{Self: lost, ClusterID: n2.ClusterID}); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				newcomer, err := n1.askNewcomer(t.Context(), "n2")
				if err != nil || newcomer.Incarnation != n2.Incarnation || newcomer.PeerAddress != at {
					t.Fatalf("with %s at %s: %+v, %v", lost.ID(), lost.PeerAddress, newcomer, err)
				}
			}
		}
	})
}

// reading starts three nodes, and n1 once more: then it takes five minutes to read shard 1.
func (w *world) reading() (n1 *Node) {
	w.t.Helper()
	w.startThree()
	w.stop("n1")
	return w.start("n1", func(c *Config) {
		c.Logger = slog.New(slowly{Handler: c.Logger.Handler(), of: 1, takes: 5 * time.Minute})
	})
}

// A node that is stopped while it reads a shard does not keep those that it leads already.
func TestStopWhileAShardIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n1 := w.reading()
		time.Sleep(time.Minute)
		if !n1.shards.Replica(0).Leader().Self {
			t.Fatal("it leads nothing")
		}
		delete(w.nodes, "n1")
		stopped := after(func() {
			if err := n1.Stop(context.Background()); err == nil {
				t.Error("it stopped in the middle of a read")
			}
		})
		time.Sleep(time.Second)
		for i := range 12 {
			w.admits(fmt.Sprint("key", i), "n2", "n3")
		}
		select {
		case <-stopped:
			t.Error("it had stopped before")
		default:
		}
		<-stopped
		w.stop("n2") // the others are of no use any more, and go on at a price
		w.stop("n3")
		time.Sleep(5 * time.Minute) // the process would have ended
		if err := errors.Join(n1.Router().Close(t.Context()), n1.Router().Disconnect()); err != nil {
			t.Error(err)
		}
	})
}

// A signal may have come before the start was over.
func TestStopRightAfterTheStart(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			n := w.start("n1", func(c *Config) { c.HTTPListen, c.MetricsListen = "n1:8080", "n1:9090" })
			w.stop("n1")
			if err := n.Err(); err != nil {
				t.Errorf("it could not go on: %v", err)
			}
		})
	}
}

// late is a connection on which what comes takes its time.
type late struct{ net.Conn }

func (l late) Read(into []byte) (int, error) {
	n, err := l.Conn.Read(into)
	time.Sleep(200 * time.Millisecond)
	return n, err
}

// What a node has forwarded is answered also where the answer comes while it stops.
func TestStopWaitsForWhatWasForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name, func(c *Config) {
				c.BalanceEvery = 0
				if name == "n1" {
					c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
						conn, err := w.network.dial(ctx, address)
						return late{conn}, err
					}
				}
			})
		}
		w.serving()
		if _, err := coordinatorv1.NewAdminServiceClient(w.client("n1")).TransferLeadership(t.Context(), &coordinatorv1.TransferLeadershipRequest{}); err != nil {
			t.Fatal(err)
		}
		w.serving()
		for i := range 12 { // the connections are open then
			if _, err := w.reserve("n1", fmt.Sprint("before", i)); err != nil {
				t.Fatal(err)
			}
		}
		var calls sync.WaitGroup
		for i := range 12 {
			calls.Go(func() {
				if answer, err := w.reserve("n1", fmt.Sprint("key", i)); err != nil || answer.GetGranted() == nil {
					t.Errorf("key%d: %v, %v", i, answer, err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond) // they are on their way
		w.stop("n1")
		calls.Wait()
	})
}

// slowly is a log whose reading of one shard's state takes its time.
type slowly struct {
	slog.Handler
	of    int64 // the shard
	takes time.Duration
	mine  bool // what is logged is of that shard
}

func (s slowly) WithAttrs(attributes []slog.Attr) slog.Handler {
	s.Handler = s.Handler.WithAttrs(attributes)
	for _, a := range attributes {
		s.mine = s.mine || a.Key == "shard" && a.Value.Int64() == s.of
	}
	return s
}

func (s slowly) Handle(ctx context.Context, record slog.Record) error {
	if s.mine && record.Message == "read the state file" {
		time.Sleep(s.takes)
	}
	return s.Handler.Handle(ctx, record)
}

// A node whose shards take different times to be read leads none that it does not serve.
func TestAShardThatIsReadForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n1 := w.reading()
		for at := range 4 {
			time.Sleep(time.Minute)
			for i := range 12 {
				w.admits(fmt.Sprint("key", at, "-", i), "n2", "n3")
			}
		}
		if n1.Router() != nil {
			t.Error("nothing was slow")
		}
		w.serving()
		for i := range 12 {
			w.admits(fmt.Sprint("later", i), "n1", "n2", "n3")
		}
	})
}

// Leadership moves away from a node that stops, before it is gone.
func TestStopHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		for _, name := range []string{"n1", "n2", "n3"} {
			before := time.Now()
			w.stop(name)
			if took := time.Since(before); took > peer.HandshakeTimeoutDefault {
				t.Errorf("stopping %s took %v", name, took)
			}
			synctest.Wait() // who was handed a shard takes it now
			for _, n := range w.nodes {
				for i := range n.shards.count {
					leader := n.shards.Replica(i).Leader()
					if leader.NodeID == name {
						t.Errorf("%s still follows %s in shard %d", n.cfg.NodeID, name, i)
					}
				}
			}
			w.start(name, nil)
			w.serving()
		}
	})
}

func TestLeadersAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		six := func(c *Config) { c.Shards = 6 }
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name, six)
		}
		w.serving()
		time.Sleep(2 * time.Minute)
		led := make(map[string]int)
		for i := range 6 {
			led[w.nodes["n1"].shards.Replica(i).Leader().NodeID]++
		}
		for name, count := range led {
			if count != 2 {
				t.Errorf("%s leads %d of 6 shards", name, count)
			}
		}
	})
}

func TestShortOfSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alone := func(c *Config) { c.Peers = nil }
		w.start("n1", alone)
		w.serving()
		w.admits("k", "n1")
		w.stop("n1")
		w.free = 15 << 20
		w.start("n1", alone)
		w.serving()
		time.Sleep(2 * time.Second)
		const space = "15 MiB free, the floor is 256 MiB"
		if _, err := w.reserve("n1", "new"); reason.Of(err).Reason != reason.StorageFull || !strings.Contains(err.Error(), space) {
			t.Errorf("got %v", err)
		}
		status, err := coordinatorv1.NewAdminServiceClient(w.client("n1")).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
		if err != nil || !strings.Contains(strings.Join(status.GetProblems(), " "), space) {
			t.Errorf("status: %v, %v", status, err)
		}
		if answer, err := w.reserve("n1", "k"); err != nil || answer.GetPending() == nil {
			t.Errorf("the record that exists: %v, %v", answer, err)
		}
	})
}

// Where nobody can tell how much space there is, there may be none.
func TestSpaceThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var broken atomic.Bool
		w.start("n1", func(c *Config) {
			c.Peers = nil
			c.FreeBytes = func(string) (int64, error) {
				if broken.Load() {
					return 0, errors.New("no answer")
				}
				return 1 << 40, nil
			}
		})
		w.serving()
		w.admits("k", "n1")
		broken.Store(true)
		time.Sleep(2 * time.Second)
		if _, err := w.reserve("n1", "new"); reason.Of(err).Reason != reason.StorageFull {
			t.Errorf("got %v", err)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		w.admits("new", "n1")
	})
}

// Whichever node is asked says which one takes no new keys, and that one leads nothing for
// long while others have space. It has its share again once it has.
func TestShortOfSpaceAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var free atomic.Int64
		free.Store(1000)
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name, func(c *Config) {
				if name == "n3" {
					c.FreeBytes = func(string) (int64, error) { return free.Load(), nil }
				}
			})
		}
		w.serving()
		leads := func() (count int) {
			for i := range 3 {
				if w.nodes["n3"].shards.router.Load().Replica(i).Leads() {
					count++
				}
			}
			return count
		}
		time.Sleep(time.Minute)
		for _, name := range []string{"n1", "n2", "n3"} {
			status, err := coordinatorv1.NewAdminServiceClient(w.client(name)).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
			if err != nil || status.GetHealthy() || len(status.GetProblems()) != 1 || !strings.Contains(status.GetProblems()[0], "free disk space") {
				t.Errorf("%s says %v, %v", name, status, err)
			}
		}
		if n := leads(); n != 0 {
			t.Errorf("it leads %d shards", n)
		}
		for i := range 20 {
			w.admits(fmt.Sprint("k", i), "n1", "n2", "n3")
		}
		free.Store(1 << 40)
		time.Sleep(time.Minute)
		if n := leads(); n != 1 {
			t.Errorf("with space it leads %d shards", n)
		}
		// It refuses what it leads, so it does not wait for its usual turn.
		for i := range 3 {
			router := w.nodes["n3"].shards.router.Load()
			for _, name := range []string{"n1", "n2"} {
				if replica := w.nodes[name].shards.router.Load().Replica(i); replica.Leads() {
					if err := replica.TransferLeadership(t.Context(), "n3"); err != nil {
						t.Fatal(err)
					}
				}
			}
			for !router.Replica(i).Leads() {
				time.Sleep(10 * time.Millisecond)
			}
		}
		free.Store(1000)
		time.Sleep(6 * time.Second)
		if n := leads(); n != 0 {
			t.Errorf("six seconds after it was short of space it leads %d shards", n)
		}
	})
}

// A node that hears the others and is not heard by them keeps up, and takes over nothing: each time it
// is handed a shard, that has no leader for a while. So it is asked less and less often, and those that
// ask say so. It has its share again once it is heard.
func TestWhoTakesNothingOverIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n3")
		var mute atomic.Bool
		mute.Store(true)
		w.start("n3", func(c *Config) {
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				if mute.Load() {
					return nil, errors.New("no way out")
				}
				return w.network.dial(ctx, address)
			}
		})
		const failed = "could not hand a shard over"
		time.Sleep(10 * time.Minute)
		if times := strings.Count(w.log.String(), failed); times < 2 || times > 12 { // two nodes ask, each less and less often
			t.Errorf("a shard was handed over %d times in vain", times)
		}
		var told string
		for _, name := range []string{"n1", "n2"} {
			status, err := coordinatorv1.NewAdminServiceClient(w.client(name)).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			told += strings.Join(status.GetProblems(), " ")
		}
		if !strings.Contains(told, "Node n3 was handed a shard") {
			t.Errorf("status says %q", told)
		}
		mute.Store(false)
		time.Sleep(20 * time.Minute)
		led := 0
		for i := range 3 {
			if w.nodes["n3"].shards.router.Load().Replica(i).Leads() {
				led++
			}
		}
		if led != 1 {
			t.Errorf("n3 leads %d shards once it is heard", led)
		}
	})
}

// What the copies of all states may take is what is above the floor.
func TestStatesShareTheSpaceAboveTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.free = 1500
		n := w.start("n1", func(c *Config) { c.Peers, c.FreeBytesMin = nil, 1000 })
		w.serving()
		space := func(shard int) *store.Space { return n.shards.router.Load().Replica(shard).Group().Store().Space() }
		if err := space(0).Take(300); err != nil {
			t.Error(err)
		}
		if err := space(1).Take(201); !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("more than there is: %v", err)
		}
		if err := space(2).Take(200); err != nil {
			t.Error(err)
		}
	})
}

// Near the floor the space is looked at so often that a quick disk is not full by the
// next look; far from it, every second is enough.
func TestSpaceIsLookedAtMoreOftenNearTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var free, looks atomic.Int64
		free.Store(1 << 40)
		w.start("n1", func(c *Config) {
			c.Peers, c.FreeBytesMin = nil, 1000
			c.FreeBytes = func(string) (int64, error) { looks.Add(1); return free.Load(), nil }
		})
		w.serving()
		looked := func(within time.Duration) int64 {
			before := looks.Load()
			time.Sleep(within)
			return looks.Load() - before
		}
		if n := looked(10 * time.Second); n < 9 || n > 11 {
			t.Errorf("far from the floor: %d looks in 10 s", n)
		}
		free.Store(3999)
		time.Sleep(diskEvery)
		if n := looked(10 * time.Second); n < 199 || n > 201 {
			t.Errorf("near the floor: %d looks in 10 s", n)
		}
		free.Store(999)
		time.Sleep(spaceEvery)
		if _, err := w.reserve("n1", "new"); reason.Of(err).Reason != reason.StorageFull {
			t.Errorf("%v after the floor was passed: %v", spaceEvery, err)
		}
	})
}

// A member that the others cannot reach would serve nothing, and not say why.
func TestAMemberWithoutAPeerPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n2")
		cfg := w.config("n2")
		cfg.Peers = nil
		var setting *SettingError
		if n, err := Start(t.Context(), cfg); !errors.As(err, &setting) || setting.Setting != "peers" || !strings.Contains(err.Error(), "cluster of 3") {
			t.Errorf("started %v, %v", n, err)
		}
		w.start("n2", func(c *Config) { c.Peers, c.PeerListen, c.PeerAdvertise = nil, "n2:7430", "n2:7430" })
		w.serving()
	})
}

// Invariant 5.
func TestDirectoryThatIsTakenAwayEndsTheNode(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"deleted": os.RemoveAll,
		"replaced by its copy": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"-elsewhere"), os.CopyFS(dir, os.DirFS(dir+"-elsewhere")))
		},
		"without its lock":   func(dir string) error { return os.Remove(filepath.Join(dir, membership.LockName)) },
		"without its shards": func(dir string) error { return os.RemoveAll(filepath.Join(dir, membership.ShardsDirName)) },
		"without a shard":    func(dir string) error { return os.RemoveAll(filepath.Join(dir, membership.ShardsDirName, "0002")) },
		"without a log": func(dir string) error {
			return os.RemoveAll(filepath.Join(dir, membership.ShardsDirName, "0001", "log"))
		},
		"without a state": func(dir string) error {
			return os.Remove(filepath.Join(dir, membership.ShardsDirName, "0001", "state.db"))
		},
		"without the log's end": func(dir string) error {
			return os.Remove(filepath.Join(dir, membership.ShardsDirName, "0000", "log", "end"))
		},
		"without the log's index": func(dir string) error {
			return os.Remove(filepath.Join(dir, membership.ShardsDirName, "0000", "log", "wal-meta.db"))
		},
		"without the segment that is written to": func(dir string) error {
			segments, err := filepath.Glob(filepath.Join(dir, membership.ShardsDirName, "0000", "log", "*.wal"))
			if err != nil || len(segments) == 0 {
				return errors.Join(err, errors.New("no segments"))
			}
			return os.Remove(segments[len(segments)-1])
		},
		"with a copy of a log": func(dir string) error {
			log := filepath.Join(dir, membership.ShardsDirName, "0000", "log")
			return errors.Join(os.Rename(log, log+"-elsewhere"), os.CopyFS(log, os.DirFS(log+"-elsewhere")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.start("n1", func(c *Config) { c.Peers, c.FreeBytesMin = nil, 0 })
				w.serving()
				time.Sleep(time.Minute)
				if err := n.Err(); err != nil {
					t.Fatal(err)
				}
				if err := take(w.dirs["n1"]); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				<-n.Done()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("ended after %v", took)
				}
				if err := n.Err(); !errors.Is(err, disk.ErrGone) || !strings.Contains(err.Error(), w.dirs["n1"]) {
					t.Errorf("ended with %v", err)
				}
				delete(w.nodes, "n1")
				_ = n.Stop(context.Background()) // what it still has to write has no place
			})
		})
	}
}

// Invariant 6.
func TestPanicsAreAnswered(t *testing.T) {
	var log logged
	answer, err := recoverUnary(slog.New(slog.NewTextHandler(&log, nil)))(t.Context(), nil,
		&grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) { panic("secret") })
	f := reason.Of(err)
	if answer != nil || f.Code != codes.Unavailable || f.Reason != reason.OutcomeUnknown || strings.Contains(f.Message, "secret") {
		t.Errorf("got %v, %+v", answer, f)
	}
	if text := log.String(); !strings.Contains(text, "secret") || !strings.Contains(text, "/x/Y") {
		t.Errorf("logged %q", text)
	}
}

// Invariant 3. A crash while the shards are created: what is there is kept, what is
// missing is made; afterwards a missing one is an error.
func TestCrashWhileShardsAreCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alone := func(c *Config) { c.Peers = nil }
		w.start("n1", alone)
		w.serving()
		for i := range 9 {
			w.admits(fmt.Sprint("key", i), "n1")
		}
		records := make([]uint64, 3)
		for i := range records {
			for _, count := range w.nodes["n1"].shards.Replica(i).Status().Records {
				records[i] += count
			}
		}
		w.stop("n1")
		path := filepath.Join(w.dirs["n1"], membership.FileName)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := strings.Replace(string(content), "  \"shards_created\": true,\n", "", 1)
		if before == string(content) {
			t.Fatalf("the shards of a running node are not noted: %s", content)
		}
		before = regexp.MustCompile(`,\n  "checksum": "[0-9a-f]{8}"`).ReplaceAllString(before, "") // of what there was
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		lost := filepath.Join(w.dirs["n1"], membership.ShardsDirName, "0002")
		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		w.start("n1", alone)
		w.serving()
		for i := range 3 {
			got := uint64(0)
			for _, count := range w.nodes["n1"].shards.Replica(i).Status().Records {
				got += count
			}
			if want := records[i]; i < 2 && got != want || i == 2 && got != 0 {
				t.Errorf("shard %d has %d records; it had %d", i, got, want)
			}
		}
		w.stop("n1")

		if err := os.RemoveAll(lost); err != nil {
			t.Fatal(err)
		}
		n := w.start("n1", alone)
		<-n.Done()
		if err := n.Err(); err == nil || !strings.Contains(err.Error(), lost) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(lost); err == nil {
			t.Error("a lost shard was made anew")
		}
	})
}

// What strangers send to the peer port does not disturb the cluster behind it.
func TestStrangersAtThePeerPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		for i := range 300 {
			conn, err := w.network.dial(t.Context(), "n1:7430")
			if err != nil {
				t.Fatal(err)
			}
			text := []string{"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00", strings.Repeat("\xff", 1<<16), "\xadACP\x02\x01\xff\xff"}[i%5]
			go func() { _, _ = conn.Write([]byte(text)) }()
			defer conn.Close()
		}
		time.Sleep(time.Second)
		w.admits("k", "n1", "n2", "n3")
		time.Sleep(time.Minute)
		w.admits("l", "n1", "n2", "n3")
	})
}

// copyOf copies a node's directory and returns what starts a node on the copy, under
// another address.
func (w *world) copyOf(name, host string) func(*Config) {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(w.dirs[name])); err != nil {
		w.t.Fatal(err)
	}
	return func(c *Config) {
		c.DataDir = dir
		c.Listen, c.PeerListen, c.PeerAdvertise = host+":7420", host+":7430", host+":7430"
	}
}

// ends waits until a node cannot go on, and lets it stop.
func (w *world) ends(n *Node, within time.Duration) error {
	w.t.Helper()
	select {
	case <-n.Done():
	case <-time.After(within):
		w.t.Fatalf("%s goes on after %v", n.cfg.DataDir, within)
	}
	if err := n.Stop(context.Background()); err != nil {
		w.t.Errorf("stop %s: %v", n.cfg.DataDir, err)
	}
	return n.Err()
}

// Two processes of one server do not both count: the older one ends, and with only it
// and one other node there is no majority.
func TestCopyOfARunningNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.admits("k", "n1", "n2", "n3")
		original := w.nodes["n3"]
		elsewhere := w.copyOf("n3", "copy")
		copied := w.start("n3", elsewhere)
		err := w.ends(original, 10*time.Second)
		var superseded *peer.SupersededError
		if !errors.As(err, &superseded) || !strings.Contains(err.Error(), "another process runs, or ran later") {
			t.Errorf("the original ended with %v", err)
		}
		w.serving()
		w.admits("l", "n1", "n2")
		if err := copied.Err(); err != nil {
			t.Errorf("the copy: %v", err)
		}
		w.stop("n3")

		// The original would look newer than the copy after two more starts.
		if _, err := Start(t.Context(), w.config("n3")); err == nil || !strings.Contains(err.Error(), "is not used again") {
			t.Errorf("the original, started again: %v", err)
		}
		w.stop("n2")
		time.Sleep(10 * time.Second)
		if _, err := w.reserve("n1", "m"); err == nil {
			t.Error("one node acknowledged a reservation")
		}
	})
}

// Of two copies that were started equally often the first one is kept.
func TestTwoCopiesOfAStoppedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		w.stop("n3")
		elsewhere := w.copyOf("n3", "copy")
		first := w.start("n3", nil)
		w.serving()
		second := w.start("n3", elsewhere)
		w.nodes["n3"] = first
		var superseded *peer.SupersededError
		if err := w.ends(second, 10*time.Second); !errors.As(err, &superseded) {
			t.Errorf("the second ended with %v", err)
		}
		w.serving()
		w.admits("k", "n1", "n2", "n3")
	})
}

// A node that is started again is taken by the others at once, however often.
func TestRestartsAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		for i := range 5 {
			w.stop("n3")
			w.start("n3", nil)
			began := time.Now()
			w.serving()
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("restart %d: back after %v", i, took)
			}
		}
		if text := w.log.String(); strings.Contains(text, "two processes under one identity") || strings.Contains(text, "superseded") {
			t.Error("a restart was taken for a copy")
		}
	})
}

// Whoever connects and says nothing keeps no file for longer than that, whichever port it is.
func TestConnectionsThatSayNothingAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.startThree()
		for _, port := range []string{"n1:7420", "n1:7430"} {
			for name, said := range map[string]string{"nothing": "", "no HTTP/2": "G", "half a preface": "PRI * HTTP/2.0\r\n"} {
				conn, err := w.network.dial(t.Context(), port)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				go io.WriteString(conn, said)
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Errorf("%s, %s: %v", port, name, err)
				}
				if took := time.Since(began); took > peer.HandshakeTimeoutDefault {
					t.Errorf("%s: what said %s was dropped after %v", port, name, took)
				}
				_ = conn.Close()
			}
		}
		w.admits("k", "n1", "n2", "n3")
	})
}

// A stop waits for calls that are under way, and for nobody who has not said what for.
func TestAStopWaitsForNobodyWhoSaysNothing(t *testing.T) {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for name, silent := range map[string]struct{ port, said string }{
		"nobody":                  {},
		"gRPC, nothing":           {"n1:7420", ""},
		"gRPC, half a preface":    {"n1:7420", preface[:16]},
		"gRPC, no frame":          {"n1:7420", preface},
		"gRPC, half a header":     {"n1:7420", preface + "\x00\x00"},
		"gRPC, half the settings": {"n1:7420", preface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x03"},
		"gRPC, half the headers":  {"n1:7420", preface + "\x00\x00\x01\x01\x00\x00\x00\x00\x01" + "\x82"}, // more are to follow
		"probes, nothing":         {"n1:8080", ""},
		"metrics, nothing":        {"n1:9090", ""},
		"other nodes, no preface": {"n1:7430", "header"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				n := w.start("n1", func(c *Config) {
					c.Peers, c.PeerListen, c.HTTPListen, c.MetricsListen = nil, "n1:7430", "n1:8080", "n1:9090"
				})
				w.serving()
				if silent.port != "" {
					conn, err := w.network.dial(t.Context(), silent.port)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					said := []byte(silent.said)
					if silent.said == "header" {
						header := peer.Header{Kind: peer.KindCall, Sender: raft.ServerID("n9/" + n.file.State().Incarnation), Life: peer.NewLife(1), Cluster: n.foundCluster(), Target: n.port.Self()}
						if said, err = header.Encode(); err != nil {
							t.Fatal(err)
						}
					}
					go func() { _, _ = io.Copy(io.Discard, conn) }() // the server speaks before it listens
					go func() { _, _ = conn.Write(said) }()
				}
				time.Sleep(time.Second)
				began := time.Now()
				w.stop("n1")
				if took := time.Since(began); took >= time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
