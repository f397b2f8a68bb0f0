package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// What coordctl members and coordctl shards print, as far as it matters here.
type (
	membersShown struct {
		ClusterID string        `json:"cluster_id"`
		Members   []memberShown `json:"members"`
	}
	memberShown struct {
		NodeID      string `json:"node_id"`
		Incarnation string `json:"incarnation"`
		Reachable   bool   `json:"reachable"`
	}
	shardShown struct {
		Shard    uint32 `json:"shard"`
		Leader   string `json:"leader"`
		Term     uint64 `json:"term"`
		Replicas []struct {
			NodeID     string `json:"node_id"`
			MatchIndex uint64 `json:"match_index"`
			Behind     uint64 `json:"behind"`
			Voter      bool   `json:"voter"`
		} `json:"replicas"`
	}
)

// Both wait for a node that is busy: the machine may be.
const controlWaits = "--timeout=30s"

func members(t *testing.T, c *process.Cluster, asked *process.Node) (shown membersShown) {
	t.Helper()
	must(t, c.Programs.ControlJSON(&shown, time.Minute, []string{asked.Client}, "members", controlWaits))
	return shown
}

func shards(t *testing.T, c *process.Cluster, asked *process.Node) []shardShown {
	t.Helper()
	var shown struct{ Shards []shardShown }
	must(t, c.Programs.ControlJSON(&shown, time.Minute, []string{asked.Client}, "shards", controlWaits))
	return shown.Shards
}

// TestWiped: a node that lost its directory and comes back under its old name and
// address takes part in nothing until it is told to; what it says leads to that.
func TestWiped(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 3, "--join-wait", "5m")
	l := startLoad(t, c, newSeed(t), 8)
	probes := startProbes(t, c, l.log)
	time.Sleep(time.Second)

	wiped, err := c.LeaderOfMost(30 * time.Second)
	must(t, err)
	var kept []*process.Node
	for _, n := range c.Nodes {
		if n != wiped {
			kept = append(kept, n)
		}
	}
	before := members(t, c, kept[0])
	must(t, wiped.Kill())
	must(t, os.RemoveAll(wiped.Dir))
	killed := l.log.Now()
	must(t, wiped.Start())
	gaps, err := without(l.log, probes, killed, killed+50*time.Millisecond)
	must(t, err)
	t.Logf("wiped %s; each shard without service for %v", wiped.Name, gaps)

	// It says what it is and what to do, and has nothing on disk but its name.
	advice := "coordctl members replace " + wiped.Name
	must(t, wiped.Said(advice, 30*time.Second))
	if output := wiped.Output(); !strings.Contains(output, "cluster "+before.ClusterID+" exists") || !strings.Contains(output, "It neither votes nor stores anything") {
		t.Error("it does not say that there is a cluster, of which it is no member")
	}
	if _, err := os.Stat(filepath.Join(wiped.Dir, "shards")); !os.IsNotExist(err) {
		t.Errorf("it has made shards: %v", err)
	}
	for _, m := range members(t, c, kept[0]).Members {
		m.Reachable = m.Reachable != (m.NodeID == wiped.Name)
		if !slices.Contains(before.Members, m) {
			t.Errorf("among the members: %+v; before: %+v", m, before.Members)
		}
	}

	// It acknowledges nothing …
	first := shards(t, c, kept[0])
	time.Sleep(time.Second)
	for i, shard := range shards(t, c, kept[0]) {
		if shard.Term != first[i].Term {
			t.Errorf("shard %d went from term %d to %d", i, first[i].Term, shard.Term)
		}
		for j, replica := range shard.Replicas {
			if replica.NodeID == wiped.Name && (replica.MatchIndex != first[i].Replicas[j].MatchIndex || replica.Behind <= first[i].Replicas[j].Behind) {
				t.Errorf("shard %d: %+v, then %+v: it has acknowledged something", i, first[i].Replicas[j], replica)
			}
		}
	}
	answer, err := coordinatorv1.NewCoordinatorServiceClient(wiped.Conn()).Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: call{key: "asked of the wiped"}.identity()})
	if reasonOf(err) != "NO_LEADER" {
		t.Errorf("it answers %v, %v", answer, err)
	}

	// … and does not vote: with one of the others gone, too, there is no majority.
	must(t, kept[1].Kill())
	lonely := l.log.Now()
	time.Sleep(4 * time.Second)
	for _, p := range probes {
		// What was on the way at the kill may be answered after it.
		if last := time.Duration(p.last.Load()); last > lonely+50*time.Millisecond {
			t.Errorf("shard %d served %v after only one member was left", p.shard, last-lonely)
		}
	}
	must(t, kept[1].Start())
	_, err = without(l.log, probes, lonely, l.log.Now())
	must(t, err)

	// What it says to do makes it a full replica.
	result, err := c.Programs.Control(2*time.Minute, []string{kept[0].Client, kept[1].Client}, strings.Fields(strings.TrimPrefix(advice, "coordctl "))...)
	must(t, err)
	if result.Code != 0 {
		t.Fatalf("%s ended with %d: %s", advice, result.Code, result.Stderr)
	}
	must(t, wiped.Serving(time.Minute))
	must(t, caughtUp(t, c, kept[0]))
	must(t, allThere(t, c, kept[0], 15*time.Second))
	// Now it makes a majority with either of the others.
	for _, n := range kept {
		must(t, n.Kill())
		killed = l.log.Now()
		gaps, err = without(l.log, probes, killed, killed+50*time.Millisecond)
		must(t, err)
		t.Logf("killed %s; each shard without service for %v", n.Name, gaps)
		must(t, n.Start())
		must(t, c.Serving(serviceWithin))
		must(t, caughtUp(t, c, n))
	}
	l.finish(t)
}

// caughtUp waits until every shard has three voters that lack hardly anything of what the
// load writes meanwhile.
func caughtUp(t *testing.T, c *process.Cluster, asked *process.Node) error {
	t.Helper()
	var last []shardShown
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		last = shards(t, c, asked)
		if !slices.ContainsFunc(last, func(s shardShown) bool {
			level := 0
			for _, r := range s.Replicas {
				if r.Voter && r.MatchIndex > 0 && r.Behind < 100 {
					level++
				}
			}
			return level != len(c.Nodes) || len(s.Replicas) != len(c.Nodes)
		}) {
			return nil
		}
	}
	return fmt.Errorf("the replicas do not catch up: %+v", last)
}

// allThere waits until a node counts three members and reaches all of them.
func allThere(t *testing.T, c *process.Cluster, asked *process.Node, within time.Duration) error {
	t.Helper()
	var last membersShown
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		last = members(t, c, asked)
		if len(last.Members) == len(c.Nodes) && !slices.ContainsFunc(last.Members, func(m memberShown) bool { return !m.Reachable }) {
			return nil
		}
	}
	return fmt.Errorf("the members are %+v", last)
}

// TestOrders: three empty nodes make one cluster, in whatever order they are started, and
// however late the last one comes.
func TestOrders(t *testing.T) {
	t.Parallel() // it waits more than it works
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprintf("n%d n%d n%d", order[0]+1, order[1]+1, order[2]+1), func(t *testing.T) {
			t.Parallel()
			c := process.New(t, programs, 3)
			must(t, c.Nodes[order[0]].Start())
			must(t, c.Nodes[order[1]].Start())
			late := c.Nodes[order[2]]
			time.Sleep(3 * time.Second)
			for _, i := range order[:2] {
				// Without all three there is none, and it is said whom they wait for.
				answer, err := coordinatorv1.NewAdminServiceClient(c.Nodes[i].Conn()).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
				must(t, err)
				if id := answer.GetClusterId(); id != "" {
					t.Errorf("n%d is in cluster %s already", i+1, id)
				}
				must(t, c.Nodes[i].Said("waiting for", 10*time.Second))
			}
			must(t, late.Start())
			must(t, c.Serving(time.Minute))
			id := members(t, c, late).ClusterID
			for _, n := range c.Nodes {
				shown := members(t, c, n)
				if id == "" || shown.ClusterID != id || len(shown.Members) != 3 {
					t.Errorf("%s: %+v, not cluster %q", n.Name, shown, id)
				}
			}
			all := &caller{nodes: c.Nodes, shards: shardsDefault, log: history.NewRecorder(), try: 3 * time.Second, within: time.Minute}
			for i := range 9 {
				if _, granted, err := all.reserve(context.Background(), i, call{key: fmt.Sprint(i)}); err != nil || granted == nil {
					t.Errorf("key %d: %v", i, err)
				}
			}
			verify(t, all.log)
		})
	}
}
