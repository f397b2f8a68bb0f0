package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/shard"
	"github.com/atmostonce/coordinator/internal/store"
)

// Leader returns the name of the node that leads a shard, as it says itself, or "". Of
// two that say so it is the one of the later term.
func (c *Cluster) Leader(number int) string {
	leader, term := "", uint64(0)
	for _, name := range c.Running() {
		if r := c.Replica(name, number); r != nil && r.Leads() && r.Group().Term() > term {
			leader, term = name, r.Group().Term()
		}
	}
	return leader
}

// AwaitLeader waits until one of the started nodes leads the shard, and returns it.
func (c *Cluster) AwaitLeader(number int) string {
	c.t.Helper()
	for range 60_000 {
		if leader := c.Leader(number); leader != "" {
			return leader
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatalf("nobody has led shard %d for ten minutes", number)
	return ""
}

// Others returns the names of all nodes but one.
func (c *Cluster) Others(name string) []string {
	return slices.DeleteFunc(slices.Clone(c.Names), func(other string) bool { return other == name })
}

// Handover moves the leadership of a shard to a node, "" being any, as an operator
// does.
func (c *Cluster) Handover(number int, to string) error {
	leader := c.Leader(number)
	if leader == "" {
		return errors.New("cluster: nobody leads the shard")
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	which := uint32(number)
	_, err := coordinatorv1.NewAdminServiceClient(c.Conn(leader)).TransferLeadership(ctx,
		&coordinatorv1.TransferLeadershipRequest{Shard: &which, ToNode: to})
	return err
}

// Crash takes a node away without a word to anybody: its connections are reset and it
// is cut off from everyone, callers included, so that what it does after that is as if
// it had not been. It returns at once; what is left of the node ends behind the scenes
// and StartNode waits for that.
func (c *Cluster) Crash(name string) {
	c.t.Helper()
	n := c.take(name)
	if n == nil {
		return
	}
	c.Network.Isolate(name)
	c.Network.Host(name).Crash()
	ended := make(chan struct{})
	c.mu.Lock()
	c.crashed[name] = ended
	c.mu.Unlock()
	go func() {
		defer close(ended)
		if err := n.Stop(context.Background()); err != nil && !errors.Is(err, net.ErrClosed) { // its listeners are
			c.t.Errorf("what is left of %s after its crash does not end: %v", name, err)
		}
	}()
}

// Kill is Crash, and what the node writes to its files from then on is undone when it is
// started again: it finds them as kill -9 at that moment would have left them. Nothing
// runs in the bubble while they are looked at, so that no write is under way. Only one
// goroutine may do this at a time.
func (c *Cluster) Kill(name string) {
	c.t.Helper()
	if c.Node(name) == nil {
		return
	}
	synctest.Wait()
	image := filepath.Join(c.dir, name+"-killed")
	if err := errors.Join(os.RemoveAll(image), os.CopyFS(image, os.DirFS(filepath.Join(c.dir, name)))); err != nil {
		c.t.Fatal(err)
	}
	c.Crash(name)
	c.mu.Lock()
	c.images[name] = image
	c.mu.Unlock()
}

// awaitCrashed waits for what is left of a node that crashed, and reconnects its host.
func (c *Cluster) awaitCrashed(name string) {
	c.mu.Lock()
	ended := c.crashed[name]
	delete(c.crashed, name)
	c.mu.Unlock()
	if ended == nil {
		return
	}
	<-ended
	c.putBack(name)
	c.Network.Rejoin(name)
}

// putBack makes the files of a node that was killed what they were then. Nothing is left
// of the node.
func (c *Cluster) putBack(name string) {
	c.mu.Lock()
	image := c.images[name]
	delete(c.images, name)
	c.mu.Unlock()
	if image == "" {
		return
	}
	dir := filepath.Join(c.dir, name)
	if err := errors.Join(os.RemoveAll(dir), os.Rename(image, dir)); err != nil {
		c.t.Fatal(err)
	}
}

// Heal heals every link, once nothing is left of the nodes that have crashed.
func (c *Cluster) Heal() {
	c.mu.Lock()
	var ends []chan struct{}
	for _, ended := range c.crashed {
		ends = append(ends, ended)
	}
	c.mu.Unlock()
	for _, ended := range ends {
		<-ended
	}
	c.Network.HealAll()
}

// Latency sets how long anything takes from each host to each other.
func (c *Cluster) Latency(latency time.Duration) {
	hosts := append([]string{ClientHost}, c.Names...)
	for _, from := range hosts {
		for _, to := range hosts {
			if from != to {
				c.Network.Latency(from, to, latency)
			}
		}
	}
}

// KeepState sets the state files of a node aside, which is not running or has crashed.
func (c *Cluster) KeepState(name string) {
	c.t.Helper()
	c.eachState(name, func(state, kept string) error { return copyFile(state, kept) })
}

// RewindState puts the state files of a node back that were set aside, as if nothing
// that was applied since had been written behind before the crash: the log has to make
// up for it.
func (c *Cluster) RewindState(name string) {
	c.t.Helper()
	c.eachState(name, func(state, kept string) error { return copyFile(kept, state) })
}

func (c *Cluster) eachState(name string, do func(state, kept string) error) {
	c.t.Helper()
	c.mu.Lock()
	ended := c.crashed[name]
	c.mu.Unlock()
	if ended != nil {
		<-ended
		c.putBack(name)
	}
	states, err := filepath.Glob(filepath.Join(c.dir, name, "shards", "*", "state.db"))
	if err != nil || len(states) == 0 {
		c.t.Fatalf("no state files of %s: %v", name, err)
	}
	for _, state := range states {
		kept := filepath.Join(c.dir, name+"-kept", filepath.Base(filepath.Dir(state)))
		if err := do(state, kept); err != nil {
			c.t.Fatal(err)
		}
	}
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// Replica returns a node's replica of a shard, or nil while there is none.
func (c *Cluster) Replica(name string, number int) *shard.Replica {
	n := c.Node(name)
	if n == nil {
		return nil
	}
	router := n.Router()
	if router == nil {
		return nil
	}
	return router.Replica(number)
}

// Agree waits until all nodes have applied the same entries of every shard, and
// compares what they have made of them.
func (c *Cluster) Agree() {
	c.t.Helper()
	for number := range c.Node(c.Names[0]).Router().Shards() {
		c.agree(number)
	}
}

func (c *Cluster) agree(number int) {
	c.t.Helper()
	type state struct {
		hash [32]byte
		at   store.Position
	}
	var states []state
	for range 6_000 {
		states = states[:0]
		for _, name := range c.Names {
			replica := c.Replica(name, number)
			if replica == nil {
				c.t.Fatalf("%s has no replica of shard %d", name, number)
			}
			states = append(states, state{at: replica.Group().Store().Applied()})
		}
		if !slices.ContainsFunc(states, func(s state) bool { return s != states[0] }) {
			for i, name := range c.Names {
				var err error
				if states[i].hash, states[i].at, err = c.Replica(name, number).Group().Store().StateHash(); err != nil {
					c.t.Fatal(err)
				}
			}
			if !slices.ContainsFunc(states, func(s state) bool { return s.at != states[0].at }) {
				break
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i, other := range states {
		if other != states[0] {
			c.t.Errorf("shard %d: %s has %x at %v, %s has %x at %v", number,
				c.Names[0], states[0].hash, states[0].at, c.Names[i], other.hash, other.at)
		}
	}
}
