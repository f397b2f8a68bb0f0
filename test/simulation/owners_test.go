package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/test/cluster"
)

// ownerPlan is a program that uses the client.
type ownerPlan struct {
	At   time.Duration
	Key  string
	TTL  time.Duration
	Seed uint64
}

// programsHost is where they run.
const programsHost = "programs"

// ratesPPM is by how much the clocks of the programs' machines run fast.
var ratesPPM = []int64{-500, 0, 500}

// dialPrograms returns a client on each machine.
func (w *world) dialPrograms() []*client.Client {
	var all []*client.Client
	for _, ppm := range ratesPPM {
		var addresses []string
		for _, name := range w.c.Names {
			addresses = append(addresses, cluster.Address(name))
		}
		c, err := client.Dial(addresses, client.WithInsecure(), client.WithDialer(w.c.Network.Host(programsHost).Dial),
			client.WithDialOptions(cluster.DialOptions()...),
			client.WithClock(func() time.Duration { return w.now() + w.now()/1_000_000*time.Duration(ppm) }))
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// effects is the world outside, in which owners act. It sees every act at the true time.
type effects struct {
	mu      sync.Mutex
	acts    map[string][]act
	done    map[string]done // by key, what was acknowledged as done
	actions int
}

func newEffects() *effects { return &effects{acts: map[string][]act{}, done: map[string]done{}} }

// act is one thing that an owner has done to a key.
type act struct {
	by    string
	fence uint64
	at    time.Duration
}

// done is an operation that is recorded.
type done struct {
	by   string
	body string
	at   time.Duration // the latest moment at which it became so
}

// acted notes an act and returns what is wrong with it: owners act one after the other, as
// their fences grow, and nobody acts on what is done.
func (e *effects) acted(key string, a act) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.actions++
	before := e.acts[key]
	e.acts[key] = append(before, a)
	if len(before) > 0 && before[len(before)-1].fence > a.fence {
		return fmt.Errorf("%s: %s acts with fence %d at %v, and %+v has acted already", key, a.by, a.fence, a.at, before[len(before)-1])
	}
	if d, ok := e.done[key]; ok && d.at < a.at {
		return fmt.Errorf("%s: %s acts with fence %d at %v on what is done: %+v", key, a.by, a.fence, a.at, d)
	}
	return nil
}

// finished notes what a call of Do returned, and returns what is wrong with it: all
// callers get one response.
func (e *effects) finished(key string, d done) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	first, ok := e.done[key]
	if !ok {
		e.done[key] = d
		return nil
	}
	if first.body != d.body {
		return fmt.Errorf("%s: %s got %q at %v, and %s had got %q at %v", key, d.by, d.body, d.at, first.by, first.body, first.at)
	}
	return nil
}

// errNothing is of a function that has done nothing.
var errNothing = errors.New("nothing was done")

// program runs an operation as the client's documentation says, until it is done or its
// time is up.
func (w *world) program(p ownerPlan, number int) {
	random := rand.New(rand.NewPCG(p.Seed, 0))
	name := fmt.Sprintf("program %d of %s", number, p.Key)
	principal, own := parts(p.Key)
	id := client.Identity{Principal: principal, Operation: operation, Key: own}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute+3*p.TTL)
	defer cancel()
	for ctx.Err() == nil {
		options := []client.DoOption{client.WithPendingTTL(p.TTL), client.WithRetention(keepsLong), client.WithOwner(name)}
		if random.IntN(2) == 0 {
			options = append(options, client.WithWait(p.TTL))
		}
		if random.IntN(3) == 0 {
			options = append(options, client.WithKeepAlive())
		}
		sent := w.now()
		doing, cancel := ctx, context.CancelFunc(func() {})
		if random.IntN(4) == 0 { // whoever asked for it goes away in the middle
			doing, cancel = context.WithTimeout(ctx, between(random, time.Millisecond, p.TTL))
		}
		result, err := w.programs[random.IntN(len(w.programs))].Do(doing, id, w.operate(name, p, random), options...)
		cancel()
		w.operations.Add(1)
		var failed *client.CommitError
		switch {
		case err == nil:
			if wrong := w.effects.finished(p.Key, done{by: name, body: string(result.Response.Body), at: w.now()}); wrong != nil {
				w.violation("%v (replayed %v, asked at %v)", wrong, result.Replayed, sent)
			}
			return
		case errors.As(err, &failed):
			return // it was done, and cannot be told apart from an owner that fell silent
		}
		time.Sleep(between(random, 50*time.Millisecond, p.TTL))
	}
}

// operate is the operation: some acts, each of them only while the context says so.
func (w *world) operate(name string, p ownerPlan, random *rand.Rand) func(context.Context, *client.Reservation) (client.Response, error) {
	acts, pause := 1+random.IntN(6), between(random, 10*time.Millisecond, p.TTL/3)
	fails := random.IntN(5) == 0
	return func(ctx context.Context, r *client.Reservation) (client.Response, error) {
		if fails {
			return client.Response{}, errNothing
		}
		for range acts {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			if err := ctx.Err(); err != nil {
				return client.Response{}, err
			}
			if wrong := w.effects.acted(p.Key, act{by: name, fence: r.Fence(), at: w.now()}); wrong != nil {
				w.violation("%v", wrong)
			}
		}
		return client.Response{Code: 200, Body: []byte(fmt.Sprintf("%s, fence %d", name, r.Fence()))}, nil
	}
}
