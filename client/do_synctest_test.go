package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
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
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// returns is a function that returns what is given.
func returns(response client.Response, err error) func(context.Context, *client.Reservation) (client.Response, error) {
	return func(context.Context, *client.Reservation) (client.Response, error) { return response, err }
}

var errOwn = errors.New("out of stock")

func TestDoRunsOnceAndReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 3))
		var runs atomic.Int32
		run := func(ctx context.Context, r *client.Reservation) (client.Response, error) {
			if runs.Add(1); r.Attempt() != 1 || ctx.Err() != nil {
				t.Errorf("attempt %d, %v", r.Attempt(), ctx.Err())
			}
			time.Sleep(time.Second)
			return client.Response{Code: 201, Body: []byte("made")}, nil
		}
		var callers sync.WaitGroup
		var replayed atomic.Int32
		for range 20 {
			callers.Go(func() {
				result, err := c.Do(t.Context(), id("k"), run, client.WithWait(5*time.Second))
				if err != nil || result.Response.Code != 201 || string(result.Response.Body) != "made" {
					t.Errorf("%+v, %v", result, err)
				}
				if result.Replayed {
					replayed.Add(1)
				}
			})
		}
		callers.Wait()
		if runs.Load() != 1 || replayed.Load() != 19 {
			t.Errorf("%d runs, %d replays", runs.Load(), replayed.Load())
		}
	})
}

// What becomes of the reservation after a function that did not succeed.
func TestDoAfterAFailure(t *testing.T) {
	panics := func(context.Context, *client.Reservation) (client.Response, error) { panic("boom") }
	exits := func(context.Context, *client.Reservation) (client.Response, error) {
		runtime.Goexit()
		return client.Response{}, nil
	}
	cut := fmt.Errorf("ask the exchange: %w", context.DeadlineExceeded)
	for _, row := range []struct {
		name    string
		run     func(context.Context, *client.Reservation) (client.Response, error)
		onLapse client.OnLapse
		state   client.State
	}{
		{"an error", returns(client.Response{}, errOwn), client.Reopen, client.StateReleased},
		{"an error, held", returns(client.Response{}, errOwn), client.Hold, client.StatePending},
		{"uncertain", returns(client.Response{}, client.Uncertain(errOwn)), client.Reopen, client.StatePending},
		{"uncertain, held", returns(client.Response{}, client.Uncertain(errOwn)), client.Hold, client.StatePending},
		{"not applied", returns(client.Response{}, client.NotApplied(cut)), client.Reopen, client.StateReleased},
		{"not applied, held", returns(client.Response{}, client.NotApplied(errOwn)), client.Hold, client.StateReleased},
		{"cut off", returns(client.Response{}, cut), client.Reopen, client.StatePending},
		{"cut off, as gRPC says it", returns(client.Response{}, fmt.Errorf("charge: %w", status.Error(codes.DeadlineExceeded, "late"))), client.Reopen, client.StatePending},
		{"a panic", panics, client.Reopen, client.StateReleased},
		{"a panic, held", panics, client.Hold, client.StatePending},
		{"an exit", exits, client.Reopen, client.StateReleased},
		{"an exit, held", exits, client.Hold, client.StatePending},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, start(t, 1))
				var (
					err      error
					panicked any
					taken    *client.Reservation
				)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { panicked = recover() }()
					_, err = c.Do(t.Context(), id("k"), func(ctx context.Context, r *client.Reservation) (client.Response, error) {
						taken = r
						return row.run(ctx, r)
					}, client.WithOnLapse(row.onLapse), client.WithKeepAlive())
				}()
				<-done
				if got := state(t, c, "k"); got != row.state {
					t.Errorf("%v, want %v", got, row.state)
				}
				if taken.Context().Err() == nil {
					t.Error("the ownership goes on")
				}
				if panicked != nil && panicked != "boom" {
					t.Errorf("panicked with %v", panicked)
				}
				if err != nil && !errors.Is(err, errOwn) && !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("not the function's error: %v", err)
				}
			})
		})
	}
}

// What a function says whose context had ended is no more than that it was cut off, in whatever
// words, unless it is marked: what it began may go on. So it is where it has committed by itself,
// which is never followed by a release.
func TestDoAfterItsContextHasEnded(t *testing.T) {
	gone := func(err error) func(context.Context, *client.Reservation, func()) error {
		return func(ctx context.Context, _ *client.Reservation, cancel func()) error {
			cancel()
			<-ctx.Done()
			return err
		}
	}
	for _, row := range []struct {
		name  string
		run   func(ctx context.Context, r *client.Reservation, cancel func()) error
		state client.State
	}{
		{"the caller's", gone(errOwn), client.StatePending},
		{"the caller's, and it panics", func(ctx context.Context, r *client.Reservation, cancel func()) error {
			panic(gone(errOwn)(ctx, r, cancel))
		}, client.StatePending},
		{"the caller's, and it knows better", gone(client.NotApplied(errOwn)), client.StateReleased},
		{"the ownership", func(ctx context.Context, _ *client.Reservation, _ func()) error {
			<-ctx.Done()
			return errOwn
		}, client.StateLapsed},
		{"by a Commit that fails", func(ctx context.Context, r *client.Reservation, _ func()) error {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			return errors.New(r.Commit(over, client.Response{}).Error())
		}, client.StatePending},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, start(t, 1))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				func() {
					defer func() { _ = recover() }()
					_, err := c.Do(ctx, id("k"), func(ctx context.Context, r *client.Reservation) (client.Response, error) {
						return client.Response{}, row.run(ctx, r, cancel)
					}, client.WithPendingTTL(time.Minute))
					if err == nil {
						t.Error("it succeeded")
					}
				}()
				time.Sleep(time.Second) // the owner's deadline comes before that of its record
				if got := state(t, c, "k"); got != row.state {
					t.Errorf("%v, want %v", got, row.state)
				}
			})
		})
	}
}

// The caller is gone and the leader has crashed when the function is done: that is
// recorded all the same.
func TestDoRecordsWhateverHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		c := dial(t, nodes)
		ctx, cancel := context.WithCancel(t.Context())
		result, err := c.Do(ctx, id("k"), func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
			cancel()
			<-ctx.Done()
			nodes.Crash(nodes.AwaitLeader(0))
			return client.Response{Code: 200}, nil
		})
		if err != nil || result.Replayed {
			t.Errorf("%+v, %v", result, err)
		}
		if got := state(t, c, "k"); got != client.StateCommitted {
			t.Errorf("%v", got)
		}
	})
}

// The cluster is away for longer than the bound: that is told, and nothing was released.
func TestDoCannotRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		began := time.Now()
		result, err := c.Do(t.Context(), id("k"), func(context.Context, *client.Reservation) (client.Response, error) {
			nodes.Network.Cut(cluster.ClientHost, "n1")
			return client.Response{Code: 200}, nil
		})
		var unrecorded *client.CommitError
		if !errors.As(err, &unrecorded) || !errors.Is(err, client.ErrUnknown) || result.Response.Code != 200 {
			t.Errorf("%+v, %v", result, err)
		}
		if took := time.Since(began); took < 55*time.Second || took > 61*time.Second {
			t.Errorf("gave up after %v", took)
		}
		nodes.Network.HealAll()
		time.Sleep(time.Second)
		if got := state(t, c, "k"); got != client.StatePending && got != client.StateCommitted {
			t.Errorf("%v", got)
		}
	})
}

// A response that cannot be stored is one that was done.
func TestDoOmitsWhatCannotBeStored(t *testing.T) {
	many := make([]client.Header, 200)
	for i := range many {
		many[i] = client.Header{Name: "a", Value: "b"}
	}
	for name, response := range map[string]client.Response{
		"too large":         {Code: 200, Body: bytes.Repeat([]byte("x"), 1<<20+1)},
		"too large to send": {Code: 200, Body: bytes.Repeat([]byte("x"), 3<<20)},
		"too many headers":  {Code: 200, Headers: many},
		"not text":          {Code: 200, ContentType: "\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, start(t, 1))
				result, err := c.Do(t.Context(), id("k"), returns(response, nil), client.WithCommitRetention(time.Hour))
				if err != nil || len(result.Response.Body) != len(response.Body) || result.Replayed {
					t.Errorf("the first caller: %v", err)
				}
				result, err = c.Do(t.Context(), id("k"), returns(response, nil))
				if want(t, err, client.ErrOmitted); result.Response.Code != 200 || !result.Replayed || !result.Response.Omitted() {
					t.Errorf("the second caller: %+v", result)
				}
			})
		})
	}
}

// A response may have been recorded before a node refuses it, whose limit is smaller: what is
// committed in its place meets it, and is not told that it is another's.
func TestDoDoesNotMistakeItsOwnResponseForAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		commits := 0
		c := dial(t, nodes, intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			if _, commit := request.(*coordinatorv1.CommitRequest); commit {
				commits++
			}
			if commits == 2 {
				return reason.Violation(reason.ResponseTooLarge, "response", "is 100 bytes, the limit is 10")
			}
			err := invoke(ctx, method, request, reply, conn, options...)
			if commits == 1 {
				return reason.Error(reason.OutcomeUnknown, "")
			}
			return err
		}))
		_, err := c.Do(t.Context(), id("k"), returns(client.Response{Code: 200, Body: []byte("whole")}, nil))
		var failed *client.CommitError
		if want(t, err, client.ErrUnknown); !errors.As(err, &failed) || errors.Is(err, client.ErrConflict) || commits != 3 {
			t.Errorf("%v, after %d commits", err, commits)
		}
		record, err := c.Get(t.Context(), id("k"))
		if wantNone(t, err); record.State != client.StateCommitted || record.ResponseBytes != 5 {
			t.Errorf("record: %+v", record)
		}
	})
}

// Nothing is reserved for a function that is not there.
func TestDoWithoutAFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		_, err := c.Do(t.Context(), id("k"), nil)
		want(t, err, client.ErrInvalidArgument)
		_, err = c.Get(t.Context(), id("k"))
		want(t, err, client.ErrNotFound)
	})
}

// An option of the commit that is wrong does not lose the response.
func TestDoWithAWrongRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		_, err := c.Do(t.Context(), id("k"), returns(client.Response{Code: 3}, nil), client.WithCommitRetention(-1))
		wantNone(t, err)
		result, err := c.Do(t.Context(), id("k"), returns(client.Response{}, nil))
		if err != nil || result.Response.Code != 3 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// The function's context ends when the ownership does, and what it did is recorded late.
func TestDoOutlivesItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		work := func(ctx context.Context, _ *client.Reservation) (client.Response, error) {
			select {
			case <-ctx.Done():
				return client.Response{Code: 1}, nil
			case <-time.After(time.Minute):
				return client.Response{Code: 2}, nil
			}
		}
		result, err := c.Do(t.Context(), id("k"), work, client.WithPendingTTL(10*time.Second))
		if err != nil || result.Response.Code != 1 {
			t.Errorf("%+v, %v", result, err)
		}
		result, err = c.Do(t.Context(), id("k2"), work, client.WithPendingTTL(10*time.Second), client.WithKeepAlive())
		if err != nil || result.Response.Code != 2 {
			t.Errorf("renewed: %+v, %v", result, err)
		}
		if _, err := c.Do(t.Context(), client.Identity{}, work); !errors.Is(err, client.ErrInvalidArgument) {
			t.Error(err)
		}
	})
}

// The caller is gone before the function could run: for once that is certain.
func TestDoAfterItsCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := dial(t, start(t, 1), intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			err := invoke(ctx, method, request, reply, conn, options...)
			cancel()
			return err
		}))
		_, err := c.Do(ctx, id("k"), func(context.Context, *client.Reservation) (client.Response, error) {
			t.Error("it runs")
			return client.Response{}, nil
		}, client.WithOnLapse(client.Hold))
		want(t, err, context.Canceled)
		if got := state(t, c, "k"); got != client.StateReleased {
			t.Errorf("%v", got)
		}
	})
}

// A context that was made from several reservations is each one's own.
func TestNestedReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		outer := granted(t, c, "outer")
		inner, err := c.Reserve(outer.Context(), id("inner"))
		wantNone(t, err)
		both, cancel := outer.Within(inner.Context())
		defer cancel()
		wantNone(t, inner.Commit(both, client.Response{}))
		wantNone(t, outer.Commit(both, client.Response{}))
	})
}
