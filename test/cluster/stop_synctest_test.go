package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// stoppedMax is more than a stop of a node takes that has handed over what it leads, or has
// nobody to hand it to, and less than what a call may wait for a leader.
const stoppedMax = time.Second

// Calls that come while a node stops are carried out where their shard is led, or told at once to
// be made again: none of them waits for what the node will not hear any more.
func TestStoppedWhileCallsCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.FreeBytesMin = 0 }})
		c.Latency(time.Millisecond)
		time.Sleep(30 * time.Second) // for the leaders to be spread
		for _, name := range c.Names {
			stopping, stopped := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			calls.Go(func() {
				for n := 0; stopping.Err() == nil; n++ {
					calls.Go(func() {
						began := time.Now()
						_, err := reserve(t.Context(), c, name, &coordinatorv1.ReserveRequest{Identity: identity(fmt.Sprint(name, n)), AttemptId: newAttempt()})
						if err != nil && !again(err) {
							t.Errorf("called %s, which stops: %v", name, err)
						}
						if took := time.Since(began); took > stoppedMax {
							t.Errorf("a call was answered after %v: %v", took, err)
						}
					})
					time.Sleep(100 * time.Microsecond)
				}
			})
			time.Sleep(10 * time.Millisecond)
			began := time.Now()
			c.StopNode(name)
			if took := time.Since(began); took > stoppedMax {
				t.Errorf("%s stopped after %v", name, took)
			}
			stopped()
			calls.Wait()
			c.StartNode(name)
			c.Serving()
			time.Sleep(30 * time.Second)
		}
	})
}

// A call that waits for a leader at a node that stops hears that it did nothing, at once.
func TestStoppedWhileThereIsNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		last := c.Names[2]
		c.Crash(c.Names[0])
		c.Crash(c.Names[1])
		time.Sleep(10 * time.Second)
		var call sync.WaitGroup
		call.Go(func() {
			_, err := reserve(t.Context(), c, last, &coordinatorv1.ReserveRequest{Identity: identity("waits"), AttemptId: newAttempt()})
			if reason.Of(err).Reason != reason.NoLeader {
				t.Errorf("a call that waited for a leader: %v", err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		c.StopNode(last)
		call.Wait()
		if took := time.Since(began); took > stoppedMax {
			t.Errorf("the node stopped, and the call was answered, after %v", took)
		}
	})
}

// A shard is handed to a node just as that is stopped. Where the node has it by then it hands it
// on, and otherwise it takes over nothing: nobody has to be elected.
func TestStoppedAsItIsHandedAShard(t *testing.T) {
	for after := 10 * time.Millisecond; after <= 70*time.Millisecond; after += 5 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			c := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.FreeBytesMin = 0 }})
			time.Sleep(40 * time.Second) // for the leaders to be spread
			c.Latency(5 * time.Millisecond)
			time.Sleep(5 * time.Second)
			const number, to = 2, "n1"
			if c.Leader(number) == to {
				t.Fatalf("%s leads shard %d already", to, number)
			}
			var both sync.WaitGroup
			both.Go(func() { _ = c.Handover(number, to) })
			time.Sleep(after)
			both.Go(func() { c.StopNode(to) })
			time.Sleep(200 * time.Millisecond)
			began := time.Now()
			if c.AwaitLeader(number); time.Since(began) > 0 {
				t.Errorf("stopped %v after the shard was handed to it, which has had a leader again only after %v", after, 200*time.Millisecond+time.Since(began))
			}
			both.Wait()
		})
	}
}

// All nodes are stopped at the same moment: none waits for another to take over.
func TestAllStoppedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.FreeBytesMin = 0 }})
		c.Latency(5 * time.Millisecond)
		time.Sleep(30 * time.Second)
		var stopping sync.WaitGroup
		for _, name := range c.Names {
			stopping.Go(func() {
				began := time.Now()
				c.StopNode(name)
				if took := time.Since(began); took > stoppedMax {
					t.Errorf("%s stopped after %v", name, took)
				}
			})
		}
		stopping.Wait()
	})
}

// A call that waits, and that another node leads the shard of, is told why this one does not wait
// for that any more.
func TestStoppedWhileAnotherNodeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		other := c.Others(c.AwaitLeader(0))[0]
		held := identity("held")
		if answer, err := reserve(t.Context(), c, other, &coordinatorv1.ReserveRequest{Identity: held, AttemptId: newAttempt()}); answer.GetGranted() == nil {
			t.Fatal(answer, err)
		}
		var waits sync.WaitGroup
		waits.Go(func() {
			_, err := reserve(t.Context(), c, other, &coordinatorv1.ReserveRequest{Identity: held, AttemptId: newAttempt(), Wait: window(20 * time.Second)})
			if failure := reason.Of(err); failure.Reason != reason.OutcomeUnknown || !strings.Contains(failure.Message, "this node stops") {
				t.Errorf("the call that waited: %v", err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		c.StopNode(other)
		waits.Wait()
	})
}
