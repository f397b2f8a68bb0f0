package simulation

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/cluster"
)

// What the network is like when nothing is wrong with it.
const (
	latency = time.Millisecond
	jitter  = 4 * time.Millisecond
)

// rewindMost is how many entries a state may be behind its log that keeps 10,240.
const rewindMost = 5000

// hosts are all between which links can be cut.
func (w *world) hosts() []string {
	return append([]string{cluster.ClientHost, programsHost}, w.c.Names...)
}

// calm makes all links what they are when nothing is wrong.
func (w *world) calm() { w.links(latency, jitter) }

func (w *world) links(latency, jitter time.Duration) {
	for _, from := range w.hosts() {
		for _, to := range w.hosts() {
			if from != to {
				w.c.Network.Latency(from, to, latency)
				w.c.Network.Jitter(from, to, jitter)
			}
		}
	}
	w.slowest.Store(max(w.slowest.Load(), int64(latency+jitter)))
}

// roles returns the nodes: the leader of a shard, or who would be, and the others.
func (w *world) roles(number int) []string {
	leader := w.c.Leader(number)
	if leader == "" {
		return w.c.Names
	}
	return append([]string{leader}, w.c.Others(leader)...)
}

// do does a step to the cluster, and reports whether it was a fault that took place.
func (w *world) do(s step) (took bool) {
	roles := w.roles(s.Shard)
	a, b := roles[s.Node], roles[s.Other]
	random := rand.New(rand.NewPCG(s.Pick, 0))
	w.trace("%v: %v; %v leads", w.now(), s, roles[0])
	switch s.Kind {
	case repair:
		w.repair(random)
	case handover:
		return w.c.Handover(s.Shard, one(random, "", roles[1], roles[2])) == nil
	case handovers:
		for range 5 {
			took = w.c.Handover(s.Shard, "") == nil || took
			time.Sleep(2 * time.Second)
		}
		return took
	case handoverKill:
		w.work.Go(func() { _ = w.c.Handover(s.Shard, "") })
		time.Sleep(s.Most / 4)
		return w.kill(roles[0])
	case handoverDeaf:
		for i := range 4 {
			took = w.deaf(s, random, i) || took
			time.Sleep(2 * time.Second)
		}
		return took
	case unheard:
		for i := range 3 {
			took = w.unheard(s, random, i) || took
			time.Sleep(2 * time.Second)
		}
		return took
	case killOne:
		return w.kill(a)
	case killRewound:
		w.rewind[a] = true
		return w.kill(a)
	case killTwo:
		first := w.kill(a)
		time.Sleep(s.Most)
		return w.kill(b) || first
	case killAll:
		for _, name := range w.c.Names {
			took = w.kill(name) || took
			if random.IntN(2) == 0 {
				time.Sleep(s.Most)
			}
		}
		return took
	case killAgain:
		for range 3 {
			took = w.kill(a) || took
			w.start(a, random)
			time.Sleep(between(random, 0, 4*time.Second))
		}
		return w.kill(a) || took
	case stopOne:
		took = w.c.Node(a) != nil
		w.c.StopNode(a)
		return took
	case stopAll:
		took = len(w.c.Running()) > 0
		for _, name := range w.c.Names {
			w.c.StopNode(name)
		}
		return took
	case sever:
		w.c.Network.Sever(roles[0], roles[1])
		w.c.Network.Sever(roles[0], roles[2])
		w.c.Network.Sever(roles[0], cluster.ClientHost)
		w.c.Network.Sever(roles[0], programsHost)
	case severOne:
		for range 12 {
			w.c.Network.SeverOne(one(random, w.hosts()...), one(random, w.c.Names...), random.IntN(64))
			time.Sleep(between(random, 0, s.Most))
		}
	case slow:
		w.links(s.Most, s.Most/2)
	case reorder:
		w.links(0, 2*s.Most)
	case callersCut:
		w.c.Network.Partition([]string{a}, []string{cluster.ClientHost, programsHost})
	case callersOneWay:
		from, to := []string{a}, []string{cluster.ClientHost, programsHost}
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		for _, x := range from {
			for _, y := range to {
				w.c.Network.Cut(x, y)
			}
		}
	case parting:
		w.cut(roles, s.Links)
	case flapping:
		for range 6 {
			w.cut(roles, s.Links)
			time.Sleep(between(random, 20*time.Millisecond, 4*s.Most))
			w.heal(roles, s.Links)
			time.Sleep(between(random, 20*time.Millisecond, 4*s.Most))
		}
	case partingKill:
		w.cut(roles, s.Links)
		time.Sleep(4 * s.Most)
		w.kill(a)
	case farBehind:
		w.mend() // the others have to be there
		roles = w.roles(s.Shard)
		w.kill(roles[s.Node])
		w.flood(s)
		w.away[roles[s.Node]] = w.now() + snapshotWithin
	default:
		panic(fmt.Sprintf("nobody knows how to do %q", s.Kind))
	}
	return s.Kind != repair
}

// What it takes for a node to be sent a snapshot: more entries than the log keeps, and
// ample time for the others to take one and cut their logs.
const (
	floodEntries   = 10_240 + 1_000
	snapshotWithin = 5 * time.Minute
)

// flood makes the log of a shard longer by more than it keeps, past all checks: its one
// record is of no interest to anybody.
func (w *world) flood(s step) {
	leader := w.c.AwaitLeader(s.Shard)
	r := w.c.Replica(leader, s.Shard)
	id := admission.Identity{Namespace: "flood", Principal: "p", Operation: operation}
	for i := 0; i == 0 || id.Shard(w.shards) != s.Shard; i++ {
		id.Key = fmt.Sprintf("%d-%d", s.Pick, i)
	}
	var attempt admission.AttemptID
	binary.BigEndian.PutUint64(attempt[:], s.Pick)
	reply, err := r.Submit(w.ctx, actor.Request{
		Command:  admission.Reserve{Identity: id, Attempt: attempt, PendingTTL: 24 * time.Hour, Retention: time.Hour},
		Received: time.Now(), WantedFor: time.Minute,
	})
	_, _, last := r.Group().Indexes()
	until := last + floodEntries
	var pouring sync.WaitGroup
	for range 16 {
		pouring.Go(func() {
			for err == nil && r.Leads() {
				_, failed := r.Submit(w.ctx, actor.Request{
					Command:  admission.Extend{Identity: id, Token: reply.Answer.Token, PendingTTL: 24 * time.Hour, Span: 7 * 24 * time.Hour},
					Received: time.Now(),
				})
				if _, _, last := r.Group().Indexes(); failed != nil || last >= until {
					return
				}
			}
		})
	}
	pouring.Wait()
	_, _, last = r.Group().Indexes()
	w.trace("%v: the log of shard %d at %s ends at %d, of %d: %v", w.now(), s.Shard, leader, last, until, err)
}

// deaf has a leader hand over and cuts it off from what the others say, so that it does not
// hear of the next one, and is asked all the time for what changes there.
func (w *world) deaf(s step, random *rand.Rand, number int) bool {
	old := w.c.Leader(s.Shard)
	if old == "" {
		return false
	}
	key := w.flurryKey(s, number)
	owner := w.inFlurry(key, random, w.c.Others(old)...)
	_, g := owner.reserve(0)
	if g == nil {
		return false
	}
	stop := make(chan struct{})
	for range 3 {
		reader := w.inFlurry(key, random, old)
		w.work.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(between(reader.random, time.Millisecond, 50*time.Millisecond)):
				}
				if reader.random.IntN(2) == 0 {
					reader.get()
				} else {
					reader.reserve(0)
				}
			}
		})
	}
	handing := make(chan error, 1)
	w.work.Go(func() { handing <- w.c.Handover(s.Shard, "") })
	time.Sleep(between(random, 0, 30*time.Millisecond))
	for _, other := range w.c.Others(old) {
		w.c.Network.Cut(other, old)
	}
	owner.commit(g)
	time.Sleep(between(random, 100*time.Millisecond, 600*time.Millisecond))
	close(stop)
	for _, other := range w.c.Others(old) {
		if w.c.Node(other) != nil {
			w.c.Network.Heal(other, old)
		}
	}
	return <-handing == nil
}

// unheard cuts a leader off so that the others do not hear it any more, while owners of keys
// call it: what they ask for is in its log and in nobody else's when it is succeeded.
func (w *world) unheard(s step, random *rand.Rand, number int) bool {
	old := w.c.Leader(s.Shard)
	if old == "" {
		return false
	}
	var owning []func()
	for i := range 4 {
		owner := w.inFlurry(w.flurryKey(s, 4*number+i), random, old)
		_, g := owner.reserve(0)
		if g == nil {
			continue
		}
		owning = append(owning, func() {
			time.Sleep(between(owner.random, 0, 300*time.Millisecond))
			switch {
			case i < 2:
				owner.commit(g)
			case i < 3:
				owner.release(g)
			case owner.extend(g).outcome == "ok":
				owner.commit(g)
			}
		})
	}
	both := random.IntN(2) == 0
	for _, other := range w.c.Others(old) {
		w.c.Network.Cut(old, other)
		if both {
			w.c.Network.Cut(other, old)
		}
	}
	for _, own := range owning {
		w.work.Go(own)
	}
	time.Sleep(between(random, 500*time.Millisecond, 3*time.Second))
	for _, other := range w.c.Others(old) {
		if w.c.Node(old) != nil && w.c.Node(other) != nil {
			w.c.Network.Heal(old, other)
			w.c.Network.Heal(other, old)
		}
	}
	return true
}

// flurryKey returns a key of the step's shard that nobody else uses.
func (w *world) flurryKey(s step, number int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s/flurry-%d-%d-%d", principals[0], s.Pick, number, i)
		if shardOf(key, w.shards) == s.Shard {
			return key
		}
	}
}

// inFlurry returns a caller that calls only some nodes, and not for long.
func (w *world) inFlurry(key string, random *rand.Rand, nodes ...string) *caller {
	w.callers++
	return &caller{
		w: w, plan: callerPlan{Key: key, TTL: time.Minute, Retention: keepsLong}, random: rand.New(rand.NewPCG(random.Uint64(), 0)),
		who: fmt.Sprintf("caller %d", w.callers), nodes: nodes, patience: patienceInFlurry,
	}
}

// patienceInFlurry bounds how long the next step has to wait.
const patienceInFlurry = 4 * time.Second

// ways returns a set of the six ways between the nodes.
func ways(roles []string, set int) (all [][2]string) {
	for i, from := range roles {
		for j, to := range roles {
			if i == j {
				continue
			}
			if set&1 != 0 {
				all = append(all, [2]string{from, to})
			}
			set >>= 1
		}
	}
	return all
}

func (w *world) cut(roles []string, set int) {
	for _, way := range ways(roles, set) {
		w.c.Network.Cut(way[0], way[1])
	}
}

// heal heals ways, but not those to a node that was killed: what is left of it would be
// heard again.
func (w *world) heal(roles []string, set int) {
	for _, way := range ways(roles, set) {
		if w.c.Node(way[0]) != nil && w.c.Node(way[1]) != nil {
			w.c.Network.Heal(way[0], way[1])
		}
	}
}

// kill kills a node that runs.
func (w *world) kill(name string) bool {
	if w.c.Node(name) == nil {
		return false
	}
	w.c.Kill(name)
	return true
}

// start starts a node that does not run, with an older state where that was asked for.
func (w *world) start(name string, random *rand.Rand) {
	if w.c.Node(name) != nil || w.now() < w.away[name] {
		return
	}
	kept := w.kept[name]
	own, applied := w.watcher.applied(name)
	near := kept != nil
	for number := range kept {
		near = near && applied[number] < kept[number]+rewindMost
	}
	switch {
	case near && w.rewind[name]:
		w.c.RewindState(name)
		w.rewound++
		w.trace("%v: the state of %s is that of entries %v, others have applied %v", w.now(), name, kept, applied)
	case !near || random.IntN(2) == 0:
		w.c.KeepState(name)
		w.kept[name] = own
	}
	delete(w.rewind, name)
	w.c.StartNode(name)
	w.trace("%v: %s is started", w.now(), name)
}

// repair mends everything; now and then one node stays away for longer.
func (w *world) repair(random *rand.Rand) {
	w.c.Heal()
	w.calm()
	away := random.IntN(5) == 0
	for _, name := range w.c.Names {
		if w.c.Node(name) != nil {
			continue
		}
		if away {
			away = false
			continue
		}
		w.start(name, random)
	}
}

// mend mends everything and waits until it works.
func (w *world) mend() {
	clear(w.away)
	w.c.Heal()
	w.calm()
	for _, name := range w.c.Names {
		w.start(name, rand.New(rand.NewPCG(0, 0)))
	}
	w.c.Serving()
}
