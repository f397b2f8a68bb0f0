package e2e

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
	"github.com/atmostonce/coordinator/test/process"
)

// serviceWithin is how long a shard may be without service once a majority of its nodes
// is there. It takes two seconds or so; this machine may be busy.
const serviceWithin = 15 * time.Second

// probe asks one shard for a new reservation again and again, at whichever node, and
// notes when it was last given one.
type probe struct {
	shard   int
	last    atomic.Int64 // time.Duration on the recorder's clock
	longest time.Duration
}

// startProbes starts one probe for each shard; they end with the test.
func startProbes(t *testing.T, c *process.Cluster, log *history.Recorder) []*probe {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var probes []*probe
	for shard := range shardsDefault {
		p := &probe{shard: shard}
		p.last.Store(int64(log.Now()))
		probes = append(probes, p)
		running.Go(func() { p.run(ctx, c, log) })
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return probes
}

func (p *probe) run(ctx context.Context, c *process.Cluster, log *history.Recorder) {
	// A try that is not answered is given up: its key is never used again.
	for number := 0; ctx.Err() == nil; number++ {
		what := call{key: fmt.Sprintf("probe-%d", number), operation: "PROBE", ttl: time.Minute}
		if shardOf(what, shardsDefault) != p.shard {
			continue
		}
		event := what.event(shardsDefault)
		what.asks(&event)
		_, _ = cryptorand.Read(event.Attempt[:])
		when := moment{last: log.Now(), tries: 1}
		try, done := context.WithTimeout(ctx, 300*time.Millisecond)
		answer, err := coordinatorv1.NewCoordinatorServiceClient(c.Nodes[rand.IntN(len(c.Nodes))].Conn()).Reserve(try, &coordinatorv1.ReserveRequest{
			Identity: what.identity(), AttemptId: event.Attempt[:], PendingTtl: durationpb.New(what.ttl), Owner: callersName,
		})
		done()
		when.answered = log.Now()
		if err == nil && answer.GetGranted() != nil {
			when.first = when.last
			when.put(&event)
			told(&event, answer, when, what)
			log.Add(event)
			p.last.Store(int64(when.answered))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// without waits until each shard has served after a moment, and returns how long each had
// gone without since the other.
func without(log *history.Recorder, probes []*probe, from, after time.Duration) ([]time.Duration, error) {
	var gaps []time.Duration
	for _, p := range probes {
		for time.Duration(p.last.Load()) <= after {
			if log.Now() > after+serviceWithin {
				return nil, fmt.Errorf("shard %d has not served for %v", p.shard, log.Now()-time.Duration(p.last.Load()))
			}
			time.Sleep(5 * time.Millisecond)
		}
		gap := time.Duration(p.last.Load()) - from
		p.longest = max(p.longest, gap)
		gaps = append(gaps, gap.Round(time.Millisecond))
	}
	return gaps, nil
}

// TestKillOfThree: leader, follower, two and all of three nodes are killed under load.
func TestKillOfThree(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	c := process.Start(t, programs, 3)
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	l := startLoad(t, c, seed, 16)
	probes := startProbes(t, c, l.log)
	kinds := [...]string{"leader", "follower", "two", "all"}
	for round := range rounds {
		kind := kinds[round%len(kinds)]
		time.Sleep(time.Duration(200+random.IntN(500)) * time.Millisecond)
		leader, err := c.LeaderOfMost(30 * time.Second)
		must(t, err)
		victims := victims(c, leader, kind, random)
		killed := l.log.Now()
		for _, n := range victims {
			must(t, n.Kill())
		}
		names := ""
		for _, n := range victims {
			names += " " + n.Name
		}
		if len(victims) == 1 {
			// Two of three go on by themselves.
			gaps, err := without(l.log, probes, killed, killed+50*time.Millisecond)
			must(t, err)
			t.Logf("round %2d: killed the %s%s; each shard without service for %v", round, kind, names, gaps)
			must(t, victims[0].Start())
		} else {
			time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
			for _, n := range victims {
				must(t, n.Start())
			}
			started := l.log.Now()
			gaps, err := without(l.log, probes, killed, started)
			must(t, err)
			t.Logf("round %2d: killed %s of three%s, started again after %v; each shard without service for %v",
				round, kind, names, (started - killed).Round(time.Millisecond), gaps)
		}
		must(t, c.Serving(serviceWithin))
	}
	l.finish(t)
}

func victims(c *process.Cluster, leader *process.Node, kind string, random *rand.Rand) []*process.Node {
	var others []*process.Node
	for _, n := range c.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	switch kind {
	case "leader":
		return []*process.Node{leader}
	case "follower":
		return others[:1]
	case "two":
		return []*process.Node{leader, others[0]}
	default:
		return append(others, leader)
	}
}

// TestPausedLeader: a leader that stood still while others took over says nothing stale
// when it goes on, not even to those who asked while it stood still.
func TestPausedLeader(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 3)
	log := history.NewRecorder()
	for round := range 3 {
		pauseLeader(t, c, log, round)
		must(t, c.Serving(serviceWithin))
	}
	verify(t, log)
}

func pauseLeader(t *testing.T, c *process.Cluster, log *history.Recorder, round int) {
	t.Helper()
	leader, err := c.LeaderOfMost(30 * time.Second)
	must(t, err)
	var others []*process.Node
	for _, n := range c.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	all := &caller{nodes: c.Nodes, shards: shardsDefault, log: log, try: 3 * time.Second, within: time.Minute}
	healthy := &caller{nodes: others, shards: shardsDefault, log: log, try: 3 * time.Second, within: time.Minute}
	paused := &caller{nodes: []*process.Node{leader}, shards: shardsDefault, log: log, try: 15 * time.Second, within: 20 * time.Second}

	const count = 120
	ctx := t.Context()
	holders := make([]*held, count)
	var calling sync.WaitGroup
	for i := range count {
		calling.Go(func() {
			_, granted, err := all.reserve(ctx, i, call{key: fmt.Sprintf("key-%d-%d", round, i), operation: "PAUSE", ttl: time.Minute})
			if err != nil || granted == nil {
				t.Errorf("key %d was not granted: %v", i, err)
			}
			holders[i] = granted
		})
	}
	calling.Wait()
	if t.Failed() {
		t.FailNow()
	}
	// The connection to the leader is there before it stands still.
	_, err = paused.get(ctx, 0, holders[0].call)
	must(t, err)

	must(t, leader.Pause())
	stopped := time.Now()
	// A third is committed, a third is released and granted to somebody else, a third
	// stays as it is; all by the two others.
	for i, h := range holders {
		calling.Go(func() {
			switch i % 3 {
			case 0:
				if err := healthy.commit(ctx, i, h, &coordinatorv1.Response{Code: 200, Body: []byte(h.key)}); err != nil {
					t.Error(err)
				}
			case 1:
				if err := healthy.release(ctx, i, h); err != nil {
					t.Error(err)
				}
				if _, granted, err := healthy.reserve(ctx, i, h.call); err != nil || granted == nil {
					t.Errorf("%s was released and not granted again: %v", h.key, err)
				}
			}
		})
	}
	calling.Wait()
	took := time.Since(stopped)

	// What is asked of it now waits in its connection.
	for i, h := range holders {
		calling.Go(func() {
			if _, err := paused.get(ctx, 0, h.call); err != nil {
				t.Error(err)
			}
		})
		calling.Go(func() {
			if _, _, err := paused.reserve(ctx, 0, h.call); err != nil {
				t.Error(err)
			}
		})
		if i%3 == 1 {
			calling.Go(func() {
				// The old token of what somebody else holds by now.
				_ = paused.commit(ctx, 0, h, &coordinatorv1.Response{Code: 500})
			})
		}
	}
	time.Sleep(max(200*time.Millisecond, 3*time.Second-time.Since(stopped)))
	waiting := paused.inFlight.Load()
	if waiting < count {
		t.Errorf("only %d calls wait for the leader that stands still", waiting)
	}
	must(t, leader.Resume())
	resumed := time.Now()
	calling.Wait()
	t.Logf("the two others made %d changes within %v; %d calls that waited were answered within %v of its going on, after %d retries",
		count, took.Round(time.Millisecond), waiting, time.Since(resumed).Round(time.Millisecond), paused.retries.Load())
}

// TestCheckerSeesAmnesia: a node that forgets everything is found out by the same load
// and checker that find nothing in the tests above.
func TestCheckerSeesAmnesia(t *testing.T) {
	c := process.Start(t, programs, 1)
	n := c.Nodes[0]
	l := startLoad(t, c, newSeed(t), 16)
	time.Sleep(time.Second)
	must(t, n.Kill())
	must(t, os.RemoveAll(n.Dir))
	must(t, n.Start())
	must(t, n.Serving(30*time.Second))
	time.Sleep(time.Second)
	l.stop()
	l.ended.Wait()
	rules := make(map[history.Rule]int)
	for _, violation := range linearizability.CheckAll(l.log.Events()) {
		rules[violation.Rule]++
	}
	t.Log(rules)
	for _, rule := range []history.Rule{history.DoubleGrant, history.LostCommit, history.RepeatedFence, history.LostGrant, linearizability.NotLinearizable} {
		if rules[rule] == 0 {
			t.Errorf("no %s was found", rule)
		}
	}
}
