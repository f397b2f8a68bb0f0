package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/client"
)

// owners knows who owns each key, by the owners' own contexts.
type owners struct {
	t    *testing.T
	mu   sync.Mutex
	last map[string]*client.Reservation
	n    int
}

// took notes an owner: the one before must know by now that it is none any more.
func (o *owners) took(key string, r *client.Reservation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	if before := o.last[key]; before != nil {
		if before.Context().Err() == nil {
			o.t.Errorf("%s: attempts %d and %d own it at once", key, before.Attempt(), r.Attempt())
		}
		if before.Fence() >= r.Fence() {
			o.t.Errorf("%s: fence %d after %d", key, r.Fence(), before.Fence())
		}
	}
	o.last[key] = r
}

// Owners that work, dawdle, renew and forget, on a cluster that loses answers, leaders and
// links: no key ever has two owners, and who commits is the last.
func TestNoTwoOwnersWhateverHappens(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { storm(t, seed) })
		})
	}
}

func storm(t *testing.T, seed uint64) {
	nodes := start(t, 3)
	var dice sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	roll := func(n int) int {
		dice.Lock()
		defer dice.Unlock()
		return random.IntN(n)
	}
	lose := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		switch roll(20) {
		case 0: // on the way there
			return status.Error(codes.Unavailable, "lost")
		case 1: // on the way back, slowly
			_ = invoke(ctx, method, request, reply, conn, options...)
			time.Sleep(time.Duration(roll(2000)) * time.Millisecond)
			return status.Error(codes.Unavailable, "lost")
		}
		return invoke(ctx, method, request, reply, conn, options...)
	}
	o := &owners{t: t, last: map[string]*client.Reservation{}}
	nodes.Latency(2 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	for range 6 {
		c := dial(t, nodes, intercept(lose))
		running.Go(func() {
			for ctx.Err() == nil {
				key := fmt.Sprintf("k%d", roll(4))
				r, err := c.Reserve(ctx, id(key), client.WithPendingTTL(time.Duration(200+roll(3000))*time.Millisecond),
					client.WithWait(time.Duration(roll(3000))*time.Millisecond))
				if err != nil {
					time.Sleep(time.Duration(roll(200)) * time.Millisecond)
					continue
				}
				o.took(key, r)
				stop := func() {}
				if roll(2) == 0 {
					stop = r.KeepAlive(ctx)
				}
				work := time.NewTimer(time.Duration(roll(4000)) * time.Millisecond)
				select {
				case <-work.C:
				case <-r.Context().Done():
				}
				work.Stop()
				stop()
				if roll(3) > 0 { // else it is forgotten
					_ = r.Release(ctx, "done")
				}
			}
		})
	}
	for range 6 {
		time.Sleep(8 * time.Second)
		leader := nodes.AwaitLeader(0)
		switch roll(3) {
		case 0:
			nodes.Crash(leader)
			time.Sleep(2 * time.Second)
			nodes.StartNode(leader)
		case 1:
			_ = nodes.Handover(0, "")
		default:
			nodes.Network.Isolate(leader)
			time.Sleep(2 * time.Second)
			nodes.Heal()
		}
	}
	running.Wait()
	t.Logf("%d reservations", o.n)
	if o.n < 50 {
		t.Errorf("only %d reservations", o.n)
	}
}
