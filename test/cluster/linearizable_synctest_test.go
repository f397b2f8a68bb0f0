package cluster_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/linearizability"
	"github.com/atmostonce/coordinator/test/model"
	"github.com/atmostonce/coordinator/test/scenario"
	"github.com/atmostonce/coordinator/test/scenario/served"
)

const (
	contenders = 4 // callers of one key
	callsEach  = 9
)

// Callers contend for one key through all nodes while links are cut, one way and both,
// and healed. Whatever they were told is one history of the contract, numbers and all:
// two models, one that shares the vocabulary of the rules and one that shares nothing,
// find an order for it.
func TestContendedKeyIsLinearizable(t *testing.T) {
	const rounds = 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.Shards = 1 }})
		unknown, refused := 0, 0
		for round := range rounds {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			run := &contention{
				t: t, nodes: c.Conns(), began: time.Now(),
				id: admission.Identity{Namespace: "default", Key: fmt.Sprintf("round-%d", round)},
			}
			counter := run.counter(fmt.Sprintf("probe-%d", round))
			stop := make(chan struct{})
			var faults, callers sync.WaitGroup
			faults.Go(func() { trouble(c, rand.New(rand.NewPCG(seed, uint64(1000+round))), stop) })
			for caller := range contenders {
				mine := rand.New(rand.NewPCG(random.Uint64(), 0))
				callers.Go(func() { run.caller(caller, mine) })
			}
			callers.Wait()
			close(stop)
			faults.Wait()
			c.Network.HealAll()
			if took := time.Since(run.began); took > 9*time.Minute {
				t.Fatalf("a round took %v: its windows may have ended", took)
			}
			if !model.Linearizable(counter, run.operations) {
				t.Errorf("round %d: no order explains what the callers were told:\n%s", round, run.story())
			}
			if found := linearizability.CheckAll(run.events); len(found) > 0 {
				t.Errorf("round %d: %v\n%s", round, found, run.story())
			}
			for _, o := range run.operations {
				if o.Told == nil && o.Saw == nil {
					unknown++
				}
			}
			refused += run.notCarriedOut
			time.Sleep(2 * time.Minute) // for what is still on its way
			c.Serving()
		}
		t.Logf("%d calls, %d without an answer, %d not carried out", rounds*contenders*callsEach, unknown, refused)
	})
}

// trouble cuts and heals links until it is stopped.
func trouble(c *cluster.Cluster, random *rand.Rand, stop <-chan struct{}) {
	for {
		timer := time.NewTimer(time.Duration(random.IntN(3000)) * time.Millisecond)
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		a, b := c.Names[random.IntN(3)], c.Names[random.IntN(3)]
		switch random.IntN(6) {
		case 0:
			c.Network.Cut(a, b)
		case 1:
			c.Network.Isolate(a)
		case 2:
			c.Network.Sever(a, b)
		case 3:
			c.Network.Latency(a, b, time.Duration(random.IntN(30))*time.Millisecond)
		default:
			c.Network.HealAll()
		}
	}
}

// contention is what happens to one key.
type contention struct {
	t     *testing.T
	nodes []grpc.ClientConnInterface
	id    admission.Identity
	began time.Time

	mu            sync.Mutex
	operations    []model.Operation
	events        []history.Event
	lines         []string
	notCarriedOut int
}

// counter returns the last number that the shard gave out, by having it give out two.
func (c *contention) counter(key string) uint64 {
	c.t.Helper()
	target := &served.Target{Nodes: c.nodes, Sleep: time.Sleep, Retry: time.Minute}
	result, err := target.Reserve(c.t.Context(), scenario.ReserveCall{
		Identity: admission.Identity{Namespace: "default", Key: key}, Attempt: scenario.AttemptOf(key),
	})
	if err != nil || result.Fence == 0 {
		c.t.Fatalf("probe: %+v, %v", result, err)
	}
	return result.Fence + 1
}

// caller makes one call after the other.
func (c *contention) caller(number int, random *rand.Rand) {
	// A caller that gives up soon leaves calls behind of which nobody knows what came.
	target := &served.Target{Nodes: c.nodes[number%len(c.nodes):], Sleep: time.Sleep, Timeout: 500 * time.Millisecond}
	label := ""
	token := admission.Token{Fence: 1 << 40}
	revision := uint64(1)
	for i := range callsEach {
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		switch what := random.IntN(10); {
		case what < 4:
			if label == "" || random.IntN(3) > 0 {
				label = fmt.Sprintf("%s-%d-%d", c.id.Key, number, i)
			}
			if result := c.reserve(target, label); result.Outcome == "granted" {
				token, _ = admission.ParseToken("token", result.Token)
			}
		case what < 5:
			c.commit(target, token, random.IntN(2))
		case what < 7:
			c.release(target, token)
		case what < 9:
			if result := c.get(target); result.Revision != 0 {
				revision = result.Revision
			}
		default:
			c.purge(target, revision)
		}
	}
}

// note adds a call to the history, unless it is known that it was not carried out. The event
// says what was asked, as the kind of its success.
func (c *contention) note(o model.Operation, e history.Event, called time.Time, result scenario.Result, err error, matches func(model.Verdict) bool) {
	o.On, o.Called, o.Answered = c.id, int64(called.Sub(c.began)), int64(time.Since(c.began))
	e.Namespace, e.Key, e.Tries = c.id.Namespace, c.id.Key, 1
	e.Sent, e.LastSent, e.Answered = called.Sub(c.began), called.Sub(c.began), time.Since(c.began)
	c.mu.Lock()
	defer c.mu.Unlock()
	line := fmt.Sprintf("%v to %v %T %+v: ", time.Duration(o.Called), time.Duration(o.Answered), o.Command, o.Command)
	if err != nil {
		c.lines = append(c.lines, line+err.Error())
		if failure := reason.Of(err); failure.Info && failure.Applied == reason.No {
			c.notCarriedOut++
			return
		}
		o.Told, o.Saw = nil, nil
		c.operations = append(c.operations, o)
		e.Unknown = true
		c.events = append(c.events, e)
		return
	}
	c.lines = append(c.lines, line+fmt.Sprintf("%+v", result))
	if o.Command != nil {
		o.Told = matches
	}
	c.operations = append(c.operations, o)
	c.events = append(c.events, told(e, result))
}

// told fills in what came of a call.
func told(e history.Event, result scenario.Result) history.Event {
	e.Repeated, e.Late = result.Repeated, result.Late
	switch kind, asked := e.Asked(); {
	case !asked: // a read
		shown(&e, result)
	case result.Reason == string(reason.AttemptEnded):
		e.Kind = history.Ended
	case result.Reason != "":
		e.Kind, e.Call, e.Reason = history.Refused, kind, result.Reason
	case result.Outcome == "granted":
		e.Fence, e.Number, e.Note = result.Fence, result.Attempt, result.PreviousReason
		e.Previous = map[string]history.End{"released": history.EndReleased, "lapsed": history.EndLapsed}[result.Previous]
	case result.Outcome == "pending":
		e.Kind, e.Number = history.Pending, result.Attempt
	case result.Outcome == "committed":
		e.Kind, e.Response = history.Replayed, hashed(*result.Response)
	}
	return e
}

// shown fills in what a read showed.
func shown(e *history.Event, result scenario.Result) {
	e.Revision = result.Revision
	switch result.State {
	case "PENDING":
		e.Kind, e.State = history.Pending, history.StatePending
	case "COMMITTED":
		e.Kind, e.State = history.Replayed, history.StateCommitted
	case "RELEASED":
		e.Kind, e.State = history.Free, history.StateReleased
	case "LAPSED":
		e.Kind, e.State = history.Free, history.StateLapsed
	}
}

// owner names whoever holds a token; nobody holds the one that callers begin with.
func owner(token admission.Token) history.Attempt {
	if token.Attempt == (admission.AttemptID{}) {
		return history.Attempt{1}
	}
	return history.Attempt(token.Attempt)
}

func (c *contention) story() string {
	text := ""
	for _, line := range c.lines {
		text += line + "\n"
	}
	return text
}

func (c *contention) reserve(target *served.Target, label string) scenario.Result {
	called := time.Now()
	attempt := scenario.AttemptOf(label)
	result, err := target.Reserve(c.t.Context(), scenario.ReserveCall{Identity: c.id, Attempt: attempt})
	c.note(model.Operation{Command: admission.Reserve{
		Identity: c.id, Attempt: attempt, WantedUntil: admission.Never,
		PendingTTL: time.Hour, Retention: time.Hour,
	}}, history.Event{
		Kind: history.Granted, Attempt: history.Attempt(attempt), TTL: admission.PendingTTLDefault, Retention: admission.RetentionDefault,
	}, called, result, err, func(v model.Verdict) bool {
		a := v.Answer
		switch {
		case string(a.Refusal) != result.Reason:
			return false
		case a.Refusal != admission.None:
			return true
		case a.Outcome.String() != result.Outcome || a.Attempt != result.Attempt || a.Fence != result.Fence || a.Repeated != result.Repeated:
			return false
		case a.Outcome == admission.OutcomeGranted:
			return a.Token.String() == result.Token && a.Previous.Reason == result.PreviousReason
		case a.Outcome == admission.OutcomeCommitted:
			return a.Response.Hash == hashed(*result.Response)
		}
		return true
	})
	return result
}

func (c *contention) commit(target *served.Target, token admission.Token, code int) {
	called := time.Now()
	response := scenario.Response{Code: 200 + code, Body: "done"}
	result, err := target.Commit(c.t.Context(), scenario.CommitCall{Identity: c.id, Token: token.String(), Response: response})
	c.note(model.Operation{Command: admission.Commit{Identity: c.id, Token: token, Response: admission.Response{Hash: hashed(response)}}},
		history.Event{Kind: history.Committed, Attempt: owner(token), Fence: token.Fence, Response: hashed(response)},
		called, result, err, func(v model.Verdict) bool {
			return string(v.Answer.Refusal) == result.Reason && v.Answer.Repeated == result.Repeated && v.Answer.Late == result.Late
		})
}

func (c *contention) release(target *served.Target, token admission.Token) {
	called := time.Now()
	result, err := target.Release(c.t.Context(), scenario.ReleaseCall{Identity: c.id, Token: token.String(), Reason: token.String()})
	c.note(model.Operation{Command: admission.Release{Identity: c.id, Token: token, Reason: token.String()}},
		history.Event{Kind: history.Released, Attempt: owner(token), Fence: token.Fence, Note: token.String()},
		called, result, err, func(v model.Verdict) bool {
			return string(v.Answer.Refusal) == result.Reason && v.Answer.Repeated == result.Repeated
		})
}

func (c *contention) purge(target *served.Target, revision uint64) {
	called := time.Now()
	result, err := target.Purge(c.t.Context(), scenario.PurgeCall{Identity: c.id, Revision: revision, Force: true})
	c.note(model.Operation{Command: admission.Purge{Identity: c.id, Revision: revision, Force: true}},
		history.Event{Kind: history.Purged, Revision: revision, Force: true},
		called, result, err, func(v model.Verdict) bool { return string(v.Answer.Refusal) == result.Reason })
}

func (c *contention) get(target *served.Target) scenario.Result {
	called := time.Now()
	result, err := target.Get(c.t.Context(), c.id)
	c.note(model.Operation{Saw: func(seen model.Seen, exists bool) bool {
		if !exists {
			return result.Reason == string(admission.ReservationNotFound)
		}
		return seen.State.String() == result.State && seen.Revision == result.Revision
	}}, history.Event{Kind: history.Missing}, called, result, err, nil)
	return result
}

// hashed stands for a response in the model.
func hashed(r scenario.Response) [32]byte {
	r.Headers = nil
	encoded, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return sha256.Sum256(encoded)
}
