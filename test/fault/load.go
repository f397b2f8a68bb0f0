package fault

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
)

// load is many callers of one round. Each does what the contract asks of callers: an
// attempt id or token is kept over the retries of its call, a call is sent again, to one
// node after another, until it is answered with the truth, and an owner that has sent
// Commit or Release starts nothing more.
type load struct {
	*courier
	round     int
	endpoints []string
	nodes     [][]service // by node, several connections each
	conns     []*grpc.ClientConn
	clients   []*client.Client
	began     time.Time

	patience time.Duration // how long a call is tried

	keys   atomic.Int64 // how many cold ones there are
	calls  atomic.Int64 // with all their retries, of raw callers
	gaveUp atomic.Int64

	stop  context.CancelFunc
	ended sync.WaitGroup
}

// service is everything that a node answers.
type service struct {
	coordinatorv1.CoordinatorServiceClient
	coordinatorv1.AdminServiceClient
}

const (
	connectionsPerNode = 3
	tryWithin          = 2500 * time.Millisecond
	callWithin         = 30 * time.Second
	hotKeys            = 6
	hotFor             = 400 * time.Millisecond // then others are hot
)

// callers is how many there are of each kind.
type callers struct {
	raw, public int
	within      time.Duration // how long one tries; 0: callWithin
}

// patience is how long a caller tries.
func (c callers) patience() time.Duration {
	if c.within == 0 {
		return callWithin
	}
	return c.within
}

func connect(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))...)
}

// startLoad starts the callers of a round against the nodes.
func startLoad(ctx context.Context, round int, endpoints []string, shards int, many callers, seed uint64, log *history.Recorder, seen *seen) (*load, error) {
	l := &load{round: round, endpoints: endpoints, began: time.Now(), patience: many.patience()}
	var again []*grpc.ClientConn
	for _, address := range endpoints {
		conn, err := connect(address)
		if err != nil {
			return nil, err
		}
		again = append(again, conn)
		l.conns = append(l.conns, conn)
	}
	l.courier = newCourier(log, shards, seen, again)
	for _, address := range endpoints {
		var services []service
		for range connectionsPerNode {
			conn, err := connect(address, grpc.WithUnaryInterceptor(l.intercept))
			if err != nil {
				return nil, err
			}
			l.conns = append(l.conns, conn)
			services = append(services, service{coordinatorv1.NewCoordinatorServiceClient(conn), coordinatorv1.NewAdminServiceClient(conn)})
		}
		l.nodes = append(l.nodes, services)
	}
	stopping, stop := context.WithCancel(ctx)
	l.stop = stop
	for worker := range many.raw {
		random := rand.New(rand.NewPCG(seed, uint64(round)<<32|uint64(worker)))
		l.ended.Go(func() {
			for stopping.Err() == nil {
				l.turn(ctx, random)
			}
		})
	}
	// As processes that have a client each, one of them a busy one.
	for worker, few := 0, 4; worker < many.public; worker, few = worker+few, many.public {
		c, err := client.Dial(endpoints, client.WithDialOptions(grpc.WithChainUnaryInterceptor(l.intercept), grpc.WithChainStreamInterceptor(l.interceptStream)), client.WithSessions(worker > 0),
			client.WithCallTimeout(l.patience), client.WithTryTimeout(tryWithin), client.WithSettleTimeout(l.patience))
		if err != nil {
			stop()
			return nil, err
		}
		l.clients = append(l.clients, c)
		for i := worker; i < min(worker+few, many.public); i++ {
			random := rand.New(rand.NewPCG(seed, uint64(round)<<32|1<<31|uint64(i)))
			l.ended.Go(func() {
				for stopping.Err() == nil {
					l.publicTurn(ctx, c, random)
				}
			})
		}
	}
	return l, nil
}

// finish stops the callers, lets everything outstanding be answered, asks for some keys
// once more and closes the connections.
func (l *load) finish(ctx context.Context) {
	l.stop()
	l.ended.Wait()
	for _, c := range l.clients {
		_ = c.Close() // what it gives back behind the scenes is delivered or not
	}
	var asking sync.WaitGroup
	var next atomic.Int64
	for worker := range 24 {
		random := rand.New(rand.NewPCG(uint64(l.round), uint64(worker)))
		asking.Go(func() {
			for number := next.Add(1) - 1; number < l.keys.Load() && ctx.Err() == nil; number = next.Add(1) - 1 {
				switch random.IntN(3) {
				case 0:
					l.get(ctx, random, l.cold(number))
				case 1:
					l.reserve(ctx, random, l.cold(number), time.Minute, 0)
				}
			}
		})
	}
	asking.Wait()
	l.close()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

// what is an identity with what its callers agree on.
type what struct {
	identity    *coordinatorv1.Identity
	fingerprint []byte
	short       bool          // it is reserved for so short that its owners lapse
	hold        bool          // a lapse leaves it in doubt
	retention   time.Duration // 0: the default
}

// named returns the identity of a number: four opaque strings of which some are shared by
// many.
func (l *load) named(kind string, number int64) what {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s %d", l.round, kind, number)
	drawn := rand.New(rand.NewPCG(h.Sum64(), 7))
	namespaces := [...]string{"default", "tenant-a", "tenant-b", "ténant:ç"}
	key := fmt.Sprintf("%s-%d-%x", kind, number, drawn.Uint32())
	w := what{
		identity: &coordinatorv1.Identity{
			Namespace: namespaces[drawn.IntN(len(namespaces))],
			Principal: fmt.Sprintf("account-%d", drawn.IntN(50)),
			Operation: fmt.Sprintf("POST /v1/rounds/%d/things/%d", l.round, drawn.IntN(9)),
			Key:       key,
		},
		short: drawn.IntN(4) == 0, hold: drawn.IntN(5) == 0,
	}
	if drawn.IntN(10) == 0 {
		w.retention = time.Second + time.Duration(drawn.Int64N(int64(2*time.Second)))
	}
	if drawn.IntN(2) == 0 {
		w.fingerprint = []byte(key)
	}
	return w
}

func (l *load) cold(number int64) what { return l.named("cold", number) }

// hot is one of the few keys that everybody is at.
func (l *load) hot(random *rand.Rand) what {
	return l.named("hot", int64(time.Since(l.began)/hotFor)*hotKeys+random.Int64N(hotKeys))
}

// apart is how many keys there are before anybody comes to those of others: callers that
// begin at one moment would all be at the very first, and a hundred calls that overlap have more
// orders than can be searched.
const apart = 100

// choose is what a caller wants next.
func (l *load) choose(random *rand.Rand) what {
	newest := l.keys.Load()
	switch choice := random.IntN(100); {
	case newest < apart || choice < 45:
		return l.cold(l.keys.Add(1) - 1) // its very own
	case choice < 60:
		return l.hot(random)
	case choice < 88:
		return l.cold(max(0, newest-1-random.Int64N(200))) // one of those that others are at
	default:
		return l.cold(random.Int64N(newest)) // a late duplicate
	}
}

func (w what) ttl(random *rand.Rand) time.Duration {
	if w.short {
		return 100*time.Millisecond + time.Duration(random.Int64N(int64(1400*time.Millisecond)))
	}
	return 20*time.Second + time.Duration(random.Int64N(int64(5*time.Minute)))
}

// held is a granted reservation.
type held struct {
	what
	token   string
	attempt []byte
}

// first returns the node that is asked first: most times the leader of the shard, so that
// not every call takes a hop between nodes.
func (l *load) first(random *rand.Rand, id *coordinatorv1.Identity) int {
	if random.IntN(4) > 0 {
		if i := slices.Index(l.endpoints, l.leader(shardOf(id, l.shards))); i >= 0 {
			return i
		}
	}
	return random.IntN(len(l.nodes))
}

// insist makes a call until it is answered with the truth.
func insist[A any](l *load, ctx context.Context, random *rand.Rand, id *coordinatorv1.Identity, call func(context.Context, service) (A, error)) (answer A, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	l.calls.Add(1)
	for tries, node := 0, l.first(random, id); ; tries, node = tries+1, (node+1)%len(l.nodes) {
		try, done := context.WithTimeout(ctx, tryWithin)
		answer, err = call(try, l.nodes[node][random.IntN(connectionsPerNode)])
		done()
		if ruling, _ := classify(err); ruling == answered || ruling == wrong {
			return answer, err
		}
		pause := time.Duration(10+random.IntN(60*min(1+tries, 4))) * time.Millisecond
		select {
		case <-ctx.Done():
			l.gaveUp.Add(1)
			return answer, err
		case <-time.After(pause):
		}
	}
}

func (l *load) reserve(ctx context.Context, random *rand.Rand, w what, ttl, wait time.Duration) *held {
	request := &coordinatorv1.ReserveRequest{
		Identity: w.identity, AttemptId: make([]byte, 16), Fingerprint: w.fingerprint, Owner: fmt.Sprintf("caller %d", random.IntN(1000)),
		PendingTtl: durationpb.New(ttl), Wait: durationpb.New(wait),
	}
	if w.hold {
		request.OnLapse = coordinatorv1.OnLapse_ON_LAPSE_HOLD
	}
	if w.retention > 0 {
		request.Retention = durationpb.New(w.retention)
	}
	if random.IntN(100) == 0 {
		request.Fingerprint = []byte("another request")
	}
	_, _ = cryptorand.Read(request.AttemptId)
	answer, err := insist(l, ctx, random, w.identity, func(ctx context.Context, service service) (*coordinatorv1.ReserveResponse, error) {
		return service.Reserve(ctx, request, grpc.MaxCallRecvMsgSize(4<<20))
	})
	if err != nil || answer.GetGranted() == nil {
		return nil
	}
	return &held{what: w, token: answer.GetGranted().GetToken(), attempt: request.AttemptId}
}

func (l *load) get(ctx context.Context, random *rand.Rand, w what) *coordinatorv1.Record {
	answer, _ := insist(l, ctx, random, w.identity, func(ctx context.Context, service service) (*coordinatorv1.GetResponse, error) {
		return service.Get(ctx, &coordinatorv1.GetRequest{Identity: w.identity, IncludeBody: true}, grpc.MaxCallRecvMsgSize(4<<20))
	})
	return answer.GetRecord()
}

// list is a look at many records at a time, which must not be in anybody's way.
func (l *load) list(ctx context.Context, random *rand.Rand, w what) {
	_, _ = insist(l, ctx, random, w.identity, func(ctx context.Context, service service) (*coordinatorv1.ListRecordsResponse, error) {
		return service.ListRecords(ctx, &coordinatorv1.ListRecordsRequest{Namespace: w.identity.GetNamespace(), PageSize: 50})
	})
}

// settle is what somebody does who looks after what is in doubt, and now and then an
// administrator: both name the revision that they have looked at.
func (l *load) settle(ctx context.Context, random *rand.Rand, w what) {
	record := l.get(ctx, random, w)
	if record == nil {
		return
	}
	if random.IntN(3) == 0 {
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond) // it may have changed since
	}
	state := record.GetState()
	unsettled := state == coordinatorv1.State_STATE_IN_DOUBT || state == coordinatorv1.State_STATE_LAPSED
	switch {
	case unsettled && random.IntN(4) > 0 || random.IntN(20) == 0:
		request := &coordinatorv1.ResolveRequest{Identity: w.identity, Revision: record.GetRevision(), Note: "looked it up"}
		if random.IntN(2) == 0 {
			request.Settlement = &coordinatorv1.ResolveRequest_Applied{Applied: &coordinatorv1.Response{Code: 200, Body: body(random, w, "a reconciler")}}
		} else {
			request.Settlement = &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}}
		}
		_, _ = insist(l, ctx, random, w.identity, func(ctx context.Context, service service) (*coordinatorv1.ResolveResponse, error) {
			return service.Resolve(ctx, request)
		})
	case random.IntN(4) == 0:
		request := &coordinatorv1.PurgeRequest{
			Identity: w.identity, Force: random.IntN(2) == 0, Target: &coordinatorv1.PurgeRequest_Revision{Revision: record.GetRevision()},
		}
		_, _ = insist(l, ctx, random, w.identity, func(ctx context.Context, service service) (*coordinatorv1.PurgeResponse, error) {
			return service.Purge(ctx, request)
		})
	}
}

// turn is one thing that a caller without the public client does.
func (l *load) turn(ctx context.Context, random *rand.Rand) {
	w := l.choose(random)
	if random.IntN(200) == 0 {
		l.list(ctx, random, w)
		return
	}
	switch random.IntN(24) {
	case 0:
		l.get(ctx, random, w)
		return
	case 1:
		l.settle(ctx, random, w)
		return
	}
	wait := time.Duration(0)
	if random.IntN(6) == 0 {
		wait = 150 * time.Millisecond
	}
	if h := l.reserve(ctx, random, w, w.ttl(random), wait); h != nil {
		l.own(ctx, random, h)
	}
}

// own is what an owner does. The history judges what it is told.
func (l *load) own(ctx context.Context, random *rand.Rand, h *held) {
	for range max(0, random.IntN(8)-5) {
		ttl := h.ttl(random)
		_, err := insist(l, ctx, random, h.identity, func(ctx context.Context, service service) (*coordinatorv1.ExtendResponse, error) {
			return service.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: h.identity, Token: h.token, PendingTtl: durationpb.New(ttl)})
		})
		if err != nil {
			break // it may commit all the same
		}
	}
	if h.short && random.IntN(3) == 0 {
		time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond) // it may be late
	}
	switch choice := random.IntN(100); {
	case choice < 60:
		l.commit(ctx, random, h)
	case choice < 88:
		_, _ = insist(l, ctx, random, h.identity, func(ctx context.Context, service service) (*coordinatorv1.ReleaseResponse, error) {
			return service.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: h.identity, Token: h.token, Reason: "not today"})
		})
	} // or it says nothing more
}

func (l *load) commit(ctx context.Context, random *rand.Rand, h *held) {
	request := &coordinatorv1.CommitRequest{Identity: h.identity, Token: h.token, Response: response(random, h)}
	if random.IntN(20) == 0 {
		request.Retention = durationpb.New(time.Second + time.Duration(random.Int64N(int64(2*time.Second))))
	}
	_, _ = insist(l, ctx, random, h.identity, func(ctx context.Context, service service) (*coordinatorv1.CommitResponse, error) {
		return service.Commit(ctx, request)
	})
}

// body is a response's: like no other, and of various sizes.
func body(random *rand.Rand, w what, owner string) []byte {
	sizes := [...]int{0, 0, 10, 200, 200, 1500, 6000}
	size := sizes[random.IntN(len(sizes))]
	if random.IntN(2000) == 0 {
		size = 500_000
	}
	text := fmt.Sprintf("%s of %s by %s %x ", w.identity.GetKey(), w.identity.GetPrincipal(), owner, random.Uint64())
	return []byte(text + strings.Repeat(text, size/len(text)))
}

func response(random *rand.Rand, h *held) *coordinatorv1.Response {
	return &coordinatorv1.Response{
		Code: 200, ContentType: "text/plain", Headers: []*coordinatorv1.Header{{Name: "Location", Value: h.identity.GetKey()}},
		Body: body(random, h.what, fmt.Sprintf("%x", h.attempt[:4])),
	}
}

var errChanged = errors.New("it changed its mind")

// publicTurn is one thing that a caller with the public client does.
func (l *load) publicTurn(ctx context.Context, c *client.Client, random *rand.Rand) {
	w := l.choose(random)
	id := client.Identity{
		Namespace: w.identity.GetNamespace(), Principal: w.identity.GetPrincipal(),
		Operation: w.identity.GetOperation(), Key: w.identity.GetKey(),
	}
	options := []client.ReserveOption{client.WithPendingTTL(w.ttl(random)), client.WithFingerprint(w.fingerprint), client.WithOwner("with the client")}
	if w.hold {
		options = append(options, client.WithOnLapse(client.Hold))
	}
	if w.retention > 0 {
		options = append(options, client.WithRetention(w.retention))
	}
	if random.IntN(4) == 0 {
		options = append(options, client.WithWait(200*time.Millisecond))
	}
	answer := client.Response{Code: 201, ContentType: "text/plain", Body: body(random, w, "client")}
	if random.IntN(3) == 0 {
		var do []client.DoOption
		for _, option := range options {
			if option, ok := option.(client.DoOption); ok {
				do = append(do, option)
			}
		}
		if random.IntN(2) == 0 {
			do = append(do, client.WithKeepAlive())
		}
		_, _ = c.Do(ctx, id, func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
			if random.IntN(4) == 0 {
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
				}
			}
			switch random.IntN(8) {
			case 0:
				return client.Response{}, client.NotApplied(errChanged)
			case 1:
				return client.Response{}, client.Uncertain(errChanged)
			}
			return answer, nil
		}, do...)
		return
	}
	r, err := c.Reserve(ctx, id, options...)
	if err != nil {
		return
	}
	if random.IntN(4) == 0 {
		_ = r.Extend(ctx, w.ttl(random))
	}
	switch choice := random.IntN(10); {
	case choice < 6:
		_ = r.Commit(ctx, answer)
	case choice < 9:
		_ = r.Release(ctx, "not today")
	}
}
