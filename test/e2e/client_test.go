package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/test/process"
)

// Six callers of client.Do race for each of 60 keys, while the node that leads the most
// stands still for six seconds, and is then killed and started again: each key's
// function runs once, and everybody gets its response.
func TestDoThroughAStandstillAndAKill(t *testing.T) {
	cluster := process.Start(t, programs, 3)
	c, err := client.Dial(cluster.Endpoints())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })

	const keys, callers = 60, 6
	var (
		mu      sync.Mutex
		runs    [keys]int
		longest time.Duration
		running sync.WaitGroup
	)
	for caller := range callers {
		running.Go(func() {
			for key := range keys {
				began := time.Now()
				result, err := doUntilAnswered(t.Context(), c, key, func() {
					mu.Lock()
					defer mu.Unlock()
					runs[key]++
				})
				if err != nil || result.Response.Code != key {
					t.Errorf("caller %d, key %d: %+v, %v", caller, key, result, err)
				}
				mu.Lock()
				longest = max(longest, time.Since(began))
				mu.Unlock()
				pace := time.NewTimer(100 * time.Millisecond)
				<-pace.C
			}
		})
	}
	time.Sleep(2 * time.Second)
	leader, err := cluster.LeaderOfMost(10 * time.Second)
	must(t, err)
	must(t, leader.Pause())
	time.Sleep(6 * time.Second)
	must(t, leader.Resume())
	time.Sleep(time.Second)
	must(t, leader.Kill())
	time.Sleep(time.Second)
	must(t, leader.Start())
	running.Wait()
	for key, n := range runs {
		if n != 1 {
			t.Errorf("the function of key %d ran %d times", key, n)
		}
	}
	t.Logf("the longest call took %v", longest)
}

// doUntilAnswered is a caller as it is to be: it asks again until it has the response.
func doUntilAnswered(ctx context.Context, c *client.Client, key int, ran func()) (client.Result, error) {
	id := client.Identity{Principal: "account", Operation: "POST /v1/orders", Key: fmt.Sprintf("do-%d", key)}
	for again := 0; ; again++ {
		result, err := c.Do(ctx, id, func(context.Context, *client.Reservation) (client.Response, error) {
			ran()
			return client.Response{Code: key}, nil
		}, client.WithWait(5*time.Second), client.WithOnLapse(client.Hold))
		if err == nil || again == 10 || !errors.Is(err, client.ErrPending) && !errors.Is(err, client.ErrUnavailable) {
			return result, err
		}
	}
}
