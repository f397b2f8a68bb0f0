package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a network of nodes that can be started, crashed and wiped.
type world struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[string]*process // by address
	cut   map[string]bool     // "from>to" that nothing gets through
	log   bytes.Buffer
}

type process struct {
	w          *world
	name       string
	address    string
	dir        string
	membership *Membership
	file       *File
	cancel     context.CancelFunc
	done       chan struct{}
	err        error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, nodes: make(map[string]*process), cut: make(map[string]bool)}
	for _, l := range listed() {
		w.nodes[l.Address] = &process{w: w, name: l.Name, address: l.Address, dir: t.TempDir()}
	}
	t.Cleanup(func() {
		for _, l := range listed() {
			w.crash(l.Name)
		}
	})
	return w
}

func (w *world) process(name string) *process {
	for _, p := range w.nodes {
		if p.name == name {
			return p
		}
	}
	panic("no such node")
}

// start runs a node as far as membership goes.
func (w *world) start(name string, change func(*Config)) *process {
	w.t.Helper()
	p := w.process(name)
	file, err := Open(p.dir, name, 0, 3)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := Default()
	cfg.File, cfg.Peers = file, listed()
	cfg.PeerAddress, cfg.ClientAddress = p.address, "client-"+name
	cfg.Logger = slog.New(slog.NewTextHandler(&lockedWriter{w: w}, nil))
	if change != nil {
		change(&cfg)
	}
	m := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.mu.Lock()
	p.membership, p.file, p.cancel, p.done, p.err = m, file, cancel, done, nil
	w.mu.Unlock()
	go func() {
		defer close(done)
		_, p.err = m.Find(ctx, p)
		if p.err == nil {
			m.Exchange(ctx, p, func() map[raft.ServerID]raft.ServerAddress { return nil })
		}
	}()
	return p
}

func (w *world) crash(name string) {
	p := w.process(name)
	w.mu.Lock()
	cancel, done := p.cancel, p.done
	p.membership, p.cancel = nil, nil
	w.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

func (w *world) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
}

func (w *world) wipe(name string) {
	p := w.process(name)
	w.crash(name)
	if err := os.RemoveAll(p.dir); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
}

type lockedWriter struct{ w *world }

func (l *lockedWriter) Write(text []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(text)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// Hello is the network.
func (p *process) Hello(ctx context.Context, hostPort string, say peer.HelloMessage) (peer.HelloMessage, error) {
	p.w.mu.Lock()
	other := p.w.nodes[hostPort]
	var m *Membership
	if other != nil && !p.w.cut[p.name+">"+other.name] {
		m = other.membership
	}
	p.w.mu.Unlock()
	if m == nil {
		return peer.HelloMessage{}, errors.New("connection refused")
	}
	return m.Hello(ctx, say)
}

// oneCluster checks that all three are members of one cluster.
func (w *world) oneCluster() State {
	w.t.Helper()
	var first State
	founders := 0
	for i, l := range listed() {
		s := w.process(l.Name).file.State()
		if s.ClusterID == "" {
			w.t.Fatalf("%s is in no cluster; log:\n%s", l.Name, w.logged())
		}
		if s.Founder {
			founders++
		}
		if i == 0 {
			first = s
			continue
		}
		if s.ClusterID != first.ClusterID || fmt.Sprint(s.Members) != fmt.Sprint(first.Members) {
			w.t.Fatalf("%s has %+v, n1 has %+v", l.Name, s, first)
		}
	}
	if founders != 1 || !w.process("n1").file.State().Founder {
		w.t.Errorf("%d founders", founders)
	}
	return first
}

func permutations() [][]string {
	return [][]string{{"n1", "n2", "n3"}, {"n1", "n3", "n2"}, {"n2", "n1", "n3"}, {"n2", "n3", "n1"}, {"n3", "n1", "n2"}, {"n3", "n2", "n1"}}
}

func TestAnyOrderMakesOneCluster(t *testing.T) {
	for _, order := range permutations() {
		for _, late := range []time.Duration{0, 10 * time.Minute} {
			t.Run(fmt.Sprint(order, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					for i, name := range order {
						if i == 2 {
							time.Sleep(late)
							for _, there := range order[:2] {
								if s := w.process(there).file.State(); s.ClusterID != "" {
									t.Fatalf("%s did not wait for %s", there, name)
								}
							}
							if late > 0 && !strings.Contains(w.logged(), "waiting for "+name+" at") {
								t.Errorf("nobody says whom it waits for:\n%s", w.logged())
							}
						}
						w.start(name, nil)
					}
					time.Sleep(10 * time.Second)
					w.oneCluster()
					// Every one knows where clients reach the others.
					for _, l := range listed() {
						d := w.process(l.Name).membership.Directory()
						for _, m := range d.Members() {
							if d.ClientAddress(m.ID()) != "client-"+m.Name {
								t.Errorf("%s knows %+v", l.Name, m)
							}
						}
					}
				})
			})
		}
	}
}

// The founder is gone right after its node.json was written, before anybody heard.
func TestFounderCrashesBeforeAnybodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cut["n2>n1"], w.cut["n3>n1"] = true, true
		for _, l := range listed() {
			w.start(l.Name, nil)
		}
		time.Sleep(5 * time.Second)
		founded := w.process("n1").file.State().ClusterID
		if founded == "" || w.process("n2").file.State().ClusterID != "" {
			t.Fatal("the crash point was missed")
		}
		w.crash("n1")
		w.crash("n2")
		w.heal()
		w.start("n2", nil)
		time.Sleep(time.Minute)
		if got := w.process("n2").file.State().ClusterID; got != "" {
			t.Fatalf("n2 is in cluster %s without n1", got)
		}
		w.start("n1", nil)
		time.Sleep(10 * time.Second)
		if got := w.oneCluster().ClusterID; got != founded {
			t.Errorf("cluster %s was founded after %s", got, founded)
		}
	})
}

// One has heard, the founder and that one crash; the third hears of it from the one
// that came back, without the founder.
func TestWhoKnowsTellsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cut["n3>n1"], w.cut["n3>n2"] = true, true
		for _, l := range listed() {
			w.start(l.Name, nil)
		}
		time.Sleep(5 * time.Second)
		if w.process("n2").file.State().ClusterID == "" || w.process("n3").file.State().ClusterID != "" {
			t.Fatal("the crash point was missed")
		}
		w.crash("n1")
		w.crash("n2")
		w.heal()
		w.start("n2", nil)
		time.Sleep(5 * time.Second)
		w.start("n1", nil)
		time.Sleep(5 * time.Second)
		w.oneCluster()
	})
}

// Invariants 2 and 3, over random crashes and cuts while a cluster begins.
func TestRandomBeginnings(t *testing.T) {
	for seed := range int64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewSource(seed))
			w := newWorld(t)
			up := map[string]bool{}
			clusters := map[string]bool{}
			for range 40 {
				name := listed()[random.Intn(3)].Name
				switch random.Intn(4) {
				case 0, 1:
					if !up[name] {
						w.start(name, nil)
						up[name] = true
					}
				case 2:
					w.crash(name)
					up[name] = false
				case 3:
					other := listed()[random.Intn(3)].Name
					w.mu.Lock()
					w.cut[name+">"+other] = random.Intn(2) == 0
					w.mu.Unlock()
				}
				time.Sleep(time.Duration(random.Intn(1500)) * time.Millisecond)
				for _, l := range listed() {
					if p := w.process(l.Name); p.file != nil {
						if id := p.file.State().ClusterID; id != "" {
							clusters[id] = true
						}
					}
				}
			}
			w.heal()
			for _, l := range listed() {
				if !up[l.Name] {
					w.start(l.Name, nil)
				}
			}
			time.Sleep(10 * time.Second)
			clusters[w.oneCluster().ClusterID] = true
			if len(clusters) != 1 {
				t.Errorf("seed %d: clusters %v", seed, clusters)
			}
		})
	}
}

// Invariant 4.
func TestWipedNodeIsExcluded(t *testing.T) {
	for _, name := range []string{"n1", "n2", "n3"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				for _, l := range listed() {
					w.start(l.Name, nil)
				}
				time.Sleep(5 * time.Second)
				cluster := w.oneCluster().ClusterID
				w.wipe(name)
				p := w.start(name, nil)
				begun := time.Now()
				<-p.done
				if took := time.Since(begun); took < 30*time.Second || took > 35*time.Second {
					t.Errorf("gave up after %s", took)
				}
				if !errors.Is(p.err, ErrExcluded) || !strings.Contains(p.err.Error(), "cluster "+cluster+" exists") ||
					!strings.Contains(p.err.Error(), "coordctl members replace "+name) {
					t.Errorf("got %v", p.err)
				}
				if got := p.file.State().ClusterID; got != "" {
					t.Errorf("it is in cluster %s", got)
				}
				if n := strings.Count(w.logged(), "neither votes nor stores anything"); n < 3 {
					t.Errorf("said so %d times", n)
				}
			})
		})
	}
}

// What an operator's replacement looks like from here: the Raft configurations change,
// and the node that waits hears of it.
func TestReplacedNodeJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, l := range listed() {
			w.start(l.Name, nil)
		}
		time.Sleep(5 * time.Second)
		before := w.oneCluster()
		p2 := w.process("n2")
		kept, err := os.ReadFile(p2.file.path)
		if err != nil {
			t.Fatal(err)
		}
		w.wipe("n2")
		p := w.start("n2", nil)
		time.Sleep(5 * time.Second)
		servers := make(map[raft.ServerID]raft.ServerAddress)
		for _, m := range before.Members {
			id := m.ID()
			if m.Name == "n2" {
				s := p.file.State()
				id = s.ID()
			}
			servers[id] = peer.Address(id, m.PeerAddress)
		}
		n3 := w.process("n3")
		replaced, newcomer := before.Members[1].ID(), p.membership.Message().Self
		if got := n3.membership.ExchangeOnce(t.Context(), n3)[replaced]; got != (Contact{Instead: newcomer}) {
			t.Errorf("before anybody counts it in, n3 sees %+v", got)
		}
		// One that cannot note it does so later.
		n1 := w.process("n1")
		blocked := n1.file.path + temporary
		if err := os.Mkdir(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		n1.membership.Observe(servers)
		n1.membership.note()
		if got := n1.file.State().Members; !slices.Equal(got, before.Members) {
			t.Errorf("what was not written counts: %+v", got)
		}
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		n1.membership.note()
		// Another node, whose shards do not know of the newcomer yet, has the word of those that do.
		if got := n3.membership.ExchangeOnce(t.Context(), n3)[replaced]; got != (Contact{Instead: newcomer, Succeeded: true}) {
			t.Errorf("n3 sees %+v", got)
		}
		if got := n1.membership.ExchangeOnce(t.Context(), n1)[newcomer.ID()]; got != (Contact{Joining: true}) {
			t.Errorf("n1 sees %+v", got)
		}
		n3.membership.Observe(servers)
		n3.membership.note()
		time.Sleep(5 * time.Second)
		after := p.file.State()
		if after.ClusterID != before.ClusterID || after.Founder || after.ShardsCreated {
			t.Fatalf("got %+v", after)
		}
		p.membership.Observe(servers)
		w.oneCluster()

		// The old disk turns up again, under its old name.
		w.crash("n2")
		if err := os.WriteFile(p2.file.path, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		p = w.start("n2", nil)
		time.Sleep(20 * time.Second)
		if !p.membership.Removed() || !strings.Contains(w.logged(), "the cluster goes on without this node") {
			t.Error("it does not notice that it was replaced")
		}
	})
}

// Who has just been taken in, and reaches only those that have not heard of it yet, is not told that it
// was replaced; who was, is.
func TestANewcomerIsNotTakenForOneThatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, l := range listed() {
			w.start(l.Name, nil)
		}
		time.Sleep(5 * time.Second)
		before := w.oneCluster()
		w.wipe("n2")
		p := w.start("n2", nil)
		servers := make(map[raft.ServerID]raft.ServerAddress)
		for _, m := range before.Members {
			if m.Name != "n2" {
				servers[m.ID()] = peer.Address(m.ID(), m.PeerAddress)
			}
		}
		newcomer := p.file.State()
		servers[newcomer.ID()] = peer.Address(newcomer.ID(), p.address)
		w.process("n1").membership.Observe(servers)
		for p.file.State().ClusterID == "" {
			time.Sleep(10 * time.Millisecond)
		}
		w.crash("n1")
		n3 := w.process("n3").membership
		late := time.Now().Add(11 * time.Second) // a round of the other's, where somebody does not answer
		for time.Now().Before(late) {
			p.membership.ExchangeOnce(t.Context(), p) // as a status does
			if p.membership.Removed() {
				t.Fatal("it says that it was replaced")
			}
			time.Sleep(100 * time.Millisecond)
		}
		n3.Observe(servers)
		time.Sleep(time.Minute)
		if p.membership.Removed() || strings.Contains(w.logged(), "the cluster goes on without this node") {
			t.Error("it says that it was replaced")
		}
		delete(servers, newcomer.ID())
		third := peer.ServerID("n2", strings.Repeat("ab", peer.IncarnationBytes))
		servers[third] = peer.Address(third, "h4:1")
		n3.Observe(servers)
		time.Sleep(20 * time.Second)
		if !p.membership.Removed() {
			t.Error("it does not say that it was replaced")
		}
	})
}

func TestNodeWithoutPeersIsACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start("n1", func(c *Config) { c.Peers, c.PeerAddress = nil, "" })
		synctest.Wait()
		s := p.file.State()
		if s.ClusterID == "" || !s.Founder || len(s.Members) != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

// A member that comes back at another address is found there.
func TestMembersThatMoveAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, l := range listed() {
			w.start(l.Name, nil)
		}
		time.Sleep(5 * time.Second)
		w.crash("n3")
		w.mu.Lock()
		p := w.nodes["h3:1"]
		delete(w.nodes, "h3:1")
		w.nodes["h9:1"], p.address = p, "h9:1"
		w.mu.Unlock()
		w.start("n3", nil)
		time.Sleep(10 * time.Second)
		s := p.file.State()
		if at, ok := w.process("n1").membership.Directory().Find(s.ID()); !ok || at != "h9:1" {
			t.Errorf("n1 looks for n3 at %q", at)
		}
	})
}
