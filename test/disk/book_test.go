package disk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

// The windows are long enough that nothing lapses in these tests.
const (
	pendingTTL  = time.Hour
	extendedTTL = 3 * time.Hour
	operation   = "DISK"
)

// never64 is later than any time.
const never64 = int64(math.MaxInt64)

// shown is what a record must look like.
type shown struct {
	state    coordinatorv1.State
	attempt  uint32
	fence    uint64
	token    string // of the holder
	response [sha256.Size]byte
	extended bool // it ends no sooner than extendedTTL says
}

// promise is one call that changes a record, and what the record is from then on.
type promise struct {
	sent     int64 // the first try, in µs since 1970
	answered int64 // 0: nobody was told yet
	after    shown
}

// page is what is known of one key. One worker calls for it, one call after another, so
// that at each moment the record is what was acknowledged last, or what the one call
// makes of it that is under way.
type page struct {
	key      string
	shard    int
	promises []promise
}

// book holds the pages of all keys.
type book struct {
	shards int

	mu    sync.Mutex
	pages []*page
}

func identity(key string) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Operation: operation, Key: key}
}

func shardOf(key string, shards int) int {
	return admission.Identity{Namespace: admission.DefaultNamespace, Operation: operation, Key: key}.Shard(shards)
}

// find returns a key of a shard.
func (b *book) find(shard int, prefix string) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("%s-%d", prefix, i); shardOf(key, b.shards) == shard {
			return key
		}
	}
}

func (b *book) open(key string) *page {
	p := &page{key: key, shard: shardOf(key, b.shards)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pages = append(b.pages, p)
	return p
}

// add and told are called by the page's worker; readers come when it has ended.
func (p *page) add(after shown) *promise {
	p.promises = append(p.promises, promise{sent: time.Now().UnixMicro(), after: after})
	return &p.promises[len(p.promises)-1]
}

func (p *promise) told() { p.answered = time.Now().UnixMicro() + 1 }

// last returns what was promised last before a time, and what may have been made of it
// then; nil is nothing.
func (p *page) last(at int64) (acknowledged, underWay *shown) {
	for i := range p.promises {
		promise := &p.promises[i]
		if promise.answered == 0 || promise.answered >= at {
			if promise.sent <= at {
				underWay = &promise.after
			}
			break
		}
		acknowledged = &promise.after
	}
	return acknowledged, underWay
}

// workers make calls until they are stopped.
type workers struct {
	*book
	conns   []grpc.ClientConnInterface
	stopped atomic.Bool
	ended   sync.WaitGroup
	calls   atomic.Int64

	wrongMu sync.Mutex
	wrong   error
}

// errStopped ends a worker whose call had no answer.
var errStopped = errors.New("stopped")

func startWorkers(b *book, conns []grpc.ClientConnInterface, count int, seed uint64) *workers {
	w := &workers{book: b, conns: conns}
	for number := range count {
		random := mathrand.New(mathrand.NewPCG(seed, uint64(number)))
		w.ended.Go(func() {
			for i := 0; !w.stopped.Load(); i++ {
				err := w.turn(random, w.open(fmt.Sprintf("%x-%d-%d", seed&0xffff, number, i)))
				if errors.Is(err, errStopped) {
					return
				}
				if err != nil {
					w.wrongMu.Lock()
					w.wrong = errors.Join(w.wrong, err)
					w.wrongMu.Unlock()
					return
				}
			}
		})
	}
	return w
}

// stop returns once every worker has ended, and what was wrong with answers.
func (w *workers) stop() error {
	w.stopped.Store(true)
	w.ended.Wait()
	return w.wrong
}

// insist makes a call until it is answered with the truth.
func insist[A any](w *workers, call func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error)) (A, error) {
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		answer, err := call(ctx, coordinatorv1.NewCoordinatorServiceClient(w.conns[tries%len(w.conns)]))
		cancel()
		switch status.Code(err) {
		case codes.OK:
			w.calls.Add(1)
			return answer, nil
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		default:
			return answer, err
		}
		if w.stopped.Load() {
			return answer, fmt.Errorf("%w: %w", errStopped, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// reasonOf returns the reason in an error, or "".
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// turn is the life of one key.
func (w *workers) turn(random *mathrand.Rand, p *page) error {
	var now shown
	for attempt := uint32(1); attempt <= 3; attempt++ {
		if err := w.reserve(p, &now, attempt); err != nil {
			return err
		}
		if random.IntN(8) == 0 {
			if err := w.extend(p, &now); err != nil {
				return err
			}
		}
		switch choice := random.IntN(10); {
		case choice < 7:
			return w.commit(p, &now, answerOf(random, p.key))
		case choice < 9:
			if err := w.release(p, &now); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

func (w *workers) reserve(p *page, now *shown, attempt uint32) error {
	var id [16]byte
	_, _ = rand.Read(id[:])
	*now = shown{state: coordinatorv1.State_STATE_PENDING, attempt: attempt}
	promised := p.add(*now)
	answer, err := insist(w, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReserveResponse, error) {
		return s.Reserve(ctx, &coordinatorv1.ReserveRequest{
			Identity: identity(p.key), AttemptId: id[:], PendingTtl: durationpb.New(pendingTTL), Owner: "disk", Fingerprint: []byte(p.key),
		})
	})
	if err != nil {
		return fmt.Errorf("reserve %s: %w", p.key, err)
	}
	granted := answer.GetGranted()
	if granted == nil || granted.GetAttempt() != attempt {
		return fmt.Errorf("reserve %s, attempt %d: %v", p.key, attempt, answer)
	}
	now.fence, now.token = granted.GetFence(), granted.GetToken()
	promised.after = *now
	promised.told()
	return nil
}

func (w *workers) extend(p *page, now *shown) error {
	now.extended = true
	promised := p.add(*now)
	_, err := insist(w, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ExtendResponse, error) {
		return s.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: identity(p.key), Token: now.token, PendingTtl: durationpb.New(extendedTTL)})
	})
	if err != nil {
		return fmt.Errorf("extend %s: %w", p.key, err)
	}
	promised.told()
	return nil
}

func (w *workers) commit(p *page, now *shown, response *coordinatorv1.Response) error {
	*now = shown{state: coordinatorv1.State_STATE_COMMITTED, attempt: now.attempt, fence: now.fence, token: now.token, response: digest(response)}
	promised := p.add(*now)
	_, err := insist(w, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.CommitResponse, error) {
		return s.Commit(ctx, &coordinatorv1.CommitRequest{Identity: identity(p.key), Token: now.token, Response: response})
	})
	if err != nil {
		return fmt.Errorf("commit %s: %w", p.key, err)
	}
	promised.told()
	return nil
}

func (w *workers) release(p *page, now *shown) error {
	*now = shown{state: coordinatorv1.State_STATE_RELEASED, attempt: now.attempt, fence: now.fence, token: now.token}
	promised := p.add(*now)
	_, err := insist(w, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReleaseResponse, error) {
		return s.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: identity(p.key), Token: now.token, Reason: "not today"})
	})
	if err != nil {
		return fmt.Errorf("release %s: %w", p.key, err)
	}
	promised.told()
	return nil
}

// answerOf is a response like no other, of various sizes. The larger ones do not compress.
func answerOf(random *mathrand.Rand, key string) *coordinatorv1.Response {
	sizes := [...]int{0, 20, 300, 700, 1500, 6000}
	var body strings.Builder
	for body.Len() < sizes[random.IntN(len(sizes))] {
		fmt.Fprintf(&body, "%s %x ", key, random.Uint64())
	}
	return &coordinatorv1.Response{
		Code: 200, ContentType: "text/plain", Headers: []*coordinatorv1.Header{{Name: "Location", Value: key}}, Body: []byte(body.String()),
	}
}

// digest stands for a whole response.
func digest(response *coordinatorv1.Response) [sha256.Size]byte {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		panic(err) // it came from a message
	}
	return sha256.Sum256(encoded)
}

// check compares all records with what was promised before a time, and draws some whose
// responses it compares, too: the latest ones, and any. It also makes new
// calls, as the owners of before and as newcomers.
func (b *book) check(conn grpc.ClientConnInterface, at int64, random *mathrand.Rand) error {
	records, highest, err := list(conn)
	if err != nil {
		return err
	}
	var held, committed []*page
	latest := make(map[*page]int64)
	for _, p := range b.pages {
		acknowledged, underWay := p.last(at)
		record := records[p.key]
		delete(records, p.key)
		if !matches(record, acknowledged) && (underWay == nil || !matches(record, underWay)) {
			return fmt.Errorf("%s of shard %d: promised was %v (under way: %v), found is %v", p.key, p.shard, acknowledged, underWay, record)
		}
		for i := range p.promises {
			if answered := p.promises[i].answered; answered != 0 && answered < at {
				latest[p] = answered
			}
		}
		if record != nil && underWay == nil {
			switch record.GetState() {
			case coordinatorv1.State_STATE_COMMITTED:
				committed = append(committed, p)
			case coordinatorv1.State_STATE_PENDING:
				held = append(held, p)
			}
		}
	}
	for key := range records {
		if !strings.HasPrefix(key, "after-") {
			return fmt.Errorf("%s was never asked for", key)
		}
	}
	byLatest := func(a, b *page) int { return int(latest[b] - latest[a]) }
	slices.SortFunc(held, byLatest)
	slices.SortFunc(committed, byLatest)
	service := coordinatorv1.NewCoordinatorServiceClient(conn)
	for _, p := range sample(committed, 10, random) {
		acknowledged, _ := p.last(at)
		if err := replays(service, p, acknowledged); err != nil {
			return err
		}
	}
	for _, p := range sample(held, 2, random) {
		acknowledged, _ := p.last(at)
		if err := owns(service, p, acknowledged); err != nil {
			return err
		}
	}
	for shard := range b.shards {
		if err := b.newcomer(service, shard, highest[shard], at); err != nil {
			return err
		}
	}
	return nil
}

// sample returns the first few, and as many others.
func sample(pages []*page, few int, random *mathrand.Rand) []*page {
	if len(pages) <= 2*few {
		return pages
	}
	picked := slices.Clone(pages[:few])
	for range few {
		picked = append(picked, pages[few+random.IntN(len(pages)-few)])
	}
	return slices.CompactFunc(picked, func(a, b *page) bool { return a == b })
}

// list returns all records, and the highest number that any record of a shard shows.
func list(conn grpc.ClientConnInterface) (map[string]*coordinatorv1.Record, map[int]uint64, error) {
	records, highest := make(map[string]*coordinatorv1.Record), make(map[int]uint64)
	request := &coordinatorv1.ListRecordsRequest{PageSize: 1000}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		answer, err := coordinatorv1.NewAdminServiceClient(conn).ListRecords(ctx, request)
		cancel()
		if err != nil {
			return nil, nil, fmt.Errorf("list the records: %w", err)
		}
		for _, record := range answer.GetRecords() {
			records[record.GetIdentity().GetKey()] = record
		}
		if request.PageToken = answer.GetNextPageToken(); request.GetPageToken() == "" {
			return records, highest, nil
		}
	}
}

// matches reports whether a record looks like that.
func matches(record *coordinatorv1.Record, want *shown) bool {
	if want == nil || record == nil {
		return want == nil && record == nil
	}
	return record.GetState() == want.state && record.GetAttempt() == want.attempt &&
		(want.fence == 0 || record.GetFence() == want.fence) &&
		// A release takes the fingerprint with it.
		(string(record.GetFingerprint()) == record.GetIdentity().GetKey()) == (want.state != coordinatorv1.State_STATE_RELEASED) &&
		(!want.extended || record.GetRemaining().AsDuration() > pendingTTL)
}

// replays asks for a committed response as a newcomer does.
func replays(service coordinatorv1.CoordinatorServiceClient, p *page, want *shown) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: identity(p.key), Fingerprint: []byte(p.key)})
	if err != nil {
		return fmt.Errorf("reserve %s, which was committed: %w", p.key, err)
	}
	if answer.GetCommitted() == nil || digest(answer.GetCommitted().GetResponse()) != want.response {
		return fmt.Errorf("%s was committed, and replayed is %.300s", p.key, answer.String())
	}
	return nil
}

// owns extends a reservation as its owner.
func owns(service coordinatorv1.CoordinatorServiceClient, p *page, want *shown) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := service.Extend(ctx, &coordinatorv1.ExtendRequest{
		Identity: identity(p.key), Token: want.token, PendingTtl: durationpb.New(extendedTTL),
	}); err != nil {
		return fmt.Errorf("extend %s by its owner: %w", p.key, err)
	}
	return nil
}

// newcomer reserves a new key of a shard: no fence comes twice.
func (b *book) newcomer(service coordinatorv1.CoordinatorServiceClient, shard int, shownMax uint64, at int64) error {
	highest := shownMax
	for _, p := range b.pages {
		if p.shard == shard {
			if acknowledged, _ := p.last(at); acknowledged != nil {
				highest = max(highest, acknowledged.fence)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	key := b.find(shard, "after-"+rand.Text())
	answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{
		Identity: identity(key), PendingTtl: durationpb.New(pendingTTL), Fingerprint: []byte(key),
	})
	if err != nil {
		return fmt.Errorf("reserve a new key of shard %d: %w", shard, err)
	}
	if granted := answer.GetGranted(); granted.GetFence() <= highest {
		return fmt.Errorf("fence %d of shard %d came twice: %d had been given out", granted.GetFence(), shard, highest)
	}
	return nil
}
