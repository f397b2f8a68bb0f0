package served

import (
	"context"
	"fmt"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/scenario"
)

// waiter is a Reserve in a goroutine of its own.
type waiter struct {
	done   chan struct{}
	result scenario.Result
	err    error
}

// Start implements [scenario.Target]. That a server holds the waiter shows in the
// shards' count of them.
func (t *Target) Start(ctx context.Context, call scenario.ReserveCall) (scenario.Waiter, error) {
	before, err := t.waiters(ctx)
	if err != nil {
		return nil, err
	}
	w := &waiter{done: make(chan struct{})}
	own := &Target{Nodes: t.Nodes, Sleep: t.Sleep, Retry: t.Retry, Timeout: t.Timeout, next: t.next}
	go func() {
		defer close(w.done)
		w.result, w.err = own.Reserve(ctx, call)
	}()
	for range 1000 {
		select {
		case <-w.done:
			return w, nil // it did not have to wait
		default:
		}
		now, err := t.waiters(ctx)
		if err != nil {
			return nil, err
		}
		if now > before {
			return w, nil
		}
		t.Sleep(time.Millisecond)
	}
	return nil, fmt.Errorf("served: nobody holds the waiter")
}

// waiters counts the waiters of all shards.
func (t *Target) waiters(ctx context.Context) (int, error) {
	bounded, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	m, err := coordinatorv1.NewAdminServiceClient(t.node()).ListShards(bounded, &coordinatorv1.ListShardsRequest{})
	count := 0
	for _, shard := range m.GetShards() {
		count += int(shard.GetWaiters())
	}
	return count, err
}

// Finish implements [scenario.Waiter].
func (w *waiter) Finish(ctx context.Context, within time.Duration) (scenario.Result, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.done:
		return w.result, w.err
	case <-ctx.Done():
		return scenario.Result{}, ctx.Err()
	case <-timer.C:
		return scenario.Result{}, fmt.Errorf("still waiting after %v", within)
	}
}
