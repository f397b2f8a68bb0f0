package load

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// Fill makes count reservations with the given number of concurrent callers, each at
// its shard's leader. request returns the i-th; it is called right before it is sent.
// A call that is turned away is sent again, with the same attempt id.
func (c *Cluster) Fill(t testing.TB, callers, count int, request func(i int) *coordinatorv1.ReserveRequest) {
	t.Helper()
	leaders := c.LeaderAddresses(t)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			for i := int(next.Add(1)) - 1; i < count && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				r := request(i)
				if r.AttemptId == nil {
					r.AttemptId = AttemptID()
				}
				service := c.Service(leaders[c.ShardOf(r.GetIdentity())], caller)
				if err := insist(t.Context(), service, r); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
}

// insist sends a Reserve until it is granted.
func insist(ctx context.Context, service coordinatorv1.CoordinatorServiceClient, r *coordinatorv1.ReserveRequest) error {
	for try := 0; ; try++ {
		bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
		answer, err := service.Reserve(bounded, r)
		cancel()
		switch code := status.Code(err); {
		case err == nil && answer.GetGranted() == nil:
			return fmt.Errorf("key %s was not granted: %v", r.GetIdentity().GetKey(), answer)
		case err == nil:
			return nil
		case try == 20 || code != codes.Unavailable && code != codes.ResourceExhausted:
			return fmt.Errorf("key %s: %w", r.GetIdentity().GetKey(), err)
		}
		time.Sleep(time.Duration(try+1) * 10 * time.Millisecond)
	}
}

// AttemptID draws an attempt id.
func AttemptID() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it does not fail
	return id
}

// Probe is a caller that sends a Reserve of a new key at fixed times, whether or not
// the earlier ones have been answered: what it sees is what a caller of its own sees
// that comes at any moment. A latency counts from the time at which a call was due.
type Probe struct {
	stop     chan struct{}
	done     sync.WaitGroup
	mu       sync.Mutex
	answered Latencies
	failed   []error
}

// probeWithin bounds one call of a probe.
const probeWithin = 10 * time.Second

// StartProbe starts a probe that goes through all nodes in turn.
func (c *Cluster) StartProbe(t testing.TB, every time.Duration) *Probe {
	t.Helper()
	p := &Probe{stop: make(chan struct{})}
	began := time.Now()
	p.done.Go(func() {
		for i := 0; ; i++ {
			due := began.Add(time.Duration(i) * every)
			select {
			case <-p.stop:
				return
			case <-time.After(time.Until(due)):
			}
			service := c.Service(c.Nodes[i%len(c.Nodes)].Client, i/len(c.Nodes))
			key := fmt.Sprintf("probe-%d-%d", began.UnixNano(), i)
			p.done.Go(func() { p.call(t.Context(), service, key, due) })
		}
	})
	return p
}

func (p *Probe) call(ctx context.Context, service coordinatorv1.CoordinatorServiceClient, key string, due time.Time) {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	_, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: key}})
	took := time.Since(due)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = append(p.failed, err)
		return
	}
	p.answered = append(p.answered, took)
}

// Stop waits for the calls that are under way and returns how long those took that
// were answered, and the errors of the others.
func (p *Probe) Stop() (Latencies, []error) {
	close(p.stop)
	p.done.Wait()
	return p.answered, p.failed
}
