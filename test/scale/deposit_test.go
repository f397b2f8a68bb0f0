package scale

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/store"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

// deposit is many records that a cluster gets while it is down. Through the API five
// million would take half an hour. They come to be as they do there: each command is
// decided by the rules and applied to the first node's state, on its shard's clock. Then
// every node has a copy of that state, installed as one is that comes from a leader. What
// is missing is the log of how they came to be, which a cluster cuts off in any case.
type deposit struct {
	records int
	// steady draws deadlines as they lie in a cluster that has been taking such records
	// for more than a day. Otherwise all records have been granted, or committed, at one
	// moment: then a tenth of them end in the second minute.
	steady bool

	response admission.Response // of the committed ones, as a node has stored it
	wall     int64
}

const (
	windowMin = time.Minute
	windowMax = 24 * time.Hour
	// pendingEvery is that of so many records one is pending; the others are committed.
	pendingEvery = 10
	// depositAhead is by how many entries the state is made to be ahead of any log, so
	// that a node empties its log of before, as it does after a state was installed.
	depositAhead = 1 << 20
	// perUpdate is how many records an update of the state makes.
	perUpdate = 1000
)

// depositBody is the body of the responses.
var depositBody = []byte(strings.Repeat("response--", 10))

// deposited is what becomes of the i-th record.
type deposited struct {
	reserve admission.Reserve
	pending bool
	window  time.Duration // from the deposit to its deadline
}

// record returns the i-th record, the same each time.
func (d *deposit) record(i int) deposited {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	window := time.Duration(float64(windowMin) * math.Pow(float64(windowMax/windowMin), random.Float64()))
	if d.steady {
		// Of windows whose logarithm is uniform those that are met alive are uniform, since
		// the longer one is the more likely it is met; and so is what has passed of one.
		whole := float64(windowMin) + random.Float64()*float64(windowMax-windowMin)
		window = max(admission.RetentionMin, time.Duration(random.Float64()*whole))
	}
	made := deposited{pending: i%pendingEvery == 0, window: window, reserve: admission.Reserve{
		Identity: admission.Identity{
			Namespace: fmt.Sprintf("tenant-%d", i%100), Principal: "token-7f3a", Operation: "POST /v1/orders",
			Key: fmt.Sprintf("order-%020d", i), // as long as the keys of the turns
		},
		PendingTTL: admission.PendingTTLDefault, Retention: admission.RetentionDefault,
		WantedUntil: admission.Never,
	}}
	binary.BigEndian.PutUint64(made.reserve.Attempt[:], random.Uint64())
	binary.BigEndian.PutUint64(made.reserve.Attempt[8:], random.Uint64())
	if made.pending {
		made.reserve.PendingTTL = window
	}
	return made
}

// due counts the records whose deadline is over that long after the deposit, the time
// without leaders not counted.
func (d *deposit) due(after time.Duration) (count int) {
	for i := range d.records {
		if d.record(i).window <= after {
			count++
		}
	}
	return count
}

// put stops the cluster's nodes and gives them the records.
func (d *deposit) put(t *testing.T, c *load.Cluster) {
	t.Helper()
	sample := c.KeyOf(0, "sample") // the first node leads shard 0, and so has applied it
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	leader := c.Service(c.LeaderAddresses(t)[0], 0)
	answer, err := leader.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: sample, AttemptId: load.AttemptID()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leader.Commit(ctx, &coordinatorv1.CommitRequest{
		Identity: sample, Token: answer.GetGranted().GetToken(), Response: &coordinatorv1.Response{Code: 201, Body: depositBody},
	}); err != nil {
		t.Fatal(err)
	}
	putDown(t, c)
	d.wall = time.Now().UnixNano()
	d.response = storedResponse(t, c.Nodes[0], admission.Identity{Namespace: admission.DefaultNamespace, Key: sample.GetKey()})

	// The copies of one shard are made at a time: so they need less of the disk.
	var installing sync.Mutex
	var work sync.WaitGroup
	failures := make([]error, shards)
	for shard := range shards {
		work.Go(func() { failures[shard] = d.putShard(c, shard, &installing) })
	}
	work.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
}

// putDown ends the nodes so that the first has made durable what it has applied, and
// that no other has been in a later term: none has a majority any more when it stops.
func putDown(t *testing.T, c *load.Cluster) {
	t.Helper()
	for _, n := range c.Nodes[1:] {
		kill(t, n)
	}
	stop(t, c.Nodes[0])
}

// putShard makes the shard's records in the first node's state, has that node install a
// copy of it, and gives the others what it has then.
func (d *deposit) putShard(c *load.Cluster, shard int, installing *sync.Mutex) error {
	first := c.Nodes[0]
	made, err := openState(first, shard)
	if err != nil {
		return err
	}
	if err := d.fill(made, shard); err != nil {
		return errors.Join(err, made.Close())
	}
	installing.Lock()
	defer installing.Unlock()
	if err := errors.Join(installCopy(made, filepath.Join(shardDir(first, shard), "arrived")), made.Close()); err != nil {
		return err
	}
	for _, n := range c.Nodes[1:] {
		if err := copyFile(statePath(first, shard), statePath(n, shard)); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the shard's records.
func (d *deposit) fill(s *store.Store, shard int) error {
	at := s.Applied()
	at.Index += depositAhead
	for next := 0; next < d.records; at.Index++ {
		_, err := s.Update(at, func(tx *store.Tx) error {
			instant := admission.Instant{Now: tx.Clock().Now, WallNanos: d.wall}
			for made := 0; next < d.records && made < perUpdate; next++ {
				record := d.record(next)
				if record.reserve.Identity.Shard(shards) != shard {
					continue
				}
				made++
				if err := d.make(tx, instant, record); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *deposit) make(tx *store.Tx, at admission.Instant, record deposited) error {
	granted, err := decide(tx, at, record.reserve)
	if err != nil || record.pending {
		return err
	}
	_, err = decide(tx, at, admission.Commit{
		Identity: record.reserve.Identity, Token: granted.Token, Response: d.response, Retention: record.window,
	})
	return err
}

// decide has a command decided and applied, as the log has it done.
func decide(tx *store.Tx, at admission.Instant, command admission.Command) (admission.Answer, error) {
	view, err := tx.Admission(command.On())
	if err != nil {
		return admission.Answer{}, err
	}
	decision := admission.Decide(view, at, command)
	if decision.Answer.Refusal != admission.None {
		return admission.Answer{}, fmt.Errorf("key %s was refused: %v", command.On().Key, decision.Answer.Refusal)
	}
	return decision.Answer, tx.Apply(decision, view.Record)
}

// installCopy replaces a state by a copy of it, which marks it as installed: so it may be
// ahead of the log.
func installCopy(s *store.Store, path string) error {
	state, err := s.Copy()
	if err != nil {
		return err
	}
	if err := errors.Join(writeFile(path, state), state.Close()); err != nil {
		return err
	}
	return s.Install(path)
}

func copyFile(from, to string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	return errors.Join(writeFile(to, file), file.Close())
}

// writeFile makes a file durable: else the first flushes would wait for all of it.
func writeFile(path string, content io.Reader) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Sync(), file.Close())
}

// storedResponse reads a committed response from the state of a node that is down.
func storedResponse(t *testing.T, n *process.Node, id admission.Identity) (response admission.Response) {
	t.Helper()
	s, err := openState(n, id.Shard(shards))
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(func(tx *store.Tx) error {
		view, err := tx.Admission(id)
		if err != nil {
			return err
		}
		if view.Record == nil || view.Record.State != admission.StateCommitted {
			return fmt.Errorf("%s has not committed key %s", n.Name, id.Key)
		}
		response = view.Record.Response
		response.Stored, err = tx.Response(view.Record)
		return err
	})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return response
}

// check sees that every node has all records, in the same state, and that a sample of
// them is answered with what it should be. It waits for the replicas to be at the same
// entry, and must be called soon after the nodes were started. Those that have ended since
// then need not be there.
func (d *deposit) check(t *testing.T, c *load.Cluster, started time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	total := uint64(0)
	for shard := range shards {
		total += agreed(ctx, t, c, shard)
	}
	if want := d.records - d.due(time.Since(started)); total < uint64(want) {
		t.Errorf("the cluster has %d records, it should have at least %d", total, want)
	}
	const sampled = 300
	leaders := c.LeaderAddresses(t)
	for i := 0; i < d.records; i += max(1, d.records/sampled) {
		record := d.record(i)
		if record.window < 10*time.Minute {
			continue // it may end at any moment
		}
		id := record.reserve.Identity
		answer, err := c.Service(leaders[id.Shard(shards)], i).Get(ctx, &coordinatorv1.GetRequest{
			Identity: &coordinatorv1.Identity{
				Namespace: id.Namespace, Principal: id.Principal, Operation: id.Operation, Key: id.Key,
			},
			IncludeBody: true,
		})
		if err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		want, body := coordinatorv1.State_STATE_COMMITTED, string(depositBody)
		if record.pending {
			want, body = coordinatorv1.State_STATE_PENDING, ""
		}
		if got := answer.GetRecord(); got.GetState() != want || string(got.GetResponse().GetBody()) != body {
			t.Fatalf("record %d is %v, it should be %v with %d bytes of response", i, got, want, len(body))
		}
	}
}

// agreed waits until all replicas of a shard say that they have the same state at the
// same entry, and returns how many records that has.
func agreed(ctx context.Context, t *testing.T, c *load.Cluster, shard int) uint64 {
	t.Helper()
	for {
		var said []*coordinatorv1.Shard
		for _, n := range c.Nodes {
			answer, err := coordinatorv1.NewAdminServiceClient(n.Conn()).GetShard(ctx, &coordinatorv1.GetShardRequest{Shard: uint32(shard), Local: true})
			if err != nil {
				t.Fatalf("shard %d, %s: %v", shard, n.Name, err)
			}
			said = append(said, answer.GetShard())
		}
		same := true
		for _, s := range said {
			same = same && s.GetAppliedIndex() == said[0].GetAppliedIndex()
		}
		if !same {
			time.Sleep(probeEvery)
			continue
		}
		for i, s := range said {
			if s.GetStateDigest() != said[0].GetStateDigest() {
				t.Errorf("shard %d: %s has another state than %s", shard, c.Nodes[i].Name, c.Nodes[0].Name)
			}
		}
		return recordsOf(said[0])
	}
}

// recordsOf counts a shard's records, tombstones left out.
func recordsOf(shard *coordinatorv1.Shard) uint64 {
	r := shard.GetRecords()
	return r.GetPending() + r.GetLapsed() + r.GetInDoubt() + r.GetCommitted() + r.GetReleased()
}
