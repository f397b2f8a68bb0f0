package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

const (
	payloads      = 91
	deliveredEach = 3
	shardsDefault = 3
)

// webhook is one payload as it is delivered.
type webhook struct {
	call
	response *coordinatorv1.Response // what its owner answers; the payload is its body
}

func webhooks(t *testing.T) []webhook {
	t.Helper()
	content, err := os.ReadFile("testdata/github.ndjson")
	must(t, err)
	var all []webhook
	seen := make(map[string]bool)
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Event, Source string
			Payload       json.RawMessage
		}
		must(t, json.Unmarshal(lines.Bytes(), &line))
		sum := sha256.Sum256(line.Payload)
		key := hex.EncodeToString(sum[:])
		if seen[key] {
			t.Fatalf("two payloads have the hash %s", key)
		}
		seen[key] = true
		all = append(all, webhook{
			call: call{key: key, operation: line.Event, fingerprint: sum[:], wait: 2 * time.Second},
			response: &coordinatorv1.Response{
				Code: 202, ContentType: "application/json", Body: line.Payload,
				Headers: []*coordinatorv1.Header{{Name: "X-GitHub-Event", Value: line.Event}, {Name: "X-Source", Value: line.Source}, {Name: "X-Source", Value: ""}},
			},
		})
	}
	must(t, lines.Err())
	if len(all) != payloads {
		t.Fatalf("%d payloads, not %d", len(all), payloads)
	}
	return all
}

// deliveries is the work of one test and what has come of it.
type deliveries struct {
	*caller
	hooks []webhook
	queue chan int // indices into hooks

	started  atomic.Int64
	reached  map[int64]chan struct{} // closed when so many have been started
	granted  []atomic.Int64
	replayed []atomic.Int64
}

func newDeliveries(t *testing.T, c *process.Cluster, marks ...int64) *deliveries {
	t.Helper()
	d := &deliveries{
		caller: &caller{nodes: c.Nodes, shards: shardsDefault, log: history.NewRecorder(), try: 5 * time.Second, within: time.Minute},
		hooks:  webhooks(t), reached: make(map[int64]chan struct{}),
		granted: make([]atomic.Int64, payloads), replayed: make([]atomic.Int64, payloads),
	}
	for _, mark := range marks {
		d.reached[mark] = make(chan struct{})
	}
	var order []int
	for range deliveredEach {
		for i := range d.hooks {
			order = append(order, i)
		}
	}
	random := drawFrom(newSeed(t), 0)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	d.queue = make(chan int, len(order))
	for _, i := range order {
		d.queue <- i
	}
	close(d.queue)
	return d
}

// run delivers everything from 8 workers.
func (d *deliveries) run(t *testing.T) *sync.WaitGroup {
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range d.queue {
				started := d.started.Add(1)
				if mark := d.reached[started]; mark != nil {
					close(mark)
				}
				if err := d.deliver(t.Context(), int(started), i); err != nil {
					t.Errorf("delivery %d, of payload %d: %v", started, i, err)
				}
			}
		})
	}
	return &workers
}

// deliver is what the receiver of a webhook does with one delivery: it acts on it if it
// is admitted, and otherwise answers what was answered before.
func (d *deliveries) deliver(ctx context.Context, start, i int) error {
	hook := &d.hooks[i]
	for deadline := time.Now().Add(2 * d.within); time.Now().Before(deadline); {
		answer, granted, err := d.reserve(ctx, start, hook.call)
		switch {
		case reasonOf(err) == "ATTEMPT_ENDED":
			continue // it is still wanted: another attempt
		case err != nil:
			return err
		case granted != nil:
			d.granted[i].Add(1)
			return d.commit(ctx, start+1, granted, hook.response)
		case answer.GetCommitted() != nil:
			d.replayed[i].Add(1)
			if replay := answer.GetCommitted().GetResponse(); !proto.Equal(replay, hook.response) || !bytes.Equal(replay.GetBody(), hook.response.GetBody()) {
				return fmt.Errorf("the replay of %s is not what was committed", hook.key)
			}
			return nil
		case answer.GetPending() != nil:
			time.Sleep(min(answer.GetPending().GetRetryAfter().AsDuration(), 100*time.Millisecond))
		default:
			return fmt.Errorf("an outcome that cannot be: %v", answer)
		}
	}
	return fmt.Errorf("%s is still pending", hook.key)
}

// check is what must be true in the end.
func (d *deliveries) check(t *testing.T, c *process.Cluster) {
	t.Helper()
	for i := range d.hooks {
		granted, replayed := d.granted[i].Load(), d.replayed[i].Load()
		if granted != 1 || replayed != deliveredEach-1 {
			t.Errorf("payload %d was granted %d times and replayed %d times", i, granted, replayed)
		}
	}
	verify(t, d.log)
	must(t, c.Serving(time.Minute))
	for _, n := range c.Nodes {
		result, err := c.Programs.Control(time.Minute, []string{n.Client}, "records", "--state", "committed", "-o", "json")
		must(t, err)
		lines := strings.Split(strings.TrimSpace(result.Stdout), "\n")
		if result.Code != 0 || len(lines) != payloads {
			t.Errorf("coordctl records at %s: %d records, exit code %d, %s", n.Name, len(lines), result.Code, result.Stderr)
		}
		keys := make(map[string]bool)
		for _, line := range lines {
			var record struct{ Identity struct{ Key string } }
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			keys[record.Identity.Key] = true
		}
		for i := range d.hooks {
			if !keys[d.hooks[i].key] {
				t.Errorf("coordctl records at %s does not have payload %d", n.Name, i)
			}
		}
	}
}

// crash kills a node in the middle of the deliveries, once the mark is reached.
func (d *deliveries) crash(t *testing.T, mark int64, which func() (*process.Node, error), down time.Duration) {
	t.Helper()
	select {
	case <-d.reached[mark]:
	case <-time.After(2 * time.Minute):
		t.Fatalf("not even %d deliveries were started", mark)
	}
	n, err := which()
	must(t, err)
	must(t, n.Kill())
	inFlight := d.inFlight.Load()
	t.Logf("killed %s when %d of %d deliveries were started and %d calls were in flight", n.Name, d.started.Load(), deliveredEach*payloads, inFlight)
	if inFlight == 0 {
		t.Error("the kill met no call")
	}
	time.Sleep(down)
	must(t, n.Start())
}

// TestWebhooksOnThree: real deliveries, each three times, through all nodes, while the
// leader of most shards is killed twice.
func TestWebhooksOnThree(t *testing.T) {
	c := process.Start(t, programs, 3)
	d := newDeliveries(t, c, 80, 170)
	began := time.Now()
	workers := d.run(t)
	leader := func() (*process.Node, error) { return c.LeaderOfMost(30 * time.Second) }
	d.crash(t, 80, leader, 500*time.Millisecond)
	d.crash(t, 170, leader, 0)
	workers.Wait()
	t.Logf("%d deliveries in %v with %d retries", d.started.Load(), time.Since(began), d.retries.Load())
	d.check(t, c)
}

// TestWebhooksOnOne: the same on a single node, killed and restarted in the middle.
func TestWebhooksOnOne(t *testing.T) {
	c := process.Start(t, programs, 1)
	d := newDeliveries(t, c, 80, 170)
	began := time.Now()
	workers := d.run(t)
	only := func() (*process.Node, error) { return c.Nodes[0], nil }
	d.crash(t, 80, only, 300*time.Millisecond)
	d.crash(t, 170, only, 0)
	workers.Wait()
	t.Logf("%d deliveries in %v with %d retries", d.started.Load(), time.Since(began), d.retries.Load())
	d.check(t, c)
}
