package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// load is many workers that reserve, commit, release, extend and abandon keys which they
// fight for, until it is stopped.
type load struct {
	*caller
	seed  uint64
	keys  atomic.Int64 // how many there are
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu    sync.Mutex
	wrong []error
}

// startLoad starts workers on all nodes of a cluster.
func startLoad(t *testing.T, c *process.Cluster, seed uint64, workers int) *load {
	t.Helper()
	l := &load{
		caller: &caller{nodes: c.Nodes, shards: shardsDefault, log: history.NewRecorder(), try: 3 * time.Second, within: time.Minute},
		seed:   seed,
	}
	stopping, stop := context.WithCancel(t.Context())
	l.stop = stop
	for worker := range workers {
		random := drawFrom(seed, uint64(worker)+1)
		l.ended.Go(func() {
			for stopping.Err() == nil {
				// A call that has begun is carried to its end.
				if err := l.turn(t.Context(), random); err != nil && !errors.Is(err, errGaveUp) {
					l.complain(err)
				}
			}
		})
	}
	t.Cleanup(func() { stop(); l.ended.Wait() })
	return l
}

func (l *load) complain(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, err)
}

// named returns the call for a key. Its number says what is asked for: one key in
// four is reserved for so short that its owners lapse.
func (l *load) named(number int64) call {
	key := fmt.Sprintf("key-%d", number)
	c := call{key: key, operation: "POST /v1/things", fingerprint: []byte(key), ttl: time.Minute}
	if number%4 == 0 {
		c.ttl = 400 * time.Millisecond
	}
	return c
}

// turn is one thing that a worker does.
func (l *load) turn(ctx context.Context, random *rand.Rand) error {
	var what call
	switch newest := l.keys.Load(); {
	case newest == 0 || random.IntN(100) < 40:
		what = l.named(l.keys.Add(1) - 1) // its very own
	case random.IntN(100) < 70:
		what = l.named(max(0, newest-1-random.Int64N(24))) // one of those that others are at
	default:
		what = l.named(random.Int64N(newest)) // a late duplicate
	}
	if random.IntN(4) == 0 {
		what.wait = 200 * time.Millisecond
	}
	_, granted, err := l.reserve(ctx, random.IntN(64), what)
	if reasonOf(err) == "ATTEMPT_ENDED" {
		return nil
	}
	if err != nil || granted == nil {
		return err
	}
	return l.own(ctx, random, granted)
}

// own is what an owner does. It never does anything after a commit or release.
func (l *load) own(ctx context.Context, random *rand.Rand, h *held) error {
	if random.IntN(4) == 0 {
		for range 1 + random.IntN(2) {
			err := l.extend(ctx, random.IntN(64), h, 2*time.Second)
			if err != nil {
				return owned(err)
			}
		}
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
	}
	switch choice := random.IntN(100); {
	case choice < 55:
		return owned(l.commit(ctx, random.IntN(64), h, response(random, h)))
	case choice < 80:
		return owned(l.release(ctx, random.IntN(64), h))
	case h.ttl < time.Second && choice < 95:
		time.Sleep(time.Duration(random.IntN(800)) * time.Millisecond) // it may be late
		return owned(l.commit(ctx, random.IntN(64), h, response(random, h)))
	default:
		return nil // it says nothing more
	}
}

// owned drops what an owner may be told: the history knows of it and judges it.
func owned(err error) error {
	if reasonOf(err) != "" {
		return nil
	}
	return err
}

// response is what an owner commits: like no other, and of various sizes.
func response(random *rand.Rand, h *held) *coordinatorv1.Response {
	sizes := [...]int{0, 10, 300, 1500, 1500, 20_000}
	size := sizes[random.IntN(len(sizes))]
	if random.IntN(200) == 0 {
		size = 600_000
	}
	body := fmt.Sprintf("%s %x %d ", h.key, h.attempt, random.Uint64())
	return &coordinatorv1.Response{
		Code: 200, ContentType: "text/plain", Headers: []*coordinatorv1.Header{{Name: "Location", Value: h.key}},
		Body: []byte(body + strings.Repeat(body, size/len(body))),
	}
}

// finish stops the workers, asks for every key once more, and checks everything that
// anybody was told.
func (l *load) finish(t *testing.T) {
	t.Helper()
	l.stop()
	l.ended.Wait()
	for _, err := range l.wrong[:min(len(l.wrong), 20)] {
		t.Error(err)
	}
	var asking sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		asking.Go(func() {
			for number := next.Add(1) - 1; number < l.keys.Load(); number = next.Add(1) - 1 {
				if _, _, err := l.reserve(t.Context(), int(number), l.named(number)); err != nil && reasonOf(err) == "" {
					t.Error(err)
				}
			}
		})
	}
	asking.Wait()
	t.Logf("%d keys, %d retries", l.keys.Load(), l.retries.Load())
	verify(t, l.log)
}
