package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/actor"
)

// held keeps back some of what has come over connections, until it is let go.
type held struct {
	mu   sync.Mutex
	what func(from string, bytes []byte) bool // nil: nothing is kept back
	kept chan struct{}                        // closed once something is
	free chan struct{}                        // closed: it is let go
}

// keepBack has what is such kept back from now on.
func (h *held) keepBack(what func(from string, bytes []byte) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.what, h.kept, h.free = what, make(chan struct{}), make(chan struct{})
}

// letGo lets go what is kept back, and nothing is from now on.
func (h *held) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.what = nil
	close(h.free)
}

// pass returns once what has come may be read.
func (h *held) pass(from string, bytes []byte) {
	h.mu.Lock()
	if h.what == nil || !h.what(from, bytes) {
		h.mu.Unlock()
		return
	}
	select {
	case <-h.kept:
	default:
		close(h.kept)
	}
	free := h.free
	h.mu.Unlock()
	<-free
}

// heldConn is a connection on which some of what comes is kept back.
type heldConn struct {
	net.Conn
	held *held
	from string
}

func (c heldConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	c.held.pass(c.from, into[:n])
	return n, err
}

// startHeld starts the three nodes, whose leaders stay where they are and hear what others
// answer them through one that keeps it back.
func (w *world) startHeld() *held {
	w.t.Helper()
	answers := new(held)
	for _, name := range []string{"n1", "n2", "n3"} {
		w.start(name, func(c *Config) {
			c.BalanceEvery = 0
			c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := w.network.dial(ctx, address)
				return heldConn{conn, answers, address}, err
			}
		})
	}
	w.serving()
	return answers
}

// empty starts a node on a directory in which nothing is, in place of what it was. It answers who
// it is, and waits to be taken in; alone, it hears nothing of it.
func (w *world) empty(name string, alone bool) *Node {
	w.t.Helper()
	w.stop(name)
	w.wipe(name)
	return w.start(name, func(c *Config) {
		c.JoinWait = time.Hour
		if alone {
			c.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("no route to host") }
		}
	})
}

// leaderOf returns the node that leads a shard.
func (w *world) leaderOf(shard int) *Node {
	w.t.Helper()
	for range 600 {
		for _, n := range w.nodes {
			if router := n.Router(); router != nil && router.Replica(shard).Leads() {
				return n
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("nobody leads shard %d", shard)
	return nil
}

// serversOf are those of a shard as a node knows them, by name.
func serversOf(n *Node, shard int) []raft.ServerID {
	var servers []raft.ServerID
	for _, server := range n.Router().Replica(shard).Group().Configuration().Servers {
		servers = append(servers, server.ID)
	}
	slices.Sort(servers)
	return servers
}

// Of two replacements at a time the one that asked earlier does not undo what the other has done
// since: who answered it is gone. The other may have been carried out where the shard was led
// meanwhile.
func TestTwoReplacementsAtATime(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("elsewhere=%t", elsewhere), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				answers := w.startHeld()
				lost := w.nodes["n2"].file.State()
				first := w.empty("n2", false).file.State()
				time.Sleep(10 * time.Second)
				const shard = 1
				leader := w.leaderOf(shard)
				if err := leader.Router().Replica(shard).Group().RemoveServer(lost.ID(), time.Second); err != nil {
					t.Fatal(err) // as one before them had, that was broken off
				}
				handOver := func(from, to *Node) {
					if err := from.Router().Replica(shard).TransferLeadership(t.Context(), to.cfg.NodeID); err != nil {
						t.Fatal(err)
					}
					for !to.Router().Replica(shard).Leads() {
						time.Sleep(time.Millisecond)
					}
				}
				replace := func(at *Node) <-chan error {
					ended := make(chan error, 1)
					go func() {
						_, _, err := cluster{at}.Replace(t.Context(), shard, "n2")
						ended <- err
					}()
					return ended
				}

				answers.keepBack(func(_ string, said []byte) bool { return bytes.Contains(said, []byte(first.Incarnation)) })
				earlier := replace(leader)
				<-answers.kept
				second := w.empty("n2", false).file.State()
				if elsewhere {
					other := w.nodes[map[string]string{"n1": "n3", "n3": "n1"}[leader.cfg.NodeID]]
					handOver(leader, other)
					if err := <-replace(other); err != nil {
						t.Fatal(err)
					}
					handOver(other, leader)
					answers.letGo()
				} else {
					later := replace(leader)
					synctest.Wait() // it has done what it can, or waits
					answers.letGo()
					if err := <-later; err != nil {
						t.Error(err)
					}
				}
				if err := <-earlier; err != nil {
					t.Error(err)
				}
				n1, n3 := w.nodes["n1"].file.State(), w.nodes["n3"].file.State()
				if servers := serversOf(leader, shard); !slices.Equal(servers, []raft.ServerID{n1.ID(), second.ID(), n3.ID()}) {
					t.Errorf("the shard is of %v; the last to come was %s", servers, second.ID())
				}
			})
		})
	}
}

// What another replacement has begun is done once it is committed: until then nobody is told that
// there was nothing to do.
func TestAReplacementThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		answers := w.startHeld()
		lost := w.nodes["n2"].file.State()
		newcomer := w.empty("n2", true).file.State()
		time.Sleep(10 * time.Second)
		const shard = 1
		leader := w.leaderOf(shard)
		other := map[string]string{"n1": "n3", "n3": "n1"}[leader.cfg.NodeID]
		group := leader.Router().Replica(shard).Group()
		if err := group.RemoveServer(lost.ID(), time.Second); err != nil {
			t.Fatal(err)
		}

		answers.keepBack(func(from string, _ []byte) bool { return from == other+":7430" })
		var begun error
		ended := after(func() { _, _, begun = cluster{leader}.Replace(t.Context(), shard, "n2") })
		for !slices.Contains(serversOf(leader, shard), newcomer.ID()) {
			time.Sleep(time.Millisecond)
		}
		if _, changed, err := (cluster{leader}).Replace(t.Context(), shard, "n2"); err == nil {
			t.Errorf("while it is under way: changed: %t", changed)
		}
		<-ended
		if !errors.Is(begun, actor.ErrOutcomeUnknown) {
			t.Errorf("it is told as %v", begun)
		}
		answers.letGo()
		if _, _, err := (cluster{w.leaderOf(shard)}).Replace(t.Context(), shard, "n2"); err != nil {
			t.Errorf("once more: %v", err)
		}
		n1, n3 := w.nodes["n1"].file.State(), w.nodes["n3"].file.State()
		if servers := serversOf(w.leaderOf(shard), shard); !slices.Equal(servers, []raft.ServerID{n1.ID(), newcomer.ID(), n3.ID()}) {
			t.Errorf("the shard is of %v; the last to come was %s", servers, newcomer.ID())
		}
	})
}
