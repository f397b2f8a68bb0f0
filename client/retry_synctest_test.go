package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// tries is an interceptor that notes every try, and may lose answers.
type tries struct {
	lose func(n int, method string) bool // the n-th try from 1; nil loses none

	mu    sync.Mutex
	made  int
	ids   []string // attempt ids and tokens, in order
	nodes []string
}

func (l *tries) intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	l.mu.Lock()
	l.made++
	n := l.made
	switch r := request.(type) {
	case *coordinatorv1.ReserveRequest:
		l.ids = append(l.ids, fmt.Sprintf("%x", r.GetAttemptId()))
	case interface{ GetToken() string }:
		l.ids = append(l.ids, r.GetToken())
	}
	l.nodes = append(l.nodes, conn.Target())
	l.mu.Unlock()
	err := invoke(ctx, method, request, reply, conn, options...)
	if l.lose != nil && l.lose(n, method) {
		return status.Error(codes.Unavailable, "lost on the way back")
	}
	return err
}

func (l *tries) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made, l.ids, l.nodes = 0, nil, nil
}

// distinct returns how many there are, not counting repetitions.
func distinct(all []string) int {
	sorted := slices.Sorted(slices.Values(all))
	return len(slices.Compact(sorted))
}

func TestRetriesKeepTheIdAndOperationsDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &tries{lose: func(n int, _ string) bool { return n%4 != 0 }}
		c := dial(t, start(t, 3), intercept(l.intercept))
		first := granted(t, c, "k")
		if len(l.ids) != 4 || distinct(l.ids) != 1 || len(l.ids[0]) != 32 || first.Attempt() != 1 {
			t.Errorf("Reserve: %v, attempt %d", l.ids, first.Attempt())
		}
		// The first round asks every node, before anybody rests.
		if distinct(l.nodes[:3]) != 3 {
			t.Errorf("asked %v", l.nodes)
		}
		l.reset()
		wantNone(t, first.Extend(t.Context(), 0))
		if len(l.ids) != 4 || distinct(l.ids) != 1 || l.ids[0] != first.Token() {
			t.Errorf("Extend: %v", l.ids)
		}
		l.reset()
		wantNone(t, first.Release(t.Context(), ""))
		if len(l.ids) != 4 || distinct(l.ids) != 1 {
			t.Errorf("Release: %v", l.ids)
		}
		l.reset()
		second := granted(t, c, "k")
		third := granted(t, c, "another")
		if distinct(l.ids) != 2 || second.Token() == first.Token() || third.Token() == second.Token() {
			t.Errorf("two operations: %v", l.ids)
		}
		l.reset()
		wantNone(t, second.Commit(t.Context(), client.Response{Code: 1}))
		if len(l.ids) != 4 || distinct(l.ids) != 1 {
			t.Errorf("Commit: %v", l.ids)
		}
	})
}

// The four parts go over the wire as they were passed, on every call, and odd ones name records
// of their own.
func TestIdentitiesGoOverTheWireUntouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []client.Identity
		c := dial(t, start(t, 1), intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			id := request.(interface {
				GetIdentity() *coordinatorv1.Identity
			}).GetIdentity()
			sent = append(sent, client.Identity{Namespace: id.GetNamespace(), Principal: id.GetPrincipal(), Operation: id.GetOperation(), Key: id.GetKey()})
			return invoke(ctx, method, request, reply, conn, options...)
		}))
		for _, key := range []string{"k", " k", "k ", "K", "\tk\n", "k\x00", `"k"`, "ké", "ke\u0301", "日本", ":", "\x01k", strings.Repeat("k", 120)} {
			id := client.Identity{Namespace: "Tenant A ", Principal: " " + key, Operation: "POST /v1/" + key + "\u00a0", Key: key}
			sent = nil
			r, err := c.Reserve(t.Context(), id)
			if err != nil || r.Attempt() != 1 || r.Identity() != id {
				t.Errorf("%q: %v", key, err)
				continue
			}
			wantNone(t, r.Extend(t.Context(), 0))
			wantNone(t, r.Commit(t.Context(), client.Response{Code: 1}))
			want(t, r.Release(t.Context(), ""), client.ErrAlreadyCommitted)
			record, err := c.Get(t.Context(), id)
			if err != nil || record.Identity != id {
				t.Errorf("%q became %+v, %v", key, record, err)
			}
			want(t, c.ResolveNotApplied(t.Context(), id, 1, ""), client.ErrRevisionMismatch)
			if len(sent) != 6 || slices.ContainsFunc(sent, func(s client.Identity) bool { return s != id }) {
				t.Errorf("%q: sent %+v", key, sent)
			}
		}
	})
}

// However many calls there are at once, and whomever they go to: one connection to each node.
func TestOneConnectionToANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		var mu sync.Mutex
		dials := map[string]int{}
		c := dial(t, nodes, client.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
			mu.Lock()
			dials[address]++
			mu.Unlock()
			return nodes.Network.Host(cluster.ClientHost).Dial(ctx, address)
		}))
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				r := granted(t, c, fmt.Sprint(i))
				wantNone(t, r.Commit(t.Context(), client.Response{}))
			})
		}
		callers.Wait()
		if len(dials) == 0 {
			t.Error("nothing was dialed")
		}
		for address, n := range dials {
			if n != 1 {
				t.Errorf("%s was dialed %d times", address, n)
			}
		}
	})
}

// The attempt was granted and lapsed before its caller heard of it: it still wants the
// key, as another attempt.
func TestAnAttemptThatEndedIsFollowedByANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &tries{}
		l.lose = func(n int, _ string) bool {
			if n == 1 {
				time.Sleep(time.Second) // the answer is lost slowly, and the grant is over
			}
			return n == 1
		}
		c := dial(t, start(t, 1), intercept(l.intercept))
		r := granted(t, c, "k", client.WithPendingTTL(500*time.Millisecond))
		if len(l.ids) != 3 || l.ids[0] != l.ids[1] || l.ids[1] == l.ids[2] {
			t.Errorf("ids: %v", l.ids)
		}
		if r.Attempt() != 2 || r.Previous().End != client.PreviousLapsed {
			t.Errorf("attempt %d, previous %+v", r.Attempt(), r.Previous())
		}
	})
}

func TestCallsGoToTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := cluster.Start(t, cluster.Options{Change: func(c *node.Config) { c.Shards, c.BalanceEvery = 3, 0 }})
		l := &tries{}
		c := dial(t, nodes, intercept(l.intercept))
		leads := func(key string) string {
			t.Helper()
			l.reset()
			_, err := c.Get(t.Context(), id(key))
			want(t, err, client.ErrNotFound)
			shard := nodes.Node("n1").Router().ShardOf(admission.Identity{Namespace: "default", Operation: "op", Key: key})
			leader := nodes.AwaitLeader(shard)
			if len(l.nodes) != 1 || l.nodes[0] != "passthrough:///"+leader+":7420" {
				return fmt.Sprintf("asked %v, shard %d is led by %s", l.nodes, shard, leader)
			}
			return ""
		}
		for i := range 30 { // every shard has been asked about then
			_, _ = c.Get(t.Context(), id(fmt.Sprint(i)))
		}
		for i := range 30 {
			if wrong := leads(fmt.Sprint(i)); wrong != "" {
				t.Error(wrong)
			}
		}
		// Leaders move: one answer is enough to know.
		wantNone(t, nodes.Handover(0, ""))
		nodes.AwaitLeader(0)
		time.Sleep(time.Second)
		for i := range 30 {
			_, _ = c.Get(t.Context(), id(fmt.Sprint(i)))
		}
		for i := range 30 {
			if wrong := leads(fmt.Sprint(i)); wrong != "" {
				t.Error(wrong)
			}
		}
	})
}

// A node that hangs costs one try, and the next calls go past it.
func TestANodeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c := dial(t, nodes)
		granted(t, c, "k0")
		granted(t, c, "k1")
		leader := nodes.AwaitLeader(0)
		nodes.Network.Cut(cluster.ClientHost, leader) // it leads on, and we do not reach it
		began := time.Now()
		granted(t, c, "k2")
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("the first call took %v", took)
		}
		began = time.Now()
		for i := range 10 {
			granted(t, c, fmt.Sprintf("k2-%d", i))
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("ten more took %v", took)
		}
	})
}

// Callers go on through the loss of the leader, with one grant for each key.
func TestTheLeaderCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		l := &tries{}
		c := dial(t, nodes, intercept(l.intercept))
		granted(t, c, "first")
		leader := nodes.AwaitLeader(0)
		var (
			callers sync.WaitGroup
			mu      sync.Mutex
			grants  = map[string]int{}
			longest time.Duration
		)
		for caller := range 8 {
			callers.Go(func() {
				for i := range 50 {
					key := fmt.Sprintf("k%d", i)
					began := time.Now()
					r, err := c.Reserve(t.Context(), id(key))
					took := time.Since(began)
					if err == nil {
						err = r.Commit(t.Context(), client.Response{Code: caller})
						mu.Lock()
						grants[key]++
						mu.Unlock()
					}
					if err != nil && !errors.Is(err, client.ErrCommitted) && !errors.Is(err, client.ErrPending) {
						t.Errorf("%s: %v", key, err)
					}
					mu.Lock()
					longest = max(longest, took)
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		time.Sleep(2 * time.Second)
		nodes.Crash(leader)
		callers.Wait()
		for key, n := range grants {
			if n != 1 {
				t.Errorf("%s was granted %d times", key, n)
			}
		}
		if len(grants) != 50 {
			t.Errorf("%d of 50 keys were granted", len(grants))
		}
		t.Logf("the longest Reserve took %v", longest)
		if longest > 6*time.Second {
			t.Errorf("the longest Reserve took %v", longest)
		}
	})
}

// A majority is away: the answer is no, within the bound, and says what is known.
func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(24*time.Hour))
		for _, name := range nodes.Others(nodes.AwaitLeader(0)) {
			nodes.Crash(name)
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		_, err := c.Reserve(t.Context(), id("other"))
		want(t, err, client.ErrUnavailable)
		if took := time.Since(began); took > 15*time.Second || took < 10*time.Second || errors.Is(err, client.ErrUnknown) {
			t.Errorf("after %v: %v", took, err)
		}
		if client.Reason(err) != "NO_LEADER" || client.RetryAfter(err) <= 0 {
			t.Errorf("%q, %v", client.Reason(err), client.RetryAfter(err))
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err = r.Commit(ctx, client.Response{})
		want(t, err, client.ErrUnavailable, context.DeadlineExceeded)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

func TestNoNodeAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c := dial(t, nodes)
		for _, name := range nodes.Names {
			nodes.StopNode(name)
		}
		began := time.Now()
		_, err := c.Reserve(t.Context(), id("k"))
		want(t, err, client.ErrUnavailable)
		if took := time.Since(began); took > 15*time.Second || errors.Is(err, client.ErrUnknown) {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A context that is cancelled ends the call at once, and what may have been granted
// without anybody having heard of it is given back.
func TestACancelledCallReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		granted(t, c, "k0")
		nodes.Network.Cut("n1", cluster.ClientHost) // what we ask is done, and we do not hear of it
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		began := time.Now()
		_, err := c.Reserve(ctx, id("k"), client.WithOnLapse(client.Hold))
		want(t, err, context.Canceled, client.ErrUnknown, client.ErrUnavailable)
		if took := time.Since(began); took != time.Second {
			t.Errorf("after %v", took)
		}
		_, err = c.Reserve(ctx, id("k"))
		if want(t, err, context.Canceled); errors.Is(err, client.ErrUnknown) {
			t.Error("it was never sent")
		}
		time.Sleep(time.Second)
		nodes.Network.HealAll()
		time.Sleep(5 * time.Second)
		record, err := c.Get(t.Context(), id("k"))
		wantNone(t, err)
		if record.State != client.StateReleased || record.ReleaseReason == "" {
			t.Errorf("record: %+v", record)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(time.Minute))
		stop := r.KeepAlive(t.Context())
		nodes.Network.Cut(cluster.ClientHost, "n1")
		ended := make(chan error)
		go func() {
			_, err := c.Get(t.Context(), id("k"))
			ended <- err
		}()
		time.Sleep(time.Second)
		wantNone(t, c.Close())
		want(t, <-ended, client.ErrClosed)
		wantNone(t, c.Close())
		stop()
		r.KeepAlive(t.Context())()
		_, err := c.Reserve(t.Context(), id("k"))
		want(t, err, client.ErrClosed)
		want(t, r.Commit(t.Context(), client.Response{}), client.ErrClosed)
		nodes.Network.HealAll()
	})
}

// A call that ends with the client may have been carried out.
func TestCloseLeavesADoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		r := granted(t, c, "k")
		nodes.Network.Cut("n1", cluster.ClientHost) // it hears, and is not heard
		ended := make(chan error)
		go func() { ended <- r.Commit(context.Background(), client.Response{Code: 1}) }()
		time.Sleep(time.Second)
		wantNone(t, c.Close())
		err := <-ended
		want(t, err, client.ErrClosed, client.ErrUnknown)
		nodes.Network.HealAll()
		if got := state(t, dial(t, nodes), "k"); got != client.StateCommitted {
			t.Errorf("the key is %v", got)
		}
		// What was not sent leaves none.
		if want(t, r.Commit(t.Context(), client.Response{}), client.ErrClosed); errors.Is(r.Commit(t.Context(), client.Response{}), client.ErrUnknown) {
			t.Error("it was never sent")
		}
	})
}

// A call that may have been carried out and is refused then: what was found in the record is
// the truth, and what was refused without a look at it is not.
func TestWhatARefusalSaysOfEarlierTries(t *testing.T) {
	for refusal, known := range map[reason.Reason]bool{
		reason.InvalidArgument: false, reason.ResponseTooLarge: false, reason.Unauthenticated: false, reason.PermissionDenied: false,
		reason.StorageFull: false, reason.QuotaExceeded: false, reason.Overloaded: false, reason.NoLeader: false,
		reason.CommitConflict: true, reason.ReservationLost: true, reason.AlreadyReleased: true, reason.ReservationNotFound: true,
	} {
		t.Run(string(refusal), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &tries{lose: func(n int, _ string) bool { return n == 2 }}
				c := dial(t, start(t, 1), intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
					if l.made < 2 {
						return l.intercept(ctx, method, request, reply, conn, invoke, options...)
					}
					return reason.Error(refusal, "")
				}))
				err := granted(t, c, "k").Commit(t.Context(), client.Response{Code: 1})
				if err == nil || errors.Is(err, client.ErrUnknown) == known {
					t.Errorf("after a try whose answer was lost: %v", err)
				}
			})
		})
	}
}

// A node that falls silent while it holds an answer back is found out by a ping.
func TestANodeThatHangsWhileItHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c, other := dial(t, nodes), dial(t, nodes, client.WithDialer(nodes.Network.Host("elsewhere").Dial))
		granted(t, c, "k0")
		owner := granted(t, other, "k")
		leader := nodes.AwaitLeader(0)
		go func() {
			time.Sleep(5 * time.Second)
			nodes.Network.Cut(leader, cluster.ClientHost)
			time.Sleep(time.Second)
			_ = owner.Commit(context.Background(), client.Response{Code: 1})
		}()
		began := time.Now()
		_, err := c.Reserve(t.Context(), id("k"), client.WithWait(10*time.Minute))
		want(t, err, client.ErrCommitted)
		if took := time.Since(began); took > 5*time.Second+16*time.Second {
			t.Errorf("found out after %v", took)
		} else {
			t.Logf("found out after %v", took-5*time.Second)
		}
		nodes.Network.HealAll()
	})
}
