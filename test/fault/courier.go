package fault

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/test/history"
)

// courier carries the calls of all clients of one round, and writes each delivery down.
// What it does to them on the way is drawn for each by chance.
type courier struct {
	log    *history.Recorder
	shards int
	seen   *seen
	// again are the connections on which copies are sent: to any node.
	again []*grpc.ClientConn

	unkind  atomic.Pointer[unkindness]
	leaders []atomic.Pointer[string] // client addresses, by shard

	ctx     context.Context // of copies
	cancel  context.CancelFunc
	hurry   chan struct{} // closed: copies that are to be sent later are sent now
	copies  sync.WaitGroup
	pending atomic.Int64 // copies that are outstanding

	mu     sync.Mutex
	closed bool
	tokens map[string]owner
}

// unkindness is what may happen to a delivery, in thousandths.
type unkindness struct {
	slow, lost, again int
	slowMax           time.Duration // the longest that one is held back before it is sent
	laterMax          time.Duration // the latest that a copy is sent
}

// usual is the weather between faults of deliveries: a few of everything.
func usual() *unkindness {
	return &unkindness{slow: 10, lost: 5, again: 20, slowMax: 300 * time.Millisecond, laterMax: 6 * time.Second}
}

// rough is what the fault of deliveries makes of it.
func rough() *unkindness {
	return &unkindness{slow: 200, lost: 100, again: 400, slowMax: 1500 * time.Millisecond, laterMax: 12 * time.Second}
}

// copiesMax bounds the copies that are outstanding.
const copiesMax = 4000

// copyWithin bounds the delivery of a copy.
const copyWithin = 10 * time.Second

func newCourier(log *history.Recorder, shards int, seen *seen, again []*grpc.ClientConn) *courier {
	ctx, cancel := context.WithCancel(context.Background())
	c := &courier{
		log: log, shards: shards, seen: seen, again: again,
		ctx: ctx, cancel: cancel, hurry: make(chan struct{}),
		tokens: make(map[string]owner), leaders: make([]atomic.Pointer[string], shards),
	}
	c.unkind.Store(usual())
	return c
}

// close sends what is still to be sent, and waits until everything is answered.
func (c *courier) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.hurry)
	c.copies.Wait()
	c.cancel()
}

func (c *courier) granted(token string, to owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[token] = to
}

func (c *courier) owner(token string) owner {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens[token]
}

// intercept is a [grpc.UnaryClientInterceptor].
func (c *courier) intercept(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	u := c.unkind.Load()
	if rand.IntN(1000) < u.slow {
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(u.slowMax)))):
		case <-ctx.Done():
			// It never left.
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if rand.IntN(1000) < u.again {
		c.later(method, request, reply, time.Duration(rand.Int64N(int64(u.laterMax))))
	}
	var header metadata.MD
	sent := c.log.Now()
	err := invoke(ctx, method, request, reply, cc, append(options, grpc.Header(&header))...)
	c.record(request, reply, sent, err)
	c.learn(request, header)
	if err == nil && rand.IntN(1000) < u.lost {
		return status.Error(codes.Unavailable, "the answer was lost on the way")
	}
	return err
}

// learn notes who leads the shard of a call, as its answer says.
func (c *courier) learn(request any, header metadata.MD) {
	asked, ok := request.(identified)
	if told := header.Get(rpc.LeaderKey); ok && len(told) > 0 {
		c.leaders[shardOf(asked.GetIdentity(), c.shards)].Store(&told[0])
	}
}

// leader returns the client address of who was last said to lead the shard; "" if nobody
// was.
func (c *courier) leader(shard int) string {
	if address := c.leaders[shard].Load(); address != nil {
		return *address
	}
	return ""
}

// record writes a delivery down.
func (c *courier) record(request, reply any, sent time.Duration, err error) {
	asked, ok := request.(identified)
	if !ok {
		return
	}
	ruling, name := classify(err)
	id := asked.GetIdentity()
	shard := shardOf(id, c.shards)
	c.seen.saw(shard, ruling, name)
	if ruling == never || ruling == wrong {
		return
	}
	e := history.Event{
		Namespace: id.GetNamespace(), Principal: id.GetPrincipal(), Operation: id.GetOperation(), Key: id.GetKey(),
		Shard: shard, Sent: sent, Answered: c.log.Now(),
	}
	if describe(&e, c, request, reply, err) {
		c.log.Add(e)
	}
}

// later sends a copy of a call to some node after a while.
func (c *courier) later(method string, request, reply any, after time.Duration) {
	message, ok := request.(proto.Message)
	answer, isMessage := reply.(proto.Message)
	if !ok || !isMessage || len(c.again) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.pending.Add(1) > copiesMax {
		return
	}
	to := c.again[rand.IntN(len(c.again))]
	copied, into := proto.Clone(message), answer.ProtoReflect().New().Interface()
	c.copies.Go(func() {
		defer c.pending.Add(-1)
		select {
		case <-time.After(after):
		case <-c.hurry:
		}
		ctx, cancel := context.WithTimeout(c.ctx, copyWithin)
		defer cancel()
		sent := c.log.Now()
		err := to.Invoke(ctx, method, copied, into)
		c.seen.copies.Add(1)
		c.record(copied, into, sent, err)
	})
}
