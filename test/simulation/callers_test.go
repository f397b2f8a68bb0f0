package simulation

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/history"
)

// callerPlan is one caller of a key.
type callerPlan struct {
	At             time.Duration
	Key            string
	TTL, Retention time.Duration
	Hold           bool
	Print          string // of its request
	Operator       bool   // it settles what is in doubt instead of reserving
	Seed           uint64
}

// keepsLong is a retention that does not end while its hour is looked at.
const keepsLong = 6 * time.Hour

// short reports whether the key's windows end while they are watched. The vocabulary of
// histories is for the others.
func (p callerPlan) short() bool { return p.Retention < keepsLong }

// drawCallers draws the callers of a key that is used from a moment on.
func drawCallers(random *rand.Rand, key string, from time.Duration) []callerPlan {
	p := callerPlan{
		Key: key, Retention: keepsLong,
		TTL: one(random, time.Second, 3*time.Second, 8*time.Second, 20*time.Second, time.Minute),
	}
	from += between(random, 0, busy*3/4)
	spread := 2*p.TTL + 15*time.Second
	switch draw := random.IntN(100); {
	case draw < 30:
		p.Retention = one(random, time.Second, 4*time.Second, 15*time.Second, time.Minute)
		spread = min(3*(p.TTL+p.Retention)+10*time.Second, 2*time.Minute)
	case draw < 40:
		p.Hold = true
	}
	var all []callerPlan
	usual := one(random, "", "", "request")
	for range callersEach {
		p.At, p.Seed, p.Print = from+between(random, 0, spread), random.Uint64(), usual
		if random.IntN(6) == 0 {
			p.Print = one(random, "", "request", "another")
		}
		all = append(all, p)
	}
	if p.Hold {
		p.At, p.Seed, p.Operator = from+p.TTL, random.Uint64(), true
		all = append(all, p)
	}
	return all
}

// caller is one that calls, and does with a grant what owners do.
type caller struct {
	w        *world
	plan     callerPlan
	random   *rand.Rand
	nodes    []string      // which it calls; nil for all
	patience time.Duration // how long it tries; 0 for the usual
	who      string
	name     string // of its latest attempt; no two attempts share one
	asked    int
}

// node draws the node of the next try.
func (c *caller) node() string {
	if c.nodes == nil {
		return one(c.random, c.w.c.Names...)
	}
	return one(c.random, c.nodes...)
}

// How long callers try, unless they say otherwise.
const (
	patience  = 75 * time.Second
	tryWithin = 3 * time.Second
)

// again reports whether a call that ended like this is to be made again, and whether it
// is known that it was not applied.
func again(err error) (retry, not bool) {
	failure := reason.Of(err)
	switch failure.Reason {
	case reason.NoLeader, reason.ShuttingDown, reason.Overloaded:
		return true, failure.Info
	}
	return failure.Code == codes.Unavailable || failure.Code == codes.DeadlineExceeded, false
}

// insist makes a call at one node after another until it is answered, and fills in what
// is known of it then.
func insist[A any](c *caller, t *told, within time.Duration, make func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error)) (A, error) {
	t.first = c.w.now()
	doubt := false
	for {
		t.tries++
		patient := within
		if c.random.IntN(12) == 0 { // it hangs up in the middle
			patient = between(c.random, time.Millisecond, 300*time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(c.w.ctx, patient)
		t.last = c.w.now()
		answer, err := make(ctx, c.w.service(c.node()))
		cancel()
		t.answered = c.w.now()
		if err == nil {
			return answer, nil
		}
		retry, not := again(err)
		doubt = doubt || retry && !not
		if not {
			t.tries-- // it was not delivered in any way that matters
		}
		if !retry {
			return answer, err
		}
		// Some give up while they still know that nothing was done: it had better be true.
		givesUp := not && !doubt && c.random.IntN(8) == 0
		if givesUp || t.answered-t.first > cmp.Or(c.patience, patience) || c.w.ctx.Err() != nil {
			t.outcome, t.unknown, t.never = err.Error(), doubt, !doubt
			return answer, err
		}
		time.Sleep(between(c.random, 5*time.Millisecond, 700*time.Millisecond))
	}
}

// retransmit delivers a call once more, much later, as a network may.
func retransmit[A any](c *caller, t told, within time.Duration, make func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error), answered func(*told, A, error)) {
	after, node := between(c.random, 0, 25*time.Second), c.node()
	c.w.work.Go(func() {
		time.Sleep(after)
		ctx, cancel := context.WithTimeout(c.w.ctx, within)
		defer cancel()
		t.first = c.w.now()
		t.last, t.tries = t.first, 1
		answer, err := make(ctx, c.w.service(node))
		t.answered = c.w.now()
		if err != nil {
			if retry, not := again(err); retry {
				t.outcome, t.unknown, t.never = err.Error(), !not, not
			}
		}
		answered(&t, answer, err)
		c.w.book.add(t)
	})
}

// carry makes a call, sometimes twice, and notes what it was told.
func carry[A any](c *caller, t told, within time.Duration, make func(context.Context, coordinatorv1.CoordinatorServiceClient) (A, error), answered func(*told, A, error)) (told, A) {
	twice := c.random.IntN(9) == 0
	if twice {
		retransmit(c, t, within, make, answered)
	}
	answer, err := insist(c, &t, within, make)
	if !t.unknown && !t.never {
		answered(&t, answer, err)
	}
	if twice && t.never {
		t.unknown, t.never = true, false
	}
	c.w.book.add(t)
	return t, answer
}

func (c *caller) told(what call) told {
	return told{call: what, key: c.plan.Key, caller: c.name, ttl: c.plan.TTL, retention: c.plan.Retention, hold: c.plan.Hold}
}

// refused notes an error that is an answer.
func refused(t *told, err error) bool {
	if err != nil && !t.unknown && !t.never {
		if t.outcome = string(reason.Of(err).Reason); t.outcome == "" {
			t.outcome = err.Error()
		}
	}
	return err != nil
}

// grant is what an owner has.
type grant struct {
	attempt history.Attempt
	token   string
}

// reserve asks once, and returns the grant if there is one.
func (c *caller) reserve(wait time.Duration) (told, *grant) {
	c.asked++
	c.name = fmt.Sprintf("%s/%d", c.who, c.asked)
	t := c.told(reserveCall)
	t.print = c.plan.Print
	for i := range 2 {
		binary.BigEndian.PutUint64(t.attempt[8*i:], c.random.Uint64())
	}
	id := t.attempt
	request := &coordinatorv1.ReserveRequest{
		Identity: identity(c.plan.Key), AttemptId: id[:], Owner: c.name,
		PendingTtl: durationpb.New(c.plan.TTL), Retention: durationpb.New(c.plan.Retention), Wait: durationpb.New(wait),
		Fingerprint: []byte(c.plan.Print),
	}
	if c.plan.Hold {
		request.OnLapse = coordinatorv1.OnLapse_ON_LAPSE_HOLD
	}
	t, answer := carry(c, t, wait+tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReserveResponse, error) {
		return s.Reserve(ctx, request)
	}, func(t *told, answer *coordinatorv1.ReserveResponse, err error) {
		if !refused(t, err) {
			t.reserved(answer)
		}
	})
	if t.outcome != "granted" {
		return t, nil
	}
	return t, &grant{attempt: t.attempt, token: answer.GetGranted().GetToken()}
}

// reserved fills in the answer to a Reserve.
func (t *told) reserved(answer *coordinatorv1.ReserveResponse) {
	switch {
	case answer.GetGranted() != nil:
		g := answer.GetGranted()
		t.outcome, t.fence, t.number, t.repeated = "granted", g.GetFence(), g.GetAttempt(), g.GetRepeated()
		t.waited, t.remaining = g.GetWaited().AsDuration(), g.GetRemaining().AsDuration()
		t.previousFence, t.note = g.GetPrevious().GetFence(), g.GetPrevious().GetReason()
		switch g.GetPrevious().GetEnd() {
		case coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED:
			t.previous = history.EndReleased
		case coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED:
			t.previous = history.EndLapsed
		}
	case answer.GetPending() != nil:
		t.outcome, t.number, t.holder = "pending", answer.GetPending().GetAttempt(), answer.GetPending().GetOwner()
	case answer.GetCommitted() != nil:
		t.outcome, t.response = "committed", digest(answer.GetCommitted().GetResponse())
		t.remaining = answer.GetCommitted().GetRemaining().AsDuration()
	case answer.GetInDoubt() != nil:
		t.outcome, t.holder = "in doubt", answer.GetInDoubt().GetOwner()
	default:
		t.outcome = fmt.Sprintf("an outcome that cannot be: %v", answer)
	}
}

func (c *caller) commit(g *grant) told { return c.commitAs(g, "response of "+c.name) }

func (c *caller) commitAs(g *grant, body string) told {
	t := c.told(commitCall)
	t.attempt = g.attempt
	response := &coordinatorv1.Response{Code: 200, ContentType: "text/plain", Body: []byte(body)}
	if c.random.IntN(20) == 0 { // one that is kept apart from its record
		response.Body = append(response.Body, make([]byte, 1000+c.random.IntN(20_000))...)
	}
	t.response = digest(response)
	t, _ = carry(c, t, tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.CommitResponse, error) {
		return s.Commit(ctx, &coordinatorv1.CommitRequest{Identity: identity(c.plan.Key), Token: g.token, Response: response})
	}, func(t *told, answer *coordinatorv1.CommitResponse, err error) {
		if !refused(t, err) {
			t.outcome, t.remaining, t.repeated, t.late = "ok", answer.GetRemaining().AsDuration(), answer.GetRepeated(), answer.GetLate()
		}
	})
	return t
}

func (c *caller) release(g *grant) {
	t := c.told(releaseCall)
	t.attempt, t.note = g.attempt, "no, says "+c.name
	carry(c, t, tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ReleaseResponse, error) {
		return s.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: identity(c.plan.Key), Token: g.token, Reason: t.note})
	}, func(t *told, answer *coordinatorv1.ReleaseResponse, err error) {
		if !refused(t, err) {
			t.outcome, t.repeated, t.late = "ok", answer.GetRepeated(), answer.GetLate()
		}
	})
}

func (c *caller) extend(g *grant) told {
	t := c.told(extendCall)
	t.attempt = g.attempt
	t, _ = carry(c, t, tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ExtendResponse, error) {
		return s.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: identity(c.plan.Key), Token: g.token, PendingTtl: durationpb.New(c.plan.TTL)})
	}, func(t *told, answer *coordinatorv1.ExtendResponse, err error) {
		if !refused(t, err) {
			t.outcome, t.remaining = "ok", answer.GetRemaining().AsDuration()
		}
	})
	return t
}

func (c *caller) get() (told, *coordinatorv1.Record) {
	t, answer := carry(c, c.told(getCall), tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.GetResponse, error) {
		return s.Get(ctx, &coordinatorv1.GetRequest{Identity: identity(c.plan.Key), IncludeBody: true})
	}, func(t *told, answer *coordinatorv1.GetResponse, err error) {
		switch failure := reason.Of(err); {
		case err != nil && failure.Reason == reason.ReservationNotFound:
			t.outcome = "none"
		case refused(t, err):
		default:
			record := answer.GetRecord()
			t.outcome, t.fence, t.number, t.holder = record.GetState().String(), record.GetFence(), record.GetAttempt(), record.GetOwner()
			t.remaining, t.revision, t.print = record.GetRemaining().AsDuration(), record.GetRevision(), string(record.GetFingerprint())
			if record.GetResponse() != nil {
				t.response = digest(record.GetResponse())
			}
		}
	})
	return t, answer.GetRecord()
}

// run is what a caller does.
func (c *caller) run() {
	if c.plan.Operator {
		c.settle()
		return
	}
	for asked := range 4 {
		if c.random.IntN(5) == 0 {
			c.get()
		}
		wait := one(c.random, 0, 0, time.Duration(c.random.Int64N(int64(30*time.Second))))
		t, g := c.reserve(wait)
		switch {
		case g != nil:
			c.own(g, t)
			return
		case t.outcome == "pending", t.outcome == "committed" && c.plan.short():
		default:
			return
		}
		if asked > 0 && c.random.IntN(3) == 0 {
			return
		}
		// It comes back about when the key may be free.
		time.Sleep(between(c.random, 10*time.Millisecond, c.plan.TTL+time.Second))
	}
}

// own is what an owner does with its grant.
func (c *caller) own(g *grant, t told) {
	sleep := func(most time.Duration) { time.Sleep(between(c.random, 0, most)) }
	switch draw := c.random.IntN(20); {
	case draw < 7:
		sleep(c.plan.TTL)
		c.commit(g)
	case draw < 10:
		sleep(c.plan.TTL)
		c.release(g)
	case draw < 14:
		for range 1 + c.random.IntN(3) {
			sleep(c.plan.TTL * 9 / 10)
			if c.extend(g).outcome != "ok" {
				return
			}
		}
		if draw < 13 {
			c.commit(g)
		}
	case draw < 16: // too late, unless nobody else came
		time.Sleep(t.remaining)
		sleep(c.plan.TTL)
		if draw == 14 {
			c.commit(g)
			break
		}
		if c.extend(g).outcome == "ok" {
			c.commit(g)
		}
	case draw < 17: // a caller that knows no better
		c.commit(g)
		if c.random.IntN(2) == 0 {
			c.release(g)
		} else {
			c.commitAs(g, "another response of "+c.name)
		}
	case draw < 18:
		c.release(g)
		c.commit(g)
	default: // it is never heard of again
	}
	if c.random.IntN(3) == 0 {
		c.get()
	}
}

// settle is what an operator does with a key that is held in doubt.
func (c *caller) settle() {
	for range 6 {
		time.Sleep(between(c.random, time.Second, c.plan.TTL+5*time.Second))
		_, record := c.get()
		if state := record.GetState(); state != coordinatorv1.State_STATE_IN_DOUBT && state != coordinatorv1.State_STATE_LAPSED {
			continue
		}
		t := c.told(resolveCall)
		t.of, t.revision = record.GetFence(), record.GetRevision()
		request := &coordinatorv1.ResolveRequest{Identity: identity(c.plan.Key), Revision: t.revision, Note: "found out"}
		if t.applied = c.random.IntN(2) == 0; t.applied {
			response := &coordinatorv1.Response{Code: 200, Body: []byte("settled by " + c.name)}
			t.response = digest(response)
			request.Settlement = &coordinatorv1.ResolveRequest_Applied{Applied: response}
		} else {
			t.note = request.Note
			request.Settlement = &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}}
		}
		carry(c, t, tryWithin, func(ctx context.Context, s coordinatorv1.CoordinatorServiceClient) (*coordinatorv1.ResolveResponse, error) {
			return s.Resolve(ctx, request)
		}, func(t *told, answer *coordinatorv1.ResolveResponse, err error) {
			if !refused(t, err) {
				t.outcome, t.repeated = "ok", answer.GetRepeated()
			}
		})
	}
}
