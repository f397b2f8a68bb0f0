package cluster_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// waiter is a Reserve that waits for another attempt to end.
type waiter struct {
	node   string
	ended  time.Time
	answer *coordinatorv1.ReserveResponse
	err    error
}

// When leadership is lost or cannot be confirmed those who wait are told so at once,
// wherever they came in, and do not wait for their minute to be over.
func TestWaitersHearOfALostLeader(t *testing.T) {
	type loss struct {
		name string
		// at once is how long a waiter at the leader and at a follower may take.
		leader, follower time.Duration
		do               func(c *cluster.Cluster, leader string)
	}
	// A leader that hears nobody gives up after its lease; a follower hears of the next
	// leader, or of none, after one to two heartbeat timeouts and an election.
	losses := []loss{
		{"handed over", 500 * time.Millisecond, 500 * time.Millisecond, func(c *cluster.Cluster, _ string) { _ = c.Handover(0, "") }},
		{"stopped", 500 * time.Millisecond, 500 * time.Millisecond, func(c *cluster.Cluster, leader string) { c.StopNode(leader) }},
		{"crashed", time.Second, 4 * time.Second, func(c *cluster.Cluster, leader string) { c.Crash(leader) }},
	}
	for _, p := range partings()[:4] {
		losses = append(losses, loss{p.name, 2 * time.Second, 4 * time.Second, func(c *cluster.Cluster, leader string) { p.cut(c, leader, c.Others(leader)) }})
	}
	for _, l := range losses {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cluster.Start(t, cluster.Options{Change: oneShard})
				c.Latency(time.Millisecond)
				leader := c.AwaitLeader(0)
				first := &coordinatorv1.ReserveRequest{Identity: identity("k"), AttemptId: newAttempt(), Owner: "first"}
				if answer, err := reserve(t.Context(), c, leader, first); answer.GetGranted() == nil {
					t.Fatalf("reserve: %v, %v", answer, err)
				}
				var waiting sync.WaitGroup
				var waiters []*waiter
				for i := range 12 {
					w := &waiter{node: c.Names[i%3]}
					waiters = append(waiters, w)
					waiting.Go(func() {
						w.answer, w.err = reserve(t.Context(), c, w.node, &coordinatorv1.ReserveRequest{
							Identity: identity("k"), AttemptId: newAttempt(), Owner: fmt.Sprint("waiter ", i), Wait: window(time.Minute),
						})
						w.ended = time.Now()
					})
				}
				time.Sleep(5 * time.Second)
				if n := c.Replica(leader, 0).Status().Waiters; n != len(waiters) {
					t.Fatalf("%d of %d wait", n, len(waiters))
				}
				lost := time.Now()
				l.do(c, leader)
				waiting.Wait()
				for _, w := range waiters {
					within, where := l.follower, "a follower"
					if w.node == leader {
						within, where = l.leader, "the leader"
					}
					took := w.ended.Sub(lost)
					if w.err == nil || !again(w.err) {
						t.Errorf("a waiter at %s got %v, %v", where, w.answer, w.err)
					} else if took > within {
						t.Errorf("a waiter at %s was told after %v: %v", where, took, w.err)
					}
					if f := reason.Of(w.err); w.node == leader && f.Reason != reason.NoLeader && f.Reason != reason.ShuttingDown && l.name != "crashed" {
						t.Errorf("a waiter at the leader got %v", w.err)
					}
				}
			})
		})
	}
}
