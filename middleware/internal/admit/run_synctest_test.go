package admit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
	"github.com/atmostonce/coordinator/test/cluster"
)

// What a handler's end means for its key, by who says what of it.
func TestWhatBecomesOfTheKey(t *testing.T) {
	const stored, released, pending = client.StateCommitted, client.StateReleased, client.StatePending
	synctest.Test(t, func(t *testing.T) {
		s := settings(t, nodes(t, 1), cluster.ClientHost)
		s.Abort = errors.New("abort")
		for i, row := range []struct {
			name         string
			verdict      verdict.Verdict
			goesOn       bool
			mark         verdict.Verdict
			panics       any
			exits        bool
			late         bool // its context has ended by then
			reopen, hold client.State
		}{
			{name: "stored", verdict: verdict.Store, reopen: stored, hold: stored},
			{name: "released", verdict: verdict.Release, reopen: released, hold: released},
			{name: "uncertain", verdict: verdict.Uncertain, reopen: pending, hold: pending},
			{name: "nobody says", reopen: pending, hold: pending},
			{name: "marked done", verdict: verdict.Release, mark: verdict.Store, reopen: stored, hold: stored},
			{name: "marked not applied", verdict: verdict.Store, mark: verdict.Release, reopen: released, hold: released},
			{name: "marked uncertain", verdict: verdict.Store, mark: verdict.Uncertain, reopen: pending, hold: pending},
			{name: "goes on", verdict: verdict.Release, goesOn: true, reopen: pending, hold: pending},
			{name: "goes on, whatever it marks", goesOn: true, mark: verdict.Release, reopen: pending, hold: pending},
			{name: "panics", panics: "boom", reopen: released, hold: pending},
			{name: "aborts", panics: s.Abort, reopen: released, hold: pending},
			{name: "panics, marked uncertain", panics: "boom", mark: verdict.Uncertain, reopen: pending, hold: pending},
			{name: "panics, marked done", panics: "boom", mark: verdict.Store, reopen: pending, hold: pending},
			{name: "panics, marked not applied", panics: "boom", mark: verdict.Release, reopen: released, hold: released},
			{name: "exits", exits: true, reopen: released, hold: pending},
			{name: "panics late", late: true, panics: "boom", reopen: pending, hold: pending},
			{name: "aborts late", late: true, panics: s.Abort, reopen: pending, hold: pending},
			{name: "exits late", late: true, exits: true, reopen: pending, hold: pending},
			{name: "panics late, marked not applied", late: true, panics: "boom", mark: verdict.Release, reopen: released, hold: released},
			{name: "stored late", late: true, verdict: verdict.Store, reopen: stored, hold: stored},
		} {
			for _, timeout := range []time.Duration{0, time.Minute} {
				for lapse, want := range map[client.OnLapse]client.State{client.Reopen: row.reopen, client.Hold: row.hold} {
					s.OnLapse, s.HandlerTimeout, s.CallerCancels = lapse, timeout, true
					caller, hangUp := context.WithCancel(t.Context())
					defer hangUp()
					key := fmt.Sprint(i, lapse, timeout)
					attempt, err := s.Ask(t.Context(), question(key))
					if err != nil {
						t.Fatal(err)
					}
					script := &script{verdict: row.verdict, goesOn: row.goesOn}
					script.run = func(ctx context.Context) {
						attempt.Mark(row.mark)
						if row.late {
							hangUp()
							<-ctx.Done()
						}
						switch {
						case row.exits:
							runtime.Goexit()
						case row.panics != nil:
							panic(row.panics)
						}
					}
					var panicked any
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { panicked = recover() }()
						if r := attempt.Run(caller, script); r != nil {
							t.Errorf("%s: %v", row.name, r)
						}
					}()
					<-done
					// A handler that ends its goroutine is an abort for its caller.
					wantPanic := row.panics
					if row.exits && timeout > 0 {
						wantPanic = s.Abort
					}
					if panicked != wantPanic {
						t.Errorf("%s, %v: panicked with %v, want %v", row.name, timeout, panicked, wantPanic)
					}
					if got := state(t, s, key); got != want {
						t.Errorf("%s, %s, %v: %s, want %s", row.name, lapse, timeout, got, want)
					}
				}
			}
		}
	})
}

// Beyond its time a handler is cut off, goes on, and is recorded; never released before it has
// returned. One whose caller has a part of the answer is waited for.
func TestBeyondItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settings(t, nodes(t, 1), cluster.ClientHost)
		s.HandlerTimeout = time.Second
		work := func(ctx context.Context) {
			time.Sleep(10 * time.Second)
			if ctx.Err() != nil {
				t.Error("its context ended with its time")
			}
		}
		for _, row := range []struct {
			verdict verdict.Verdict
			begun   bool
			want    client.State
		}{
			{verdict.Store, false, client.StateCommitted},
			{verdict.Release, false, client.StateReleased},
			{verdict.Store, true, client.StateCommitted},
		} {
			key := fmt.Sprint(row)
			attempt, err := s.Ask(t.Context(), question(key))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			script := &script{run: work, verdict: row.verdict, begun: row.begun}
			r := attempt.Run(t.Context(), script)
			took := time.Since(began)
			if row.begun {
				if r != nil || took < 10*time.Second {
					t.Errorf("%v: after %v: %v", row, took, r)
				}
			} else {
				if r == nil || r.Code != refusal.HandlerTimeout || took != time.Second || r.Executed {
					t.Errorf("%v: after %v: %v", row, took, r)
				}
				again, err := s.Ask(t.Context(), question(key))
				refused(t, again, err, refusal.InFlight)
			}
			time.Sleep(10 * time.Second)
			if got := state(t, s, key); got != row.want {
				t.Errorf("%v: %s", row, got)
			}
		}
		// A panic then has nobody to go to, and ends nothing but the attempt.
		attempt, err := s.Ask(t.Context(), question("panic"))
		if err != nil {
			t.Fatal(err)
		}
		attempt.Run(t.Context(), &script{run: func(context.Context) { time.Sleep(2 * time.Second); panic("late") }})
		time.Sleep(5 * time.Second)
		if got := state(t, s, "panic"); got != client.StateReleased {
			t.Errorf("%s", got)
		}
	})
}

// Who is told that the handler goes on has not ended it: what ends a caller's context is its
// server too, once there is an answer. Until then its caller's hanging up does.
func TestItGoesOnThoughItsCallerCouldEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settings(t, nodes(t, 1), cluster.ClientHost)
		s.HandlerTimeout, s.CallerCancels = time.Second, true
		type key struct{}
		for _, row := range []struct {
			name   string
			hangUp time.Duration // after the handler began
			begun  bool          // the caller has a part of the answer, and waits for the rest
			ended  bool
		}{
			{"hangs up behind its answer", 2 * time.Second, false, false},
			{"hangs up before", 500 * time.Millisecond, false, true},
			{"hangs up within its answer", 2 * time.Second, true, true},
		} {
			attempt, err := s.Ask(t.Context(), question(row.name))
			if err != nil {
				t.Fatal(err)
			}
			caller, hangUp := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
			hungUp := errors.New("it hung up")
			script := &script{verdict: verdict.Store, begun: row.begun}
			ended := make(chan error, 1)
			script.run = func(ctx context.Context) {
				time.AfterFunc(row.hangUp, func() { hangUp(hungUp) })
				if ctx.Value(key{}) != "v" {
					t.Errorf("%s: the values of the caller's context are lost", row.name)
				}
				time.Sleep(10 * time.Second)
				ended <- context.Cause(ctx)
			}
			r := attempt.Run(caller, script)
			if (r != nil && r.Code == refusal.HandlerTimeout) == row.begun {
				t.Errorf("%s: %v", row.name, r)
			}
			if cause := <-ended; row.ended && !errors.Is(cause, hungUp) || !row.ended && cause != nil {
				t.Errorf("%s: its context ended with %v", row.name, cause)
			}
			time.Sleep(time.Second)
			if got := state(t, s, row.name); got != client.StateCommitted {
				t.Errorf("%s: %s", row.name, got)
			}
		}
	})
}

// The handler's context ends with the reservation, and with nothing else unless its caller's
// going away is to end it.
func TestTheHandlersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodes(t, 1)
		s := settings(t, c, cluster.ClientHost)
		s.PendingTTL = new(10 * time.Second)
		type key struct{}
		caller, hangUp := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		run := func(name string, work func(ctx context.Context)) *script {
			attempt, err := s.Ask(t.Context(), question(name))
			if err != nil {
				t.Fatal(err)
			}
			script := &script{verdict: verdict.Store, run: work}
			if r := attempt.Run(caller, script); r != nil {
				t.Errorf("%s: %v", name, r)
			}
			return script
		}
		// It lapses while nobody else comes: what was done is recorded late.
		if s := run("lapses", func(ctx context.Context) {
			if ctx.Value(key{}) != "v" {
				t.Error("the values of the caller's context are lost")
			}
			hangUp()
			time.Sleep(time.Second)
			if ctx.Err() != nil {
				t.Error("it ended with its caller")
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), client.ErrLapsed) {
				t.Error(context.Cause(ctx))
			}
		}); !s.ended {
			t.Error("Judge was not told that the context had ended")
		}
		s.CallerCancels = true
		run("hears of it", func(ctx context.Context) {
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Error("it does not hear that its caller has gone")
			}
		})
		s.CallerCancels = false
		// Renewed, it outlasts its window, until somebody takes it away.
		s.KeepAlive = true
		attempt, err := s.Ask(t.Context(), question("renewed"))
		if err != nil {
			t.Fatal(err)
		}
		r := attempt.Run(caller, &script{verdict: verdict.Store, run: func(ctx context.Context) {
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Error("it was not renewed")
			}
			_, err := coordinatorv1.NewAdminServiceClient(c.Conn("n1")).Purge(context.WithoutCancel(ctx), &coordinatorv1.PurgeRequest{
				Identity: &coordinatorv1.Identity{Principal: "me", Operation: "op", Key: "renewed"}, Force: true,
				Target: &coordinatorv1.PurgeRequest_Fence{Fence: attempt.Reservation().Fence()},
			})
			if err != nil {
				t.Error(err)
			}
			began := time.Now()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), client.ErrLost) || time.Since(began) > 4*time.Second {
				t.Errorf("after %v: %v", time.Since(began), context.Cause(ctx))
			}
		}})
		if r == nil || r.Code != refusal.Lost || !r.Executed {
			t.Errorf("%v", r)
		}
	})
}

// The coordinator is away when the handler is done: the caller hears so, within its time;
// recording goes on, and is done once it can be. Nothing is released.
func TestRecordingGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodes(t, 1)
		s, other := settings(t, c, cluster.ClientHost), settings(t, c, "elsewhere")
		attempt, err := s.Ask(t.Context(), question("k"))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r := attempt.Run(t.Context(), &script{verdict: verdict.Store, response: client.Response{Code: 7}, run: func(context.Context) {
			c.Network.Cut(cluster.ClientHost, "n1")
		}})
		if took := time.Since(began); r == nil || r.Code != refusal.Unavailable || !r.Executed || took != 15*time.Second {
			t.Errorf("after %v: %v", took, r)
		}
		again, err := other.Ask(t.Context(), question("k"))
		refused(t, again, err, refusal.InFlight)
		time.Sleep(20 * time.Second)
		c.Network.HealAll()
		time.Sleep(20 * time.Second)
		var committed *client.CommittedError
		if _, err = other.Ask(t.Context(), question("k")); !errors.As(err, &committed) || committed.Response.Code != 7 {
			t.Errorf("%v", err)
		}
	})
}

// A response that the coordinator does not take is recorded as done all the same.
func TestWhatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settings(t, nodes(t, 1), cluster.ClientHost)
		for name, response := range map[string]client.Response{
			"too large": {Code: 201, Body: make([]byte, 1<<20+1)}, "not text": {Code: 201, ContentType: "\xff"},
		} {
			attempt, err := s.Ask(t.Context(), question(name))
			if err != nil {
				t.Fatal(err)
			}
			if r := attempt.Run(t.Context(), &script{verdict: verdict.Store, response: response}); r != nil {
				t.Errorf("%s: %v", name, r)
			}
			var committed *client.CommittedError
			if _, err = s.Ask(t.Context(), question(name)); !errors.As(err, &committed) || !committed.Response.Omitted() || committed.Response.Code != 201 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A response that may have been recorded before it was refused is not lost to another.
func TestWhatWasStoredBeforeItWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		commits := 0
		s := settings(t, nodes(t, 1), cluster.ClientHost, client.WithDialOptions(grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
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
			})))
		attempt, err := s.Ask(t.Context(), question("k"))
		if err != nil {
			t.Fatal(err)
		}
		r := attempt.Run(t.Context(), &script{verdict: verdict.Store, response: client.Response{Code: 7}})
		if r == nil || r.Code != refusal.Unavailable || !r.Executed || commits != 3 {
			t.Errorf("after %d commits: %v", commits, r)
		}
	})
}

// Who is not guarded has no reservation, and marks nothing.
func TestNoAttempt(t *testing.T) {
	var none *Attempt
	if none.Mark(verdict.Store); none.Reservation() != nil {
		t.Error("a reservation of nobody")
	}
}
