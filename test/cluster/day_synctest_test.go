package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// The seed decides what happens and not in which order goroutines run, so that a run is
// told again in its outline only.
var daySeed = flag.Uint64("day-seed", 0, "seed of the simulated day; 0 draws one")

// A cluster that is up costs some seconds of a processor for each idle hour.
var dayAwake = flag.Bool("day-awake", false, "keep the cluster up for all of the day but an hour")

// day is twenty-four hours in the life of a cluster: bursts of callers, with faults in
// them, between hours in which hardly anything happens. In the night all nodes are down,
// which is a fault like any other: for one hour with -day-awake, else until 19 hours after
// the beginning.
type day struct {
	t       *testing.T
	c       *cluster.Cluster
	book    *book
	random  *rand.Rand
	callers sync.WaitGroup
	number  int
	kept    map[string]uint64 // the index of the state that was set aside, by node
	deck    []int             // the faults that are still to come before one comes again
	faults  map[string]int
}

func TestSimulatedDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := *daySeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("seed %d", seed)
		c := cluster.Start(t, cluster.Options{Change: slowly(10)})
		c.Latency(5 * time.Millisecond)
		d := &day{t: t, c: c, book: newBook(), random: rand.New(rand.NewPCG(seed, 0)), kept: map[string]uint64{}, faults: map[string]int{}}
		began := time.Now()
		d.callers.Go(func() { d.longReservation(8 * time.Hour) })
		least, most := 30*time.Minute, 90*time.Minute
		if *dayAwake {
			least, most = 2*time.Hour, 3*time.Hour
		}
		for range 5 {
			time.Sleep(d.between(least, most))
			d.burst()
		}
		morning := began.Add(19 * time.Hour)
		if *dayAwake {
			morning = time.Now().Add(time.Hour)
		}
		d.night(morning)
		for time.Since(began) < 24*time.Hour {
			time.Sleep(d.between(least, most))
			d.burst()
		}
		d.callers.Wait()
		time.Sleep(15 * time.Minute) // until nothing is due for long
		c.Agree()
		for key := range d.book.grants {
			d.number++
			d.caller(key, rand.New(rand.NewPCG(seed, 1)), d.number)
		}
		d.book.judge(t)
		_, _, last := c.Replica("n1", 0).Group().Indexes()
		t.Logf("faults: %v; %d log entries", d.faults, last)
	})
}

func (d *day) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.random.Int64N(int64(most-least)))
}

// night stops the whole cluster until the morning.
func (d *day) night(morning time.Time) {
	for _, name := range d.c.Names {
		d.c.StopNode(name)
	}
	time.Sleep(time.Until(morning))
	for _, name := range d.c.Names {
		d.c.StartNode(name)
	}
	d.c.Serving()
}

// burst is a few callers for each of a few keys, and faults.
func (d *day) burst() {
	var callers sync.WaitGroup
	for range 4 {
		key := fmt.Sprintf("key-%d", d.random.IntN(30))
		for range 3 + d.random.IntN(3) {
			random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
			after := d.between(0, 40*time.Second)
			d.number++
			number := d.number
			callers.Go(func() {
				time.Sleep(after)
				d.caller(key, random, number)
			})
		}
	}
	for range 2 + d.random.IntN(3) {
		time.Sleep(d.between(0, 20*time.Second))
		d.fault()
		time.Sleep(d.between(0, 20*time.Second))
		if d.random.IntN(3) > 0 {
			d.repair()
		}
	}
	d.repair()
	callers.Wait()
}

// fault does something to the cluster. Two nodes may be gone at once.
func (d *day) fault() {
	leader := d.c.Leader(0)
	if leader == "" {
		return
	}
	others := d.c.Others(leader)
	d.random.Shuffle(2, func(i, j int) { others[i], others[j] = others[j], others[i] })
	parted := partings()
	faults := []struct {
		name string
		do   func()
	}{
		{"handover", func() { _ = d.c.Handover(0, "") }},
		{"crash of the leader", func() { d.c.Crash(leader) }},
		{"crash of the leader", func() { d.c.Crash(leader) }},
		{"crash of a follower", func() { d.c.Crash(others[0]) }},
		{"stop of the leader", func() { d.c.StopNode(leader) }},
		{"connections broken", func() {
			d.c.Network.Sever(leader, others[0])
			d.c.Network.Sever(leader, others[1])
			d.c.Network.Sever(leader, cluster.ClientHost)
		}},
		{"slow links", func() { d.c.Latency(d.between(0, 300*time.Millisecond)) }},
		{"callers cut off", func() { d.c.Network.Cut(leader, cluster.ClientHost) }},
		{"parting", func() { parted[d.random.IntN(len(parted))].cut(d.c, leader, others) }},
		{"parting", func() { parted[d.random.IntN(4)].cut(d.c, leader, others) }},
	}
	if len(d.deck) == 0 {
		d.deck = d.random.Perm(len(faults))
	}
	f := faults[d.deck[0]]
	d.deck = d.deck[1:]
	d.faults[f.name]++
	f.do()
}

// repair mends everything. A node that crashed may come back with a state that is far
// behind its log.
func (d *day) repair() {
	d.c.Heal()
	d.c.Latency(5 * time.Millisecond)
	for _, name := range d.c.Names {
		if d.c.Node(name) != nil {
			continue
		}
		var applied uint64
		for _, other := range d.c.Running() {
			if r := d.c.Replica(other, 0); r != nil { // it may have been started this moment
				applied = max(applied, r.Status().Applied)
			}
		}
		// The log keeps some 10,000 entries.
		if kept, ok := d.kept[name]; ok && applied < kept+5000 && d.random.IntN(2) == 0 {
			d.c.RewindState(name)
			d.faults["state rewound"]++
		} else {
			d.c.KeepState(name)
			d.kept[name] = applied
		}
		d.c.StartNode(name)
	}
	d.c.Serving()
}

// longReservation reserves something for hours and asks for it all the while.
func (d *day) longReservation(ttl time.Duration) {
	ctx := d.t.Context()
	sent := time.Now()
	first := &coordinatorv1.ReserveRequest{Identity: identity("long"), AttemptId: newAttempt(), PendingTtl: window(ttl)}
	if answer, err := reserve(ctx, d.c, "n1", first); answer.GetGranted() == nil {
		d.t.Errorf("the long reservation: %v, %v", answer, err)
		return
	}
	other := &coordinatorv1.ReserveRequest{Identity: identity("long"), AttemptId: newAttempt(), PendingTtl: window(anotherTTL), Wait: window(time.Minute)}
	for i := 0; ; i++ {
		answer, err := reserve(ctx, d.c, d.c.Names[i%3], other)
		switch {
		case answer.GetGranted() != nil:
			at := time.Now().Add(answer.GetGranted().GetRemaining().AsDuration() - anotherTTL)
			if early := sent.Add(ttl).Sub(at); early > 0 {
				d.t.Errorf("the long reservation ended %v early", early)
			}
			d.t.Logf("a reservation for %v ended %v late", ttl, at.Sub(sent)-ttl)
			return
		case err != nil && again(err):
			time.Sleep(time.Minute)
		case answer.GetPending() == nil:
			d.t.Errorf("the long reservation: %v, %v", answer, err)
			return
		}
	}
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// patience is how long a caller tries.
const patience = 4 * time.Minute

// caller reserves a key, and does with a grant what owners do.
func (d *day) caller(key string, random *rand.Rand, number int) {
	owner := fmt.Sprintf("caller %d", number)
	d.book.asks(owner)
	ttl := pick(random, 2*time.Second, 20*time.Second, 2*time.Minute)
	request := &coordinatorv1.ReserveRequest{
		Identity: identity(key), AttemptId: newAttempt(), Owner: owner, PendingTtl: window(ttl),
		Retention: window(pick(random, 5*time.Second, 5*time.Second, 10*time.Minute, 48*time.Hour)),
		Wait:      window(pick(random, 0, 0, 20*time.Second)),
	}
	g := d.reserve(request, random)
	if g == nil {
		return
	}
	g.retention = request.GetRetention().AsDuration()
	sleep(d.t.Context(), time.Duration(random.Int64N(int64(ttl)/2)))
	switch random.IntN(10) {
	case 0, 1, 2, 3, 4:
		d.commit(g, random)
	case 5:
		d.extend(g, random, ttl)
		d.commit(g, random)
	case 6, 7:
		d.release(g, random)
	default: // it is never heard of again
	}
}

// reserve asks until it gets an answer, loses patience, or gives up while it still knows
// that nothing was applied.
func (d *day) reserve(request *coordinatorv1.ReserveRequest, random *rand.Rand) *grant {
	key, owner := request.GetIdentity().GetKey(), request.GetOwner()
	first, doubt := time.Now(), false
	for time.Since(first) < patience {
		sent := time.Now()
		answer, err := reserve(d.t.Context(), d.c, pick(random, d.c.Names...), request)
		received := time.Now()
		switch {
		case err != nil && again(err):
			doubt = doubt || !notApplied(err)
			if !doubt && random.IntN(4) == 0 {
				d.book.never(owner)
				return nil
			}
			time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
		case err != nil:
			if reason.Of(err).Reason != "ATTEMPT_ENDED" || !doubt {
				d.t.Errorf("%s reserves %s: %v", owner, key, err)
			}
			return nil
		case answer.GetGranted() != nil:
			m := answer.GetGranted()
			if m.GetRepeated() && !doubt {
				d.t.Errorf("%s reserves %s: repeated, and no try was in doubt", owner, key)
			}
			g := &grant{
				key: key, owner: owner, token: m.GetToken(), fence: m.GetFence(), sent: first, received: received,
				by:         received.Add(m.GetRemaining().AsDuration() - request.GetPendingTtl().AsDuration()),
				ownerUntil: sent.Add((m.GetWaited().AsDuration() + m.GetRemaining().AsDuration()) / 1000 * 999),
			}
			d.book.granted(g)
			if !doubt {
				d.book.sees(key, seen{sent: sent, received: received, outcome: "granted"})
			}
			return g
		case answer.GetPending() != nil:
			d.book.sees(key, seen{sent: sent, received: received, outcome: "pending", owner: answer.GetPending().GetOwner()})
			return nil
		case answer.GetCommitted() != nil:
			d.book.sees(key, seen{sent: sent, received: received, outcome: "committed", body: string(answer.GetCommitted().GetResponse().GetBody())})
			return nil
		default:
			d.t.Errorf("%s reserves %s: %v", owner, key, answer)
			return nil
		}
	}
	return nil
}

// settle makes a call of an owner until it is answered. A refusal that comes while the
// owner may still act is a broken promise, unless an earlier try may have been applied:
// what it led to may be over by then.
func (d *day) settle(g *grant, what string, random *rand.Rand, call func(context.Context, coordinatorv1.CoordinatorServiceClient) error) bool {
	doubt := false
	for began := time.Now(); time.Since(began) < patience; {
		ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
		err := call(ctx, service(d.c, pick(random, d.c.Names...)))
		cancel()
		switch {
		case err == nil:
			return true
		case again(err):
			doubt = doubt || !notApplied(err)
			time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
		default:
			if left := time.Until(g.ownerUntil); left > 0 && !doubt {
				d.t.Errorf("%s: %s of %s is refused %v before its deadline: %v", g.key, what, g.owner, left, err)
			}
			return false
		}
	}
	return false
}

func (d *day) commit(g *grant, random *rand.Rand) {
	d.book.change(func() { g.response, g.commitSent = "response of "+g.owner, time.Now() })
	if d.settle(g, "the commit", random, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) error {
		_, err := s.Commit(ctx, &coordinatorv1.CommitRequest{
			Identity: identity(g.key), Token: g.token, Response: &coordinatorv1.Response{Code: 200, Body: []byte(g.response)},
		})
		return err
	}) {
		d.book.change(func() { g.commitAcked = time.Now() })
	}
}

func (d *day) release(g *grant, random *rand.Rand) {
	d.book.change(func() { g.releaseSent = time.Now() })
	d.settle(g, "the release", random, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) error {
		_, err := s.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: identity(g.key), Token: g.token, Reason: "no"})
		return err
	})
}

func (d *day) extend(g *grant, random *rand.Rand, ttl time.Duration) {
	d.settle(g, "the extension", random, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) error {
		sent := time.Now()
		m, err := s.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: identity(g.key), Token: g.token, PendingTtl: window(ttl)})
		if err == nil {
			until := sent.Add(m.GetRemaining().AsDuration() / 1000 * 999)
			d.book.change(func() {
				if until.After(g.ownerUntil) {
					g.ownerUntil = until
				}
			})
		}
		return err
	})
}
