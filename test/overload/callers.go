package overload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/load"
)

const (
	// hasty is how soon a caller tries again that does not heed what it is told, which is
	// one in unheeding.
	hasty     = 50 * time.Millisecond
	unheeding = 8
	// shared is one key in how many that two callers are at.
	shared = 16
	// astray is one call in how many that goes to a node that may not lead its shard.
	astray = 8
)

// crowd is everybody who calls one cluster in a test, and what they were told.
type crowd struct {
	cluster *load.Cluster
	leaders []string // client addresses, by shard, as they were when it began
	log     *history.Recorder
	sample  uint64 // one key in how many is written down
	// patience is how long a caller works on a key, with all its tries.
	patience time.Duration

	keys  atomic.Int64 // handed out
	mu    sync.Mutex
	named map[string]int64 // refusals
	wrong []string         // refusals that nobody may be told, the first few
	done  []int64          // committed keys, by number, one in sample
}

func newCrowd(c *load.Cluster, leaders []string, sample uint64, patience time.Duration) *crowd {
	return &crowd{
		cluster: c, leaders: leaders, log: history.NewRecorder(), sample: sample, patience: patience, named: make(map[string]int64),
	}
}

// result is what some callers got done.
type result struct {
	took      time.Duration
	committed int64 // keys, in time
	replayed  int64 // keys that were found committed, by another of those that were at it
	gaveUp    int64
	latencies load.Latencies // of committed
}

func (r result) goodput() float64 { return float64(r.committed+r.replayed) / r.took.Seconds() }

func (r result) String() string {
	return fmt.Sprintf("%.0f/s (%d committed, %d replayed, %d gave up); %v",
		r.goodput(), r.committed, r.replayed, r.gaveUp, r.latencies)
}

// call has callers at work for a time.
func (c *crowd) call(ctx context.Context, callers int, length time.Duration) result {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		all  result
	)
	began := time.Now()
	for number := range callers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(began.UnixNano()), uint64(number))) //nolint:gosec // nothing is to be guessed
			var mine result
			for ctx.Err() == nil {
				c.turn(ctx, random, number, &mine)
			}
			mu.Lock()
			defer mu.Unlock()
			all.committed += mine.committed
			all.replayed += mine.replayed
			all.gaveUp += mine.gaveUp
			all.latencies = append(all.latencies, mine.latencies...)
		})
	}
	work.Wait()
	all.took = time.Since(began)
	return all
}

// turn is one key from the first try to the last. What is cut short by the end counts as
// nothing.
func (c *crowd) turn(ctx context.Context, random *rand.Rand, caller int, r *result) {
	number := c.keys.Add(1)
	if number%shared == 0 {
		number-- // somebody else's
	}
	began := time.Now()
	outcome := c.once(ctx, random, caller, number)
	switch {
	case outcome == committed:
		r.committed++
		r.latencies = append(r.latencies, time.Since(began))
	case outcome == replayed:
		r.replayed++
	case outcome == unfinished && time.Since(began) > c.patience*9/10:
		r.gaveUp++
	}
}

type outcome int

const (
	unfinished outcome = iota // not in time
	committed
	replayed
	busy // another is at it
)

// once reserves a key and commits it, within a caller's patience.
func (c *crowd) once(ctx context.Context, random *rand.Rand, caller int, number int64) outcome {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	id := c.identity(number)
	written := c.written(number)
	attempt := load.AttemptID()
	answer, err := c.reserve(ctx, random, caller, id, attempt, written)
	if err != nil {
		return unfinished
	}
	if answer.GetCommitted() != nil {
		return replayed
	}
	granted := answer.GetGranted()
	if granted == nil {
		return busy
	}
	response := &coordinatorv1.Response{Code: 201, ContentType: "text/plain", Body: fmt.Appendf(nil, "%x made %s", attempt, id.GetKey())}
	_, err = insist(ctx, c, random, caller, id, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.CommitResponse, error) {
		e := c.event(history.Committed, id)
		copy(e.Attempt[:], attempt)
		e.Fence, e.Response = granted.GetFence(), digest(response)
		answer, err := service.Commit(ctx, &coordinatorv1.CommitRequest{Identity: id, Token: granted.GetToken(), Response: response})
		e.Late, e.Repeated = answer.GetLate(), answer.GetRepeated()
		c.told(e, nil, err, written)
		return answer, err
	})
	if err != nil {
		return unfinished
	}
	if written {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.done = append(c.done, number)
	}
	return committed
}

// reserve asks for a key until there is an answer.
func (c *crowd) reserve(ctx context.Context, random *rand.Rand, caller int, id *coordinatorv1.Identity, attempt []byte, written bool,
) (*coordinatorv1.ReserveResponse, error) {
	return insist(ctx, c, random, caller, id, func(ctx context.Context, service coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReserveResponse, error) {
		e := c.event(history.Granted, id)
		copy(e.Attempt[:], attempt)
		e.TTL, e.Retention = admission.PendingTTLDefault, admission.RetentionDefault
		answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: id, AttemptId: attempt})
		c.told(e, answer, err, written)
		return answer, err
	})
}

// insist makes a call until it is answered, or its caller has no patience left.
func insist[A any](ctx context.Context, c *crowd, random *rand.Rand, caller int, id *coordinatorv1.Identity,
	call func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error),
) (A, error) {
	for {
		address := c.leaders[c.cluster.ShardOf(id)]
		if random.IntN(astray) == 0 {
			address = c.cluster.Nodes[random.IntN(len(c.cluster.Nodes))].Client
		}
		answer, err := call(ctx, c.cluster.Service(address, caller))
		f := reason.Of(err)
		if err == nil || ctx.Err() != nil || f.Code != codes.Unavailable && f.Code != codes.ResourceExhausted {
			return answer, err
		}
		pause := f.RetryAfter/2 + time.Duration(random.Int64N(int64(f.RetryAfter)+1))
		if caller%unheeding == 0 || pause == 0 {
			pause = hasty
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause):
		}
	}
}

// identity is the key of a number.
func (c *crowd) identity(number int64) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{
		Namespace: admission.DefaultNamespace, Principal: "account", Operation: "POST /v1/orders", Key: fmt.Sprintf("order-%d", number),
	}
}

// written says whether what is told of a key is written down.
func (c *crowd) written(number int64) bool {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, number)
	return h.Sum64()%c.sample == 0
}

// event begins an event of one delivery.
func (c *crowd) event(kind history.Kind, id *coordinatorv1.Identity) *history.Event {
	now := c.log.Now()
	return &history.Event{
		Kind: kind, Namespace: id.GetNamespace(), Principal: id.GetPrincipal(), Operation: id.GetOperation(), Key: id.GetKey(),
		Shard: c.cluster.ShardOf(id), Sent: now, LastSent: now, Tries: 1,
	}
}

// notAnswered are the refusals that may be, and whether the call was certainly not carried
// out.
var notAnswered = map[reason.Reason]bool{
	reason.Overloaded: true, reason.NoLeader: true,
	reason.OutcomeUnknown: false, reason.DeadlineExceeded: false, reason.Cancelled: false,
}

// told counts what a delivery came to, and writes it down.
func (c *crowd) told(e *history.Event, answer *coordinatorv1.ReserveResponse, err error, write bool) {
	e.Answered = c.log.Now()
	if err != nil {
		c.refused(e, err)
	}
	if !write {
		return
	}
	if err == nil && e.Kind == history.Granted {
		toldReserve(e, answer)
	}
	c.log.Add(*e)
}

// refused counts a refusal and makes the event one.
func (c *crowd) refused(e *history.Event, err error) {
	f := reason.Of(err)
	never, known := notAnswered[f.Reason]
	name := string(f.Reason)
	if !f.Info {
		name = "its own patience: " + f.Code.String()
		// gRPC's own word for it has no reason of ours; nothing else may be without one.
		known = known && (f.Code == codes.DeadlineExceeded || f.Code == codes.Canceled)
	}
	switch {
	case never:
		e.Kind, e.Call, e.Reason = history.Refused, e.Kind, string(f.Reason)
	default:
		e.Unknown = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named[name]++
	if !known && len(c.wrong) < 20 {
		c.wrong = append(c.wrong, fmt.Sprintf("%v: %v", *e, err))
	}
}

// toldReserve fills in what a Reserve was answered.
func toldReserve(e *history.Event, answer *coordinatorv1.ReserveResponse) {
	switch outcome := answer.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Granted:
		g := outcome.Granted
		e.Fence, e.Number, e.Repeated, e.PreviousFence = g.GetFence(), g.GetAttempt(), g.GetRepeated(), g.GetPrevious().GetFence()
		window := g.GetWaited().AsDuration() + g.GetRemaining().AsDuration()
		e.Deadline = e.Sent + window/1000*999
	case *coordinatorv1.ReserveResponse_Pending:
		e.Kind, e.Number, e.Holder = history.Pending, outcome.Pending.GetAttempt(), outcome.Pending.GetOwner()
	case *coordinatorv1.ReserveResponse_Committed:
		e.Kind, e.Response = history.Replayed, digest(outcome.Committed.GetResponse())
	}
}

// digest stands for a whole response.
func digest(response *coordinatorv1.Response) history.Digest {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		panic(err) // it came from a message
	}
	return sha256.Sum256(encoded)
}
