package cluster_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/test/cluster"
)

// load is callers that reserve and commit one key after another, each at its own node
// and, where that does not answer, at the next.
type load struct {
	t *testing.T
	c *cluster.Cluster

	callers sync.WaitGroup
	end     context.CancelFunc

	mu       sync.Mutex
	keys     []string // acknowledged
	longest  time.Duration
	retried  int
	servedAt time.Time // the last acknowledgement
	withouts time.Duration
}

func startLoad(t *testing.T, c *cluster.Cluster, callers int) *load {
	ctx, end := context.WithCancel(t.Context())
	l := &load{t: t, c: c, end: end, servedAt: time.Now()}
	for i := range callers {
		l.callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.work(ctx, i, fmt.Sprintf("%d-%d", i, n))
				sleep(ctx, 200*time.Millisecond)
			}
		})
	}
	return l
}

// retry makes a call at one node after another until it is answered.
func (l *load) retry(ctx context.Context, from int, call func(context.Context, string) error) bool {
	for i := from; ; i++ {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		err := call(bounded, l.c.Names[i%3])
		cancel()
		if err == nil {
			return true
		}
		if !again(err) {
			l.t.Errorf("a caller that retries got %v", err)
			return false
		}
		l.mu.Lock()
		l.retried++
		l.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
}

// work reserves and commits a key.
func (l *load) work(ctx context.Context, from int, key string) {
	began := time.Now()
	request := &coordinatorv1.ReserveRequest{Identity: identity(key), AttemptId: newAttempt(), PendingTtl: window(time.Hour)}
	var answer *coordinatorv1.ReserveResponse
	if !l.retry(ctx, from, func(ctx context.Context, node string) (err error) {
		answer, err = service(l.c, node).Reserve(ctx, request)
		return err
	}) {
		return
	}
	if answer.GetGranted() == nil {
		l.t.Errorf("%s, which nobody else uses: %v", key, answer)
		return
	}
	if !l.retry(ctx, from, func(ctx context.Context, node string) error {
		_, err := service(l.c, node).Commit(ctx, &coordinatorv1.CommitRequest{
			Identity: identity(key), Token: answer.GetGranted().GetToken(), Response: &coordinatorv1.Response{Body: []byte(key)},
		})
		return err
	}) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = append(l.keys, key)
	l.longest = max(l.longest, now.Sub(began))
	l.withouts = max(l.withouts, now.Sub(l.servedAt))
	l.servedAt = now
}

// stop ends the load and checks that nothing acknowledged is lost.
func (l *load) stop() {
	l.t.Helper()
	l.end()
	l.callers.Wait()
	for i, key := range l.keys {
		answer, err := reserve(l.t.Context(), l.c, l.c.Names[i%3], &coordinatorv1.ReserveRequest{Identity: identity(key), AttemptId: newAttempt()})
		if string(answer.GetCommitted().GetResponse().GetBody()) != key {
			l.t.Errorf("%s was acknowledged as committed, and is %v, %v", key, answer, err)
		}
	}
}

// Each node is stopped and started again in turn while callers work: nothing is lost,
// nobody hears anything but that it should try again, and calls hardly wait.
func TestRollingRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.FreeBytesMin = 0 }})
		c.Latency(time.Millisecond)
		time.Sleep(30 * time.Second) // for the leaders to be spread
		l := startLoad(t, c, 4)
		for _, name := range c.Names {
			time.Sleep(3 * time.Second)
			began := time.Now()
			c.StopNode(name)
			stopped := time.Now()
			time.Sleep(2 * time.Second)
			c.StartNode(name)
			c.Serving()
			t.Logf("%s stopped in %v and was back after %v", name, stopped.Sub(began), time.Since(stopped))
		}
		time.Sleep(12 * time.Second) // in which leaders are spread again
		l.stop()
		t.Logf("%d keys, %d calls made again; the longest reserve and commit took %v, the longest time without any was %v",
			len(l.keys), l.retried, l.longest, l.withouts)
		if l.withouts > time.Second {
			t.Errorf("nothing was served for %v", l.withouts)
		}
		if l.longest > 2*time.Second {
			t.Errorf("one caller was not served for %v", l.longest)
		}
		c.Agree()
	})
}

// A node that was away for long is forwarded to as soon as it is back and leads: those
// who tried meanwhile do not hold their grudge.
func TestForwardedToAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		c.Latency(time.Millisecond)
		for _, crash := range []bool{false, true} {
			away := c.AwaitLeader(0)
			other := c.Others(away)[0]
			look := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
				defer cancel()
				_, err := service(c, other).Get(ctx, &coordinatorv1.GetRequest{Identity: identity("nobody's")})
				return err
			}
			_ = look() // so that there is a connection
			if crash {
				c.Crash(away)
			} else {
				c.StopNode(away)
			}
			time.Sleep(10 * time.Minute)
			c.StartNode(away)
			c.Serving()
			back := time.Now()
			for c.Handover(0, away) != nil { // Raft takes up to ten seconds to send it entries again
				if time.Since(back) > time.Minute {
					t.Fatalf("%s is back and cannot be handed the shard", away)
				}
				time.Sleep(100 * time.Millisecond)
			}
			t.Logf("crash %v: %s could lead again after %v", crash, away, time.Since(back))
			began := time.Now()
			for again(look()) {
				time.Sleep(5 * time.Millisecond)
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("crash %v: %s forwarded to %s only after %v", crash, other, away, took)
			}
		}
	})
}
