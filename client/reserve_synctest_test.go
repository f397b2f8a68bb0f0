package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/cluster"
)

const soon = 3 * time.Second

// With nobody there, and with nobody who leads, a Reserve that is to end soon does; whether it
// would have waited for another attempt makes no difference. What is known is said.
func TestReserveTimeout(t *testing.T) {
	for name, away := range map[string]func(*cluster.Cluster){
		"nobody is there": func(nodes *cluster.Cluster) {
			for _, name := range nodes.Names {
				nodes.StopNode(name)
			}
		},
		"nobody leads": func(nodes *cluster.Cluster) {
			for _, name := range nodes.Others(nodes.AwaitLeader(0)) {
				nodes.Crash(name)
			}
			time.Sleep(10 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := start(t, 3)
				c := dial(t, nodes)
				granted(t, c, "first")
				away(nodes)
				for _, wait := range []time.Duration{0, time.Minute} {
					began := time.Now()
					_, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(soon), client.WithWait(wait))
					want(t, err, client.ErrUnavailable)
					if took := time.Since(began); took > soon || took < soon/2 || errors.Is(err, client.ErrUnknown) {
						t.Errorf("waiting %v: after %v: %v", wait, took, err)
					}
				}
				began := time.Now()
				_, err := c.Do(t.Context(), id("k"), returns(client.Response{}, nil), client.WithReserveTimeout(soon))
				if want(t, err, client.ErrUnavailable); time.Since(began) > soon {
					t.Errorf("Do: after %v", time.Since(began))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		for _, wrong := range []time.Duration{0, -1} {
			_, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(wrong))
			var failed *client.Error
			if want(t, err, client.ErrInvalidArgument); !errors.As(err, &failed) || failed.Violations[0].Field != "timeout" {
				t.Errorf("%v", err)
			}
		}
	})
}

// A leader that crashes, and one that falls silent, are got over within the time.
func TestReserveTimeoutOutlastsAFailover(t *testing.T) {
	for name, lose := range map[string]func(*cluster.Cluster, string){
		"a crash": func(nodes *cluster.Cluster, leader string) { nodes.Crash(leader) },
		"silence": func(nodes *cluster.Cluster, leader string) {
			nodes.Network.Isolate(leader)
			nodes.Network.Cut(cluster.ClientHost, leader)
			nodes.Network.Cut(leader, cluster.ClientHost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := start(t, 3)
				c := dial(t, nodes)
				for i := range 3 { // it knows the leader
					granted(t, c, fmt.Sprint("before ", i))
				}
				lose(nodes, nodes.AwaitLeader(0))
				var callers sync.WaitGroup
				for i := range 20 {
					callers.Go(func() {
						began := time.Now()
						_, err := c.Reserve(t.Context(), id(fmt.Sprint(i)), client.WithReserveTimeout(soon))
						if err != nil {
							t.Errorf("after %v: %v", time.Since(began), err)
						} else if i == 0 {
							t.Logf("after %v", time.Since(began))
						}
					})
				}
				callers.Wait()
				nodes.Network.HealAll()
			})
		})
	}
}

// The answer of a grant is lost for longer than the call lasts, and for as long as a caller
// may well be away: the attempt that nobody heard of does not stay, under Hold neither, nor where
// the caller uses for something else what it had given to the call.
func TestWhatNobodyHeardOfIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		granted(t, c, "first")
		nodes.Network.Cut("n1", cluster.ClientHost) // it is granted, and we do not hear of it
		began := time.Now()
		fingerprint := []byte("mine")
		r, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(soon), client.WithOnLapse(client.Hold), client.WithFingerprint(fingerprint))
		if want(t, err, client.ErrUnknown, client.ErrUnavailable); r != nil || time.Since(began) > soon {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		copy(fingerprint, "else")
		time.Sleep(40 * time.Second) // longer than a call, shorter than settling
		other := dial(t, nodes, client.WithDialer(nodes.Network.Host("elsewhere").Dial))
		if got := state(t, other, "k"); got != client.StatePending {
			t.Fatalf("%v: it was not granted, and shows nothing", got)
		}
		nodes.Network.HealAll()
		time.Sleep(20 * time.Second)
		if p := granted(t, other, "k").Previous(); p.End != client.PreviousReleased || !strings.Contains(p.Reason, "gone") {
			t.Errorf("previous: %+v", p)
		}
	})
}

// Between an attempt that went silent and the next owner there may be attempts that nobody heard
// of. The owner is told of the one that went silent all the same.
func TestALapseIsToldPastAttemptsThatNobodyHeardOf(t *testing.T) {
	for name, unheard := range map[string]func(*testing.T, *cluster.Cluster, *client.Client){
		"the answer was lost": func(t *testing.T, nodes *cluster.Cluster, c *client.Client) {
			nodes.Network.Cut("n1", cluster.ClientHost)
			_, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(soon))
			want(t, err, client.ErrUnknown)
			nodes.Network.HealAll()
			time.Sleep(20 * time.Second)
		},
		"it was over when it arrived": func(t *testing.T, nodes *cluster.Cluster, c *client.Client) {
			nodes.Latency(60 * time.Millisecond)
			_, err := c.Reserve(t.Context(), id("k"), client.WithPendingTTL(100*time.Millisecond))
			want(t, err, client.ErrLapsed)
			nodes.Latency(0)
		},
		"its caller had gone": func(t *testing.T, nodes *cluster.Cluster, _ *client.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			c := dial(t, nodes, intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
				defer cancel()
				return invoke(ctx, method, request, reply, conn, options...)
			}))
			_, err := c.Do(ctx, id("k"), returns(client.Response{}, nil))
			want(t, err, context.Canceled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := start(t, 1)
				c := dial(t, nodes)
				silent := granted(t, c, "k", client.WithPendingTTL(time.Second))
				time.Sleep(2 * time.Second)
				for range 2 {
					unheard(t, nodes, c)
				}
				record, err := c.Get(t.Context(), id("k"))
				if wantNone(t, err); record.State != client.StateReleased || record.Attempt < 3 {
					t.Fatalf("record: %+v", record)
				}
				owner := granted(t, c, "k")
				if want := (client.Previous{End: client.PreviousLapsed, Fence: silent.Fence()}); owner.Previous() != want {
					t.Errorf("previous: %+v, want %+v", owner.Previous(), want)
				}
				wantNone(t, owner.Release(t.Context(), "the owner says: the grant was over when it arrived; the attempt before it lapsed, with fence 7"))
				if p := granted(t, c, "k").Previous(); p.End != client.PreviousReleased {
					t.Errorf("a reason of an owner's own: %+v", p)
				}
			})
		})
	}
}

// It is not known whether the call arrived, and it did not: giving it back leaves nothing
// that could block the key, whenever this process ends.
func TestGivingBackWhatWasNeverGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var arrives atomic.Bool
		c := dial(t, start(t, 1), intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			if arrives.Load() {
				return invoke(ctx, method, request, reply, conn, options...)
			}
			// Something was sent, and it was not this.
			_ = invoke(ctx, coordinatorv1.CoordinatorService_Get_FullMethodName, &coordinatorv1.GetRequest{}, &coordinatorv1.GetResponse{}, conn, options...)
			return status.Error(codes.Unavailable, "lost on the way there")
		}))
		_, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(soon), client.WithOnLapse(client.Hold), client.WithPendingTTL(time.Hour))
		want(t, err, client.ErrUnknown)
		arrives.Store(true)
		time.Sleep(20 * time.Second)
		record, err := c.Get(t.Context(), id("k"))
		wantNone(t, err)
		if record.State != client.StateReleased || record.Attempt != 1 || record.OnLapse != client.Reopen || record.PendingTTL > time.Minute {
			t.Errorf("record: %+v", record)
		}
	})
}

// Whoever says "as long as there is" waits as long.
func TestTheLongestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longest = time.Duration(math.MaxInt64)
		nodes := start(t, 1)
		for name, test := range map[string]struct {
			dial    []client.DialOption
			reserve []client.ReserveOption
		}{
			"wait":         {nil, []client.ReserveOption{client.WithWait(longest)}},
			"call timeout": {[]client.DialOption{client.WithCallTimeout(longest), client.WithSettleTimeout(longest)}, []client.ReserveOption{client.WithWait(time.Hour)}},
			"all of them": {
				[]client.DialOption{client.WithCallTimeout(longest), client.WithTryTimeout(longest), client.WithSettleTimeout(longest)},
				[]client.ReserveOption{client.WithWait(longest), client.WithReserveTimeout(longest)},
			},
		} {
			first := granted(t, dial(t, nodes), name, client.WithPendingTTL(time.Hour))
			var committing sync.WaitGroup
			committing.Go(func() {
				time.Sleep(20 * time.Minute)
				if err := first.Commit(t.Context(), client.Response{Code: 7}); err != nil {
					t.Error(err)
				}
			})
			c := dial(t, nodes, test.dial...)
			began := time.Now()
			_, err := c.Reserve(t.Context(), id(name), test.reserve...)
			took := time.Since(began)
			committing.Wait()
			if !errors.Is(err, client.ErrCommitted) || took < 20*time.Minute || took > 21*time.Minute {
				t.Errorf("%s: after %v: %v", name, took, err)
			}
		}
	})
}

// A call that waits for another attempt ends too when the coordinator goes away, long before
// its wait would.
func TestWaitingEndsWhenTheCoordinatorIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		granted(t, c, "k", client.WithPendingTTL(24*time.Hour))
		go func() {
			time.Sleep(5 * time.Minute)
			nodes.Crash("n1")
		}()
		began := time.Now()
		_, err := c.Reserve(t.Context(), id("k"), client.WithWait(time.Hour), client.WithReserveTimeout(soon))
		want(t, err, client.ErrUnavailable)
		if took := time.Since(began); took < 5*time.Minute || took > 6*time.Minute+soon {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A context that is cancelled ends every call at once, whatever it is in the middle of, and
// Do with them unless it is recording.
func TestCancelledCallsReturnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(time.Hour))
		calls := map[string]func(context.Context) error{
			"Reserve": func(ctx context.Context) error { _, err := c.Reserve(ctx, id("other")); return err },
			"Reserve that waits": func(ctx context.Context) error {
				_, err := c.Reserve(ctx, id("k"), client.WithWait(time.Hour))
				return err
			},
			"Do": func(ctx context.Context) error {
				_, err := c.Do(ctx, id("other"), returns(client.Response{}, nil))
				return err
			},
			"Get":     func(ctx context.Context) error { _, err := c.Get(ctx, id("k")); return err },
			"Resolve": func(ctx context.Context) error { return c.ResolveNotApplied(ctx, id("k"), 1, "") },
			"Extend":  func(ctx context.Context) error { return r.Extend(ctx, 0) },
			"Commit":  func(ctx context.Context) error { return r.Commit(ctx, client.Response{}) },
			"Release": func(ctx context.Context) error { return r.Release(ctx, "") },
		}
		at := map[string]func() error{}
		for name, call := range calls {
			for _, after := range []time.Duration{10 * time.Millisecond, 2500 * time.Millisecond, 7 * time.Second} {
				at[fmt.Sprint(name, " after ", after)] = func() error {
					ctx, cancel := context.WithCancel(t.Context())
					timer := time.AfterFunc(after, cancel)
					defer timer.Stop()
					began := time.Now()
					err := call(ctx)
					if took := time.Since(began); took > after {
						return fmt.Errorf("it returned after %v: %w", took, err)
					}
					if !errors.Is(err, context.Canceled) {
						return fmt.Errorf("not cancelled: %w", err)
					}
					return nil
				}
			}
		}
		for _, name := range nodes.Names {
			nodes.Network.Cut(name, cluster.ClientHost)
		}
		var running sync.WaitGroup
		for name, run := range at {
			if strings.HasPrefix(name, "Commit") || strings.HasPrefix(name, "Release") {
				continue // they end the reservation: later
			}
			running.Go(func() {
				if err := run(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		running.Wait()
		for name, run := range at {
			if strings.HasPrefix(name, "Commit") || strings.HasPrefix(name, "Release") {
				if err := run(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		nodes.Network.HealAll()
	})
}

// Every exit of Do that is not the function's doing.
func TestDoIsNotAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		never := func(context.Context, *client.Reservation) (client.Response, error) {
			t.Error("it runs")
			return client.Response{}, nil
		}
		held := granted(t, c, "pending")
		_, err := c.Do(t.Context(), id("pending"), never)
		want(t, err, client.ErrPending)
		_, err = c.Do(t.Context(), id("pending"), never, client.WithFingerprint([]byte("other")))
		want(t, err, client.ErrFingerprintMismatch)
		granted(t, c, "doubt", client.WithOnLapse(client.Hold), client.WithPendingTTL(time.Second))
		time.Sleep(2 * time.Second)
		_, err = c.Do(t.Context(), id("doubt"), never)
		want(t, err, client.ErrInDoubt)
		wantNone(t, held.Commit(t.Context(), client.Response{Code: 7}))
		result, err := c.Do(t.Context(), id("pending"), never)
		if err != nil || !result.Replayed || result.Response.Code != 7 {
			t.Errorf("%+v, %v", result, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Do(ended, id("ended"), never)
		want(t, err, context.Canceled)
		nodes.StopNode("n1")
		_, err = c.Do(t.Context(), id("away"), never)
		want(t, err, client.ErrUnavailable)
		wantNone(t, c.Close())
		_, err = c.Do(t.Context(), id("closed"), never)
		want(t, err, client.ErrClosed)
	})
}

// The function took longer than its window, and somebody else was admitted: what it did is
// not recorded, and that is said, with the response, and nothing of the other is undone.
func TestDoIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		var other *client.Reservation
		result, err := c.Do(t.Context(), id("k"), func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			other = granted(t, c, "k")
			return client.Response{Code: 1}, nil
		}, client.WithPendingTTL(time.Second))
		var unrecorded *client.CommitError
		if want(t, err, client.ErrLost); !errors.As(err, &unrecorded) || result.Response.Code != 1 || result.Replayed {
			t.Errorf("%+v, %v", result, err)
		}
		wantNone(t, other.Commit(t.Context(), client.Response{Code: 2}))
		// The same with a function that failed: its release frees nothing of the other's.
		_, err = c.Do(t.Context(), id("k2"), func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			other = granted(t, c, "k2")
			return client.Response{}, client.NotApplied(errOwn)
		}, client.WithPendingTTL(time.Second))
		want(t, err, errOwn)
		if got := state(t, c, "k2"); got != client.StatePending {
			t.Errorf("%v", got)
		}
	})
}

// A release that fails is told to the log, and the error is the function's all the same.
func TestDoCannotRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		var log lines
		c := dial(t, nodes, client.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		began := time.Now()
		_, err := c.Do(t.Context(), id("k"), func(context.Context, *client.Reservation) (client.Response, error) {
			nodes.Network.Cut(cluster.ClientHost, "n1")
			return client.Response{}, errOwn
		})
		if want(t, err, errOwn); time.Since(began) > 15*time.Second || !strings.Contains(log.String(), "could not be released") ||
			!strings.Contains(log.String(), "operation=op key=k") {
			t.Errorf("after %v, and the log says %q", time.Since(began), log.String())
		}
		nodes.Network.HealAll()
	})
}

// lines is what a log was told.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
