package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is one hour: what befalls the cluster and who calls, all of it drawn from the seed
// before the hour begins. It names nodes by what they are to a shard at the time, so that
// it does not depend on who leads.
type plan struct {
	Steps   []step
	Callers []callerPlan
	Owners  []ownerPlan
	Long    []longPlan
}

// kind is a kind of fault.
type kind string

// The kinds of faults. repair is none: it mends everything.
const (
	repair        kind = "repair"
	handover      kind = "handover"
	handovers     kind = "handovers every two seconds"
	handoverKill  kind = "kill of the leader that hands over"
	handoverDeaf  kind = "a leader that hands over and does not hear of it, under a flurry of calls"
	unheard       kind = "a leader that is not heard any more and is asked to commit"
	killOne       kind = "kill of one node"
	killRewound   kind = "kill of one node, its state older than its log"
	killTwo       kind = "kill of two nodes"
	killAll       kind = "kill of all nodes"
	killAgain     kind = "kill of one node that has just come back, three times"
	stopOne       kind = "stop of one node"
	stopAll       kind = "stop of all nodes"
	sever         kind = "connections broken"
	severOne      kind = "single connections broken"
	slow          kind = "slow links"
	reorder       kind = "uneven delays"
	callersCut    kind = "callers cut off"
	callersOneWay kind = "callers cut off one way"
	parting       kind = "links cut"
	flapping      kind = "links cut and healed in turn"
	partingKill   kind = "links cut and a node killed"
	farBehind     kind = "a node away for longer than the log reaches back"
)

// deck is what is drawn from without putting back, so that an hour has a bit of everything.
var deck = []kind{
	handover, handovers, handoverKill, handoverDeaf, handoverDeaf, unheard, unheard, killOne, killOne, killRewound, killTwo, killAll, killAgain, stopOne, stopAll, sever, severOne,
	slow, reorder, callersCut, callersOneWay, parting, parting, parting, parting, parting, flapping, flapping, partingKill,
}

// step is a fault or a repair.
type step struct {
	At    time.Duration // from the beginning of the hour
	Kind  kind
	Shard int           // whose leader is node 0
	Node  int           // 0 is the leader, 1 and 2 are the others
	Other int           // another one than Node
	Links int           // a set of the six ways between the nodes, 1 to 63
	Most  time.Duration // a delay, or a pause
	Pick  uint64        // for what is drawn on the spot
}

// String shows the step in a trace.
func (s step) String() string {
	text := fmt.Sprintf("%v %s", s.At, s.Kind)
	if s.Kind == repair {
		return text
	}
	return text + fmt.Sprintf(" (shard %d, node %d, other %d, links %06b, %v)", s.Shard, s.Node, s.Other, s.Links, s.Most)
}

// What an hour has to have to count as one.
const (
	operationsLeast = 2000
	faultsLeast     = 30
	electionsLeast  = 5
)

// The shape of an hour: so many busy stretches, each with a quiet one behind it in which
// hardly anybody calls and everything works, but for a leader that is lost in the middle.
const (
	stretches    = 9
	stretch      = 385 * time.Second
	busy         = 255 * time.Second
	hourLength   = time.Hour
	keysEach     = 22 // contended keys of a stretch, half of them of each principal
	callersEach  = 5  // callers of a key
	ownersEach   = 4  // keys of a stretch whose callers are programs with the client
	runsEach     = 3  // such programs of a key
	roundsLeast  = 4
	roundsMost   = 6
	longEach     = 4 // of an hour
	pauseAtStart = 15 * time.Second
	quietBefore  = 3 * time.Second

	// In a quiet stretch, but the last one, a leader is lost after so long, and comes back.
	quietLeast  = 60 * time.Second
	quietMost   = 90 * time.Second
	quietMended = 10 * time.Second

	farBehindHour    = 1 // of those of a cluster
	farBehindStretch = stretches / 2
)

// between draws a duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// one draws one of several.
func one[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// planHour draws an hour. The same seed, number and shards give the same plan.
func planHour(seed uint64, number, shards int) plan {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	var p plan
	var left []kind
	draw := func() kind {
		if len(left) == 0 {
			left = append(left, deck...)
			random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		k := left[0]
		left = left[1:]
		return k
	}
	for i := range stretches {
		begins := pauseAtStart + time.Duration(i)*stretch
		rounds := roundsLeast + random.IntN(roundsMost-roundsLeast+1)
		each := busy / time.Duration(rounds)
		for r := range rounds {
			at := begins + time.Duration(r)*each
			p.Steps = append(p.Steps, drawStep(random, draw(), at+between(random, 0, each/4), shards))
			if random.IntN(4) == 0 { // two at a time
				p.Steps = append(p.Steps, drawStep(random, draw(), at+between(random, each/4, each/2), shards))
			}
			p.Steps = append(p.Steps, step{At: at + between(random, each/2, each), Kind: repair})
		}
		if i < stretches-1 && (number%hoursEach != farBehindHour || i != farBehindStretch) {
			// Nobody has called for a while: what time it is, only the clock's own entries say.
			lost := drawStep(random, killOne, begins+busy+quietBefore+between(random, quietLeast, quietMost), shards)
			lost.Node, lost.Other = 0, 1+random.IntN(2)
			p.Steps = append(p.Steps, lost, step{At: lost.At + quietMended, Kind: repair})
		}
		for k := range keysEach {
			p.Callers = append(p.Callers, drawCallers(random, fmt.Sprintf("%s/h%d-%d-%d", principals[k%2], number, i, k/2), begins)...)
		}
		for k := range ownersEach {
			key := fmt.Sprintf("%s/h%d-%d-owned-%d", principals[0], number, i, k)
			at := begins + between(random, 0, busy*2/3)
			length := between(random, 2*time.Second, 20*time.Second)
			for range runsEach {
				p.Owners = append(p.Owners, ownerPlan{At: at + between(random, 0, 2*length), Key: key, TTL: length, Seed: random.Uint64()})
			}
		}
	}
	if number%hoursEach == farBehindHour {
		// In a quiet stretch, since it takes a while.
		at := pauseAtStart + farBehindStretch*stretch + busy
		far := drawStep(random, farBehind, at+quietBefore, shards)
		far.Node, far.Other = 1+random.IntN(2), 0
		p.Steps = append(p.Steps, far)
		slices.SortStableFunc(p.Steps, func(a, b step) int { return cmp.Compare(a.At, b.At) })
	}
	for i := range longEach {
		p.Long = append(p.Long, longPlan{
			At: between(random, 0, 50*time.Minute), Key: fmt.Sprintf("%s/h%d-long-%d", principals[0], number, i),
			TTL: between(random, 10*time.Minute, 150*time.Minute), Commit: random.IntN(2) == 0, Seed: random.Uint64(),
		})
	}
	return p
}

func drawStep(random *rand.Rand, k kind, at time.Duration, shards int) step {
	s := step{
		At: at, Kind: k, Shard: random.IntN(shards), Links: 1 + random.IntN(63), Pick: random.Uint64(),
		Most: between(random, 10*time.Millisecond, 400*time.Millisecond),
	}
	if random.IntN(2) == 0 { // the leader is worth more
		s.Node = random.IntN(3)
	}
	s.Other = (s.Node + 1 + random.IntN(2)) % 3
	return s
}

// faults returns how many faults the plan has.
func (p plan) faults() (n int) {
	for _, s := range p.Steps {
		if s.Kind != repair {
			n++
		}
	}
	return n
}

// String shows what befalls the cluster.
func (p plan) String() string {
	var text strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintln(&text, s)
	}
	return text.String()
}
