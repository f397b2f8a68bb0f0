package scale

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/store"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

// The bounds of the promise.
const (
	servingWithin    = 10 * time.Second // from the start of the process
	indexBytesMax    = 64               // a record
	reserveP99Max    = 100 * time.Millisecond
	probeEvery       = 20 * time.Millisecond
	shards           = 3
	expiredAllWithin = 2 * time.Minute
)

// size is how much is tried.
type size struct {
	full     bool // judge times, too
	records  int  // that stay
	expiring int  // that end in the same second
	callers  int
}

func sizes() size {
	if os.Getenv("COORDINATOR_SCALE") != "" {
		return size{full: true, records: 1_000_000, expiring: 200_000, callers: 256}
	}
	return size{records: 20_000, expiring: 10_000, callers: 64}
}

// TestOneNode fills a node, restarts it, and has many of its records expire at once.
func TestOneNode(t *testing.T) {
	size := sizes()
	c := load.Start(t, programs(t), 1, shards)
	n := c.Nodes[0]
	empty := restart(t, c, "empty", stop)

	perSecond := fill(t, c, size.callers, size.records)
	full := restart(t, c, "warm, after SIGTERM", stop)
	killed := restart(t, c, "warm, after SIGKILL", kill)
	forgotten := restart(t, c, "cold: the files are not in the page cache", func(t testing.TB, n *process.Node) {
		kill(t, n)
		forget(t, n.Dir)
	})
	perRecord := float64(full.memory.Anonymous-empty.memory.Anonymous) / float64(size.records)
	t.Logf("anonymous memory beyond that of an empty node: %.0f bytes a record", perRecord)
	if size.full {
		for _, r := range []restarted{full, killed, forgotten} {
			if r.serving > servingWithin {
				t.Errorf("%s: serving %v after the start, it should be within %v", r.name, r.serving, servingWithin)
			}
		}
	}

	expire(t, c, size, perSecond)

	stop(t, n)
	index := indexBytes(t, n, size.records+size.expiring)
	t.Logf("index: %.1f bytes a record", index)
	if index > indexBytesMax {
		t.Errorf("the index takes %.1f bytes a record, it should be at most %d", index, indexBytesMax)
	}
}

// TestThreeNodes has many records of a cluster expire at once: whatever keeps a
// leader busy would show in its followers, which call an election.
func TestThreeNodes(t *testing.T) {
	c := load.Start(t, programs(t), 3, shards)
	size := sizes()
	expire(t, c, size, fill(t, c, size.callers, size.records/20))
}

// fill makes records that stay, and returns how many it made in a second.
func fill(t *testing.T, c *load.Cluster, callers, records int) (perSecond float64) {
	t.Helper()
	began := time.Now()
	c.Fill(t, callers, records, staying)
	took := time.Since(began)
	perSecond = float64(records) / took.Seconds()
	t.Logf("%d records in %v, %.0f a second", records, took.Round(time.Millisecond), perSecond)
	return perSecond
}

func programs(t *testing.T) process.Programs {
	t.Helper()
	programs, err := process.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return programs
}

func stop(t testing.TB, n *process.Node) {
	t.Helper()
	if code, err := n.Stop(); err != nil || code != 0 {
		t.Fatalf("%s stopped with %d: %v", n.Name, code, err)
	}
}

func kill(t testing.TB, n *process.Node) {
	t.Helper()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
}

// staying is the i-th of the records that stay.
func staying(i int) *coordinatorv1.ReserveRequest {
	return &coordinatorv1.ReserveRequest{
		Identity: &coordinatorv1.Identity{
			Namespace: fmt.Sprintf("tenant-%d", i%100),
			Principal: "token-7f3a",
			Operation: "POST /v1/orders",
			Key:       fmt.Sprintf("stays-%d", i),
		},
		Fingerprint: []byte("0123456789abcdef0123456789abcdef"),
		PendingTtl:  durationpb.New(24 * time.Hour),
	}
}

type restarted struct {
	name    string
	serving time.Duration // until every shard had granted a Reserve
	memory  load.Memory
}

// restart ends the only node, starts it, and says how long it took to serve.
func restart(t *testing.T, c *load.Cluster, name string, end func(testing.TB, *process.Node)) restarted {
	t.Helper()
	n := c.Nodes[0]
	end(t, n)
	began := time.Now()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	served := c.AwaitServing(t, time.Minute)
	r := restarted{name: name, serving: slices.MaxFunc(served, time.Time.Compare).Sub(began)}
	first := slices.MinFunc(served, time.Time.Compare).Sub(began)
	memory, err := load.ReadMemory(n.PID())
	if err != nil {
		t.Logf("memory is not known here: %v", err)
	}
	r.memory = memory
	t.Logf("restart (%s): first Reserve after %v, all shards after %v; resident: %.1f MiB anonymous, %.1f MiB mapped files",
		name, first.Round(time.Millisecond), r.serving.Round(time.Millisecond), mebibytes(memory.Anonymous), mebibytes(memory.Mapped))
	return r
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// expire makes reservations that all end at one moment, and watches what the cluster
// does from before it until the last is written down. Half of them are kept for a
// day, half for a second only, so that a second wave follows.
func expire(t *testing.T, c *load.Cluster, size size, perSecond float64) {
	t.Helper()
	began := time.Now()
	deadline := began.Add(5*time.Second + time.Duration(1.5*float64(size.expiring)/perSecond*float64(time.Second)))
	request := func(i int) *coordinatorv1.ReserveRequest {
		retention := 24 * time.Hour
		if i%2 == 0 {
			retention = time.Second
		}
		return &coordinatorv1.ReserveRequest{
			Identity:   &coordinatorv1.Identity{Namespace: "expiring", Operation: "POST /v1/orders", Key: fmt.Sprintf("expires-%d", i)},
			PendingTtl: durationpb.New(max(100*time.Millisecond, time.Until(deadline))),
			Retention:  durationpb.New(retention),
		}
	}
	c.Fill(t, size.callers, size.expiring, request)
	left := time.Until(deadline)
	if left <= 0 {
		t.Fatalf("making %d reservations took %v: they do not expire in the same second", size.expiring, time.Since(began))
	}
	t.Logf("%d reservations in %v, to expire %v later", size.expiring, time.Since(began).Round(time.Millisecond), left.Round(time.Millisecond))
	// What a Reserve takes at this moment without anything expiring, for comparison.
	const calm = 3 * time.Second
	time.Sleep(max(0, time.Until(deadline)-calm))
	before, terms := ended(t, c), c.Terms(t)
	calmly := watch(t, c)
	time.Sleep(max(0, time.Until(deadline)))
	before99 := calmly.end(t, fmt.Sprintf("in the %v before", calm)).Quantile(0.99)

	meanwhile := watch(t, c)
	want := before + uint64(size.expiring)
	var last time.Duration
	for end := deadline.Add(expiredAllWithin); ; time.Sleep(100 * time.Millisecond) {
		now := time.Now()
		lapsed := ended(t, c)
		if lapsed >= want && now.After(deadline.Add(3*time.Second)) {
			if last == 0 {
				last = now.Sub(deadline)
			}
			break
		}
		if lapsed >= want && last == 0 {
			last = now.Sub(deadline)
		}
		if now.After(end) {
			t.Errorf("%d of %d records had expired %v after their deadline", lapsed-before, size.expiring, expiredAllWithin)
			break
		}
	}
	t.Logf("all written down within %v of the deadline", last.Round(10*time.Millisecond))
	latencies := meanwhile.end(t, "meanwhile")
	after := c.Terms(t)
	t.Logf("terms before %v, after %v", terms, after)
	if !slices.Equal(terms, after) {
		t.Errorf("there was an election: terms were %v and are %v", terms, after)
	}
	switch p99 := latencies.Quantile(0.99); {
	case !size.full || p99 < reserveP99Max:
	case before99 > reserveP99Max/4:
		t.Logf("p99 of Reserve is not judged: it was %v before anything expired, something else keeps this machine busy", before99)
	default:
		t.Errorf("p99 of Reserve was %v, it should be below %v", p99, reserveP99Max)
	}
}

// watched is what is seen from outside over some time: what a Reserve takes, and what
// a bare sync of the disk does.
type watched struct {
	probe *load.Probe
	stop  chan struct{}
	syncs chan load.Latencies
}

func watch(t *testing.T, c *load.Cluster) *watched {
	t.Helper()
	disk := load.NewDisk(t, true)
	w := &watched{probe: c.StartProbe(t, probeEvery), stop: make(chan struct{}), syncs: make(chan load.Latencies)}
	go func() {
		var syncs load.Latencies
		for {
			select {
			case <-w.stop:
				w.syncs <- syncs
				return
			case <-time.After(probeEvery):
				took, err := disk.Write()
				if err != nil {
					t.Error(err)
				}
				syncs = append(syncs, took)
			}
		}
	}()
	return w
}

// end returns what the calls of Reserve took. All must have been answered.
func (w *watched) end(t *testing.T, when string) load.Latencies {
	t.Helper()
	close(w.stop)
	syncs := <-w.syncs
	latencies, failed := w.probe.Stop()
	t.Logf("%s: Reserve %v, %d failed; bare sync %v", when, latencies, len(failed), syncs)
	if len(failed) > 0 {
		t.Errorf("%s: %d calls of Reserve failed, the first with: %v", when, len(failed), failed[0])
	}
	return latencies
}

// ended counts the records whose time is over, as written down.
func ended(t *testing.T, c *load.Cluster) (count uint64) {
	t.Helper()
	for _, shard := range c.List(t) {
		count += shard.GetRecords().GetLapsed() + shard.GetRecords().GetTombstones()
	}
	return count
}

// indexBytes opens the state files of a node that has ended, and returns what their
// indexes take for each record.
func indexBytes(t *testing.T, n *process.Node, records int) float64 {
	t.Helper()
	total, found := int64(0), uint64(0)
	for i := range shards {
		s, err := openState(n, i)
		if err != nil {
			t.Fatal(err)
		}
		stats := s.Stats()
		total += stats.IndexBytes
		for _, count := range stats.Records {
			found += count
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if found < uint64(records) {
		t.Errorf("the state files hold %d records, it should be at least %d", found, records)
	}
	return float64(total) / float64(found)
}

func shardDir(n *process.Node, shard int) string {
	return filepath.Join(n.Dir, "shards", fmt.Sprintf("%04d", shard))
}

func statePath(n *process.Node, shard int) string {
	return filepath.Join(shardDir(n, shard), "state.db")
}

// openState opens a state file of a node that has ended.
func openState(n *process.Node, shard int) (*store.Store, error) {
	text, err := os.ReadFile(filepath.Join(n.Dir, "node.json"))
	if err != nil {
		return nil, err
	}
	var node struct {
		ClusterID string `json:"cluster_id"`
	}
	if err := json.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	return store.Open(store.Config{
		Path:           statePath(n, shard),
		Identification: store.Identification{ClusterID: node.ClusterID, Shard: shard, Shards: shards},
		Fatal:          func(error) {}, // whoever calls next is told
	})
}
