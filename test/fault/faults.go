package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/process"
)

// fault is one row of the table.
type fault struct {
	kind string
	// do makes the fault and mends it. Errors are of the making, or say what is amiss.
	do func(context.Context, *scene) error
	// edited: it needs a program that was built with [shiftedClock].
	edited bool
}

// faults returns the table.
func faults() []fault {
	table := []fault{
		{kind: "kill -9 of the leader", do: killSome(func(leader *process.Node, _ []*process.Node) []*process.Node { return []*process.Node{leader} })},
		{kind: "kill -9 of a follower", do: killSome(func(_ *process.Node, others []*process.Node) []*process.Node { return others[:1] })},
		{kind: "kill -9 of two of three", do: killSome(func(leader *process.Node, others []*process.Node) []*process.Node {
			return []*process.Node{leader, others[0]}
		})},
		{kind: "kill -9 of all three", do: killSome(func(leader *process.Node, others []*process.Node) []*process.Node { return append(others, leader) })},
		{kind: "kill -9 of one after the other", do: killStorm},
		{kind: "SIGSTOP of the leader, SIGCONT", do: pauseSome(func(leader *process.Node, _ []*process.Node) []*process.Node { return []*process.Node{leader} })},
		{kind: "SIGSTOP of a follower, SIGCONT", do: pauseSome(func(_ *process.Node, others []*process.Node) []*process.Node { return others[:1] })},
		{kind: "SIGSTOP of two of three, SIGCONT", do: pauseSome(func(leader *process.Node, others []*process.Node) []*process.Node {
			return []*process.Node{leader, others[0]}
		})},
		{kind: "SIGSTOP of all three, SIGCONT", do: pauseSome(func(leader *process.Node, others []*process.Node) []*process.Node { return append(others, leader) })},
		{kind: "SIGTERM of one, restart", do: restartOne},
		{kind: "handover every 2 s", do: handovers(2*time.Second, 3)},
		{kind: "handover five times a second", do: handovers(200*time.Millisecond, 15)},
		{kind: "slow links", do: slowLinks},
		{kind: "connections broken off", do: severLinks},
		{kind: "links that flap", do: flappingLinks},
		{kind: "deliveries slow, lost, doubled and late", do: roughDeliveries},
		{kind: "wall clocks apart and jumping by hours", do: jumpingClocks, edited: true},
	}
	for _, p := range partitions {
		table = append(table, fault{kind: "partition: " + p.kind, do: parted(p)})
	}
	return table
}

// claimed claims those of the nodes that nobody else is at.
func (sc *scene) claimed(nodes []*process.Node) (mine []*process.Node, letGo func()) {
	for _, n := range nodes {
		if sc.claim(n) {
			mine = append(mine, n)
		}
	}
	return mine, func() {
		for _, n := range mine {
			sc.letGo(n)
		}
	}
}

type choice func(leader *process.Node, others []*process.Node) []*process.Node

// killSome kills nodes at one moment and starts them again a moment later.
func killSome(choose choice) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		leader, others, err := sc.leader()
		if err != nil {
			return err
		}
		victims, letGo := sc.claimed(choose(leader, others))
		defer letGo()
		var failures []error
		for _, n := range victims {
			failures = append(failures, n.Kill())
			sc.did("kill -9")
		}
		sc.sleep(ctx, 50*time.Millisecond, 2500*time.Millisecond)
		for _, n := range victims {
			failures = append(failures, n.Start())
		}
		return errors.Join(failures...)
	}
}

// pauseSome stops nodes for longer than an election takes.
func pauseSome(choose choice) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		leader, others, err := sc.leader()
		if err != nil {
			return err
		}
		victims, letGo := sc.claimed(choose(leader, others))
		defer letGo()
		var failures []error
		for _, n := range victims {
			failures = append(failures, n.Pause())
			sc.did("SIGSTOP")
		}
		sc.sleep(ctx, 1500*time.Millisecond, 3500*time.Millisecond)
		for _, n := range victims {
			failures = append(failures, n.Resume())
		}
		return errors.Join(failures...)
	}
}

// killStorm kills drawn nodes in quick succession, most times before they have recovered.
func killStorm(ctx context.Context, sc *scene) error {
	for range 8 {
		mine, letGo := sc.claimed([]*process.Node{sc.c.Nodes[sc.draw(3)]})
		for _, n := range mine {
			if err := n.Kill(); err != nil {
				letGo()
				return err
			}
			sc.did("kill -9")
			if err := n.Start(); err != nil {
				letGo()
				return err
			}
		}
		letGo()
		sc.sleep(ctx, 20*time.Millisecond, 900*time.Millisecond)
	}
	return nil
}

func restartOne(ctx context.Context, sc *scene) error {
	mine, letGo := sc.claimed([]*process.Node{sc.c.Nodes[sc.draw(3)]})
	defer letGo()
	for _, n := range mine {
		code, err := n.Stop()
		if err != nil {
			return err
		}
		if code != 0 {
			return fmt.Errorf("%s ended with %d on SIGTERM: %s", n.Name, code, lastLine(n.Output()))
		}
		sc.did("SIGTERM")
		sc.sleep(ctx, 50*time.Millisecond, time.Second)
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// handovers hands every shard to another node again and again.
func handovers(every time.Duration, times int) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for range times {
			n := sc.c.Nodes[sc.draw(3)]
			bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, err := coordinatorv1.NewAdminServiceClient(n.Conn()).TransferLeadership(bounded, &coordinatorv1.TransferLeadershipRequest{ToNode: n.Name})
			cancel()
			switch status.Code(err) {
			case codes.OK:
				sc.did("handover")
			case codes.Unavailable, codes.DeadlineExceeded, codes.FailedPrecondition, codes.Aborted, codes.ResourceExhausted:
				sc.did("handover refused")
			default:
				return fmt.Errorf("handover to %s: %w", n.Name, err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		return nil
	}
}

func slowLinks(ctx context.Context, sc *scene) error {
	for _, a := range sc.c.Nodes {
		for _, b := range sc.c.Nodes {
			if a != b && sc.draw(2) == 0 {
				sc.links.slow(sc.between(time.Millisecond, 120*time.Millisecond), direction{a.Name, b.Name})
				sc.did("slow link")
			}
		}
	}
	sc.sleep(ctx, 2*time.Second, 4*time.Second)
	sc.links.heal()
	return nil
}

func severLinks(ctx context.Context, sc *scene) error {
	for range 8 {
		sc.mu.Lock()
		sc.links.severSome(sc.random)
		sc.mu.Unlock()
		sc.did("connections broken off")
		sc.sleep(ctx, 20*time.Millisecond, 600*time.Millisecond)
	}
	return nil
}

// flappingLinks cuts drawn directions for moments, some shorter than an election takes.
func flappingLinks(ctx context.Context, sc *scene) error {
	for range 8 {
		from, to := sc.draw(3), 1+sc.draw(2)
		sc.links.cut(direction{sc.c.Nodes[from].Name, sc.c.Nodes[(from+to)%3].Name})
		sc.did("link cut for a moment")
		sc.sleep(ctx, 50*time.Millisecond, 900*time.Millisecond)
		sc.links.heal()
		sc.sleep(ctx, 20*time.Millisecond, 300*time.Millisecond)
	}
	return nil
}

func roughDeliveries(ctx context.Context, sc *scene) error {
	sc.load.unkind.Store(rough())
	sc.did("rough deliveries")
	sc.sleep(ctx, 3*time.Second, 5*time.Second)
	sc.load.unkind.Store(usual())
	return nil
}

func jumpingClocks(ctx context.Context, sc *scene) error {
	for range 6 {
		n := sc.c.Nodes[sc.draw(3)]
		by := time.Duration(sc.draw(97)-48) * time.Hour
		if err := sc.clocks.set(n.Name, by+sc.between(0, time.Hour)); err != nil {
			return err
		}
		sc.did("wall clock jumped")
		sc.sleep(ctx, 100*time.Millisecond, 800*time.Millisecond)
	}
	return nil
}

// partition is a shape of what is cut. l leads most shards, a and b are the others.
type partition struct {
	kind string
	cut  func(l, a, b string) []direction
}

var partitions = []partition{
	{"the leader is alone", func(l, a, b string) []direction { return append(both(l, a), both(l, b)...) }},
	{"a follower is alone", func(l, a, b string) []direction { return append(both(a, l), both(a, b)...) }},
	{"everybody is alone", func(l, a, b string) []direction { return append(append(both(l, a), both(l, b)...), both(a, b)...) }},
	{"the leader and one follower do not meet", func(l, a, _ string) []direction { return both(l, a) }},
	{"the followers do not meet", func(_, a, b string) []direction { return both(a, b) }},
	{"the leader is not heard", func(l, a, b string) []direction { return []direction{{l, a}, {l, b}} }},
	{"the leader hears nobody", func(l, a, b string) []direction { return []direction{{a, l}, {b, l}} }},
	{"the leader is not heard by one", func(l, a, _ string) []direction { return []direction{{l, a}} }},
	{"the leader does not hear one", func(l, a, _ string) []direction { return []direction{{a, l}} }},
	{"a follower is not heard", func(l, a, b string) []direction { return []direction{{a, l}, {a, b}} }},
	{"a follower hears nobody", func(l, a, b string) []direction { return []direction{{l, a}, {b, a}} }},
	{"everybody hears one, in a ring", func(l, a, b string) []direction { return []direction{{l, a}, {a, b}, {b, l}} }},
}

// errNothingHeld reports a partition that was none. Beside another fault that may be: two
// nodes say nothing to each other while the third leads every shard.
var errNothingHeld = errors.New("nothing was sent that the partition could have held back")

// parted cuts, waits and heals; half of the times the connections that were cut break off
// in the end.
func parted(p partition) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		leader, others, err := sc.leader()
		if err != nil {
			return err
		}
		held := sc.links.held.Load()
		sc.links.cut(p.cut(leader.Name, others[0].Name, others[1].Name)...)
		sc.did("partition: " + p.kind)
		sc.sleep(ctx, 1200*time.Millisecond, 4*time.Second)
		if sc.links.held.Load() == held {
			err = errNothingHeld
		}
		if sc.draw(2) == 0 {
			sc.links.sever(func(*joint) bool { return true })
		}
		sc.links.heal()
		return err
	}
}

// mixture makes drawn faults, two at a time beside each other.
func mixture(lasts time.Duration) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		table := faults()
		until := time.Now().Add(lasts)
		failures := make([]error, 2)
		var lanes sync.WaitGroup
		for lane := range failures {
			lanes.Go(func() {
				for time.Now().Before(until) && failures[lane] == nil {
					f := table[sc.draw(len(table))]
					if err := f.do(ctx, sc); err != nil && !errors.Is(err, errNothingHeld) {
						failures[lane] = fmt.Errorf("%s: %w", f.kind, err)
					}
					if sc.draw(3) == 0 {
						sc.sleep(ctx, 500*time.Millisecond, 2500*time.Millisecond) // time for a leader to be found
					}
				}
			})
		}
		lanes.Wait()
		sc.links.heal()
		sc.load.unkind.Store(usual())
		return errors.Join(failures...)
	}
}
