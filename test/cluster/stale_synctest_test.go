package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// sight is what a call that changes nothing has shown, and when.
type sight struct {
	how            string
	sent, received time.Time
	committed      bool
	err            error
}

// A leader that was cut off answers nothing from what it has: while its callers still
// reach it, another leads and commits. Each answer shows the record as it was at some
// moment between its call and itself.
func TestDeposedLeaderAnswersNothing(t *testing.T) {
	const rounds = 48
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		cuts := partings()[:3]
		answered, refused := 0, 0
		for round := range rounds {
			for _, s := range staleRound(t, c, random, cuts[round%len(cuts)], round) {
				if s.err == nil {
					answered++
				} else {
					refused++
				}
			}
		}
		t.Logf("%d answers, %d refusals in %d rounds", answered, refused, rounds)
	})
}

func staleRound(t *testing.T, c *cluster.Cluster, random *rand.Rand, cut parting, round int) []sight {
	t.Helper()
	c.Latency(time.Duration(random.IntN(20)) * time.Millisecond)
	c.Serving()
	old := c.AwaitLeader(0)
	others := c.Others(old)
	key := fmt.Sprintf("round-%d", round)
	answer, err := reserve(t.Context(), c, old, &coordinatorv1.ReserveRequest{Identity: identity(key), AttemptId: newAttempt()})
	if err != nil || answer.GetGranted() == nil {
		t.Fatalf("round %d: reserve: %v, %v", round, answer, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	var mu sync.Mutex
	var seen []sight
	look := func(how string, f func(context.Context) (committed bool, err error)) {
		pause := time.Duration(1+random.IntN(90)) * time.Millisecond
		calls.Go(func() {
			for ctx.Err() == nil {
				s := sight{how: how, sent: time.Now()}
				bounded, done := context.WithTimeout(ctx, callTimeout)
				s.committed, s.err = f(bounded)
				done()
				s.received = time.Now()
				if ctx.Err() == nil {
					mu.Lock()
					seen = append(seen, s)
					mu.Unlock()
				}
				sleep(ctx, pause)
			}
		})
	}
	for _, node := range c.Names {
		look("Get at "+node, func(ctx context.Context) (bool, error) {
			m, err := service(c, node).Get(ctx, &coordinatorv1.GetRequest{Identity: identity(key)})
			return m.GetRecord().GetState() == coordinatorv1.State_STATE_COMMITTED, err
		})
		look("Reserve at "+node, func(ctx context.Context) (bool, error) {
			m, err := service(c, node).Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: identity(key), AttemptId: newAttempt()})
			if err == nil && m.GetPending() == nil && m.GetCommitted() == nil {
				t.Errorf("round %d: at %s: %v", round, node, m)
			}
			return m.GetCommitted() != nil, err
		})
	}

	time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
	cut.cut(c, old, others)
	cutAt := time.Now()
	time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
	commitSent := time.Now()
	for i := 0; ; i++ {
		bounded, done := context.WithTimeout(t.Context(), time.Second)
		_, err := service(c, others[i%2]).Commit(bounded, &coordinatorv1.CommitRequest{
			Identity: identity(key), Token: answer.GetGranted().GetToken(), Response: &coordinatorv1.Response{Code: 200},
		})
		done()
		if err == nil {
			break
		}
		if !again(err) {
			t.Fatalf("round %d: commit: %v", round, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	committed := time.Now()
	time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
	if random.IntN(2) == 0 {
		c.Heal() // while they ask
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
	}
	cancel()
	calls.Wait()
	c.Heal()

	for _, s := range seen {
		if s.err != nil {
			if !again(s.err) {
				t.Errorf("round %d, %s, %s: %v", round, cut.name, s.how, s.err)
			}
			continue
		}
		if !s.committed && s.sent.After(committed) {
			t.Errorf("round %d, %s: %s, sent %v after it was committed, shows it pending", round, cut.name, s.how, s.sent.Sub(committed))
		}
		if s.committed && s.received.Before(commitSent) {
			t.Errorf("round %d, %s: %s shows a commit that comes", round, cut.name, s.how)
		}
	}
	checkRefusals(t, seen, old, cutAt, committed)
	return seen
}

// checkRefusals checks that the deposed leader says so in time: a call that found it in
// the belief that it leads within an election timeout, a later one once it has waited
// for a leader.
func checkRefusals(t *testing.T, seen []sight, old string, cutAt, committed time.Time) {
	t.Helper()
	within := raftfsm.DefaultTiming().Election + 200*time.Millisecond
	for _, s := range seen {
		if s.how != "Get at "+old || s.sent.Before(cutAt) || s.received.After(committed) || s.err == nil {
			continue
		}
		if f := reason.Of(s.err); f.Reason != reason.NoLeader {
			t.Errorf("%s, sent %v after the cut: %v", s.how, s.sent.Sub(cutAt), s.err)
		}
		took := s.received.Sub(s.sent)
		if limit := within + 2*time.Second; took > limit {
			t.Errorf("%s, sent %v after the cut, took %v", s.how, s.sent.Sub(cutAt), took)
		}
		if s.sent.Sub(cutAt) < 200*time.Millisecond && took > within {
			t.Errorf("%s, sent %v after the cut, was refused only after %v", s.how, s.sent.Sub(cutAt), took)
		}
	}
}
