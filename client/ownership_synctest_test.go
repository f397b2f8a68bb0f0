package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/cluster"
)

const trip = 50 * time.Millisecond // each way

// The deadline is counted from when the try was sent, whatever the way took, and the
// context ends at that very moment.
func TestTheContextEndsAtTheOwnersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		granted(t, c, "connected")
		nodes.Latency(trip)
		sent := time.Now()
		r := granted(t, c, "k", client.WithPendingTTL(10*time.Second))
		if took := time.Since(sent); took != 2*trip {
			t.Fatalf("Reserve took %v", took)
		}
		deadline, ok := r.Context().Deadline()
		if got := deadline.Sub(sent); !ok || got > 9990*time.Millisecond || got < 9989*time.Millisecond {
			t.Errorf("deadline %v after it was sent", got)
		}
		if err := r.Context().Err(); err != nil {
			t.Errorf("before: %v", err)
		}
		<-r.Context().Done()
		if got := time.Since(sent); got > 9990*time.Millisecond || got < 9989*time.Millisecond {
			t.Errorf("ended %v after it was sent", got)
		}
		if r.Context().Err() != context.DeadlineExceeded || !errors.Is(context.Cause(r.Context()), client.ErrLapsed) || r.Remaining() != 0 {
			t.Errorf("over: %v, %v, %v", r.Context().Err(), context.Cause(r.Context()), r.Remaining())
		}
		// The coordinator's own deadline is later: nobody else had it before.
		_, err := c.Reserve(t.Context(), id("k"))
		want(t, err, client.ErrPending)
	})
}

// What the call waited before it was granted belongs to the window.
func TestTheWindowBeginsAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		first := granted(t, c, "k")
		nodes.Latency(trip)
		go func() {
			time.Sleep(20 * time.Second)
			_ = first.Release(context.Background(), "")
		}()
		sent := time.Now()
		r := granted(t, c, "k", client.WithWait(30*time.Second), client.WithPendingTTL(10*time.Second))
		deadline, _ := r.Context().Deadline()
		// 10 s from the grant, which was one trip before the answer came, less 0.1 % of all
		// 30 s.
		early := sent.Add(29950 * time.Millisecond)
		if deadline.Before(early) || deadline.After(early.Add(3*trip)) {
			t.Errorf("deadline %v after it was sent", deadline.Sub(sent))
		}
	})
}

// A try whose answer is lost grants no time: the deadline is counted from the try that was
// answered, and that says what is left.
func TestTheDeadlineIsOfTheTryThatWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		c := dial(t, start(t, 1), intercept(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			err := invoke(ctx, method, request, reply, conn, options...)
			if tries.Add(1) == 1 && err == nil {
				<-ctx.Done() // the answer does not arrive
				return status.FromContextError(ctx.Err()).Err()
			}
			return err
		}))
		sent := time.Now()
		r := granted(t, c, "k", client.WithPendingTTL(10*time.Second))
		if took := time.Since(sent); took < 3*time.Second || tries.Load() != 2 || r.Attempt() != 1 {
			t.Fatalf("%v, %d tries, attempt %d", took, tries.Load(), r.Attempt())
		}
		deadline, _ := r.Context().Deadline()
		if got := deadline.Sub(sent); got > 10*time.Second || got < 9980*time.Millisecond {
			t.Errorf("deadline %v after the first try was sent", got)
		}
	})
}

func TestExtendMovesTheDeadlineAndNeverBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(10*time.Second))
		nodes.Latency(trip)
		derived, cancel := context.WithCancel(r.Context())
		defer cancel()
		time.Sleep(9 * time.Second)
		sent := time.Now()
		wantNone(t, r.Extend(t.Context(), 20*time.Second))
		check := func() {
			t.Helper()
			deadline, _ := r.Context().Deadline()
			if got := deadline.Sub(sent); got > 19981*time.Millisecond || got < 19979*time.Millisecond {
				t.Errorf("deadline %v after it was sent", got)
			}
		}
		check()
		wantNone(t, r.Extend(t.Context(), time.Second))
		check()
		<-derived.Done()
		if got := time.Since(sent); got > 19981*time.Millisecond || got < 19979*time.Millisecond {
			t.Errorf("ended %v after it was sent", got)
		}
	})
}

// An Extend whose answer comes after the deadline revives nothing.
func TestALateExtendRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(time.Second))
		nodes.Latency(300 * time.Millisecond)
		time.Sleep(600 * time.Millisecond)
		want(t, r.Extend(t.Context(), time.Minute), client.ErrLapsed)
		if r.Context().Err() == nil {
			t.Error("it goes on")
		}
	})
}

// A grant that is over when it arrives is not returned, and the key is free: nobody has
// acted, and under Hold nobody has to find that out.
func TestAGrantThatIsOverIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		granted(t, c, "connected")
		nodes.Latency(200 * time.Millisecond)
		r, err := c.Reserve(t.Context(), id("k"), client.WithPendingTTL(100*time.Millisecond), client.WithOnLapse(client.Hold))
		if want(t, err, client.ErrLapsed); r != nil {
			t.Fatal(r)
		}
		record, err := c.Get(t.Context(), id("k"))
		wantNone(t, err)
		if record.State != client.StateReleased || record.Attempt != 3 || !record.Late {
			t.Errorf("record: %+v", record)
		}
	})
}

// A machine that was suspended: Go's timers stood still, the clock did not.
func TestAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		began := time.Now()
		var suspended atomic.Int64
		c := dial(t, nodes, client.WithClock(func() time.Duration {
			return time.Since(began) + time.Duration(suspended.Load())
		}))
		r := granted(t, c, "k", client.WithPendingTTL(time.Minute))
		other := granted(t, c, "k2", client.WithPendingTTL(time.Minute))
		kept := granted(t, c, "k3", client.WithPendingTTL(time.Minute))
		defer kept.KeepAlive(t.Context())()
		within, cancel := other.Within(t.Context())
		defer cancel()
		time.Sleep(time.Second)
		suspended.Store(int64(time.Hour))
		for range 2 { // the error of a context stays what it was
			if r.Context().Err() != context.DeadlineExceeded || within.Err() != context.DeadlineExceeded || r.Remaining() != 0 {
				t.Errorf("right after: %v, %v, %v", r.Context().Err(), within.Err(), r.Remaining())
			}
		}
		select {
		case <-r.Context().Done():
		default:
			t.Error("Err says that it is over and Done does not")
		}
		woke := time.Now()
		<-kept.Context().Done()
		if late := time.Since(woke); late > time.Second {
			t.Errorf("Done is closed %v after the wake", late)
		}
		want(t, kept.Extend(t.Context(), 0), client.ErrLapsed)
	})
}

// A suspend from which the machine wakes before the deadline: there is time to renew, and
// that is not slept through.
func TestKeepAliveAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		began := time.Now()
		var suspended atomic.Int64
		c := dial(t, nodes, client.WithClock(func() time.Duration {
			return time.Since(began) + time.Duration(suspended.Load())
		}))
		r := granted(t, c, "k", client.WithPendingTTL(time.Hour))
		defer r.KeepAlive(t.Context())()
		time.Sleep(time.Minute)
		suspended.Store(int64(45 * time.Minute))
		time.Sleep(2 * time.Second)
		if left := r.Remaining(); left < 59*time.Minute {
			t.Errorf("%v left two seconds after the wake", left)
		}
	})
}

func TestKeepAliveHoldsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 3))
		r := granted(t, c, "k", client.WithPendingTTL(3*time.Second))
		stop := r.KeepAlive(t.Context())
		for range 60 {
			time.Sleep(time.Second)
			if err := r.Context().Err(); err != nil {
				t.Fatal(err)
			}
			if left := r.Remaining(); left < 1900*time.Millisecond {
				t.Errorf("only %v were left", left)
			}
			_, err := c.Reserve(t.Context(), id("k"))
			want(t, err, client.ErrPending)
		}
		stop()
		stop()
		if r.Context().Err() != nil {
			t.Error("stop ends the renewals and not the reservation")
		}
		<-r.Context().Done()
		wantNone(t, r.Commit(t.Context(), client.Response{}))
	})
}

// What limits work that is renewed is not lost, though it is later than the deadline of the
// moment: that moves on, so nothing that is made from the context may rely on it.
func TestLimitsOfWorkThatIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		r := granted(t, c, "k", client.WithPendingTTL(10*time.Second))
		callers, hangUp := context.WithTimeout(t.Context(), time.Hour)
		defer hangUp()
		within, cancel := r.Within(callers)
		defer cancel()
		stop := r.KeepAlive(t.Context())
		if at, ok := r.Context().Deadline(); ok {
			t.Errorf("it says that it ends in %v", time.Until(at))
		}
		if at, ok := within.Deadline(); !ok || time.Until(at) != time.Hour {
			t.Errorf("the caller's deadline is in %v, %v", time.Until(at), ok)
		}
		ofItsOwn, cancelOwn := context.WithTimeout(r.Context(), 15*time.Second)
		defer cancelOwn()
		ofTheCaller, cancelCallers := context.WithTimeout(within, 15*time.Second)
		defer cancelCallers()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if ofItsOwn.Err() != context.DeadlineExceeded || ofTheCaller.Err() != context.DeadlineExceeded || r.Context().Err() != nil || within.Err() != nil {
			t.Errorf("%v, %v; %v, %v", ofItsOwn.Err(), ofTheCaller.Err(), r.Context().Err(), within.Err())
		}
		stop()
		<-r.Context().Done()
	})
}

// Someone has purged the record by force: the next renewal hears of it.
func TestKeepAliveEndsWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		c := dial(t, nodes)
		r := granted(t, c, "k", client.WithPendingTTL(30*time.Second))
		defer r.KeepAlive(t.Context())()
		_, err := coordinatorv1.NewAdminServiceClient(nodes.Conn("n1")).Purge(t.Context(), &coordinatorv1.PurgeRequest{
			Identity: &coordinatorv1.Identity{Operation: "op", Key: "k"}, Force: true,
			Target: &coordinatorv1.PurgeRequest_Fence{Fence: r.Fence()},
		})
		wantNone(t, err)
		began := time.Now()
		<-r.Context().Done()
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("heard of it after %v", took)
		}
		want(t, context.Cause(r.Context()), client.ErrLost)
		if r.Context().Err() != context.Canceled {
			t.Error(r.Context().Err())
		}
	})
}

// The owner is cut off: its context ends before anybody else is admitted.
func TestKeepAliveEndsWhatCannotBeProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		owner, other := dial(t, nodes), dial(t, nodes, client.WithDialer(nodes.Network.Host("elsewhere").Dial))
		r := granted(t, owner, "k", client.WithPendingTTL(5*time.Second))
		stop := r.KeepAlive(t.Context())
		defer stop()
		time.Sleep(20 * time.Second)
		for _, name := range nodes.Names {
			nodes.Network.Cut(cluster.ClientHost, name)
		}
		ended := make(chan time.Time, 1)
		go func() {
			<-r.Context().Done()
			ended <- time.Now()
		}()
		next, err := other.Reserve(t.Context(), id("k"), client.WithWait(time.Minute))
		wantNone(t, err)
		select {
		case at := <-ended:
			t.Logf("ended %v before the next one was granted", time.Since(at))
		default:
			t.Error("two owners at once")
		}
		if next.Previous().End != client.PreviousLapsed || !errors.Is(context.Cause(r.Context()), client.ErrLapsed) {
			t.Errorf("previous %+v, cause %v", next.Previous(), context.Cause(r.Context()))
		}
		nodes.Network.HealAll()
		want(t, r.Commit(t.Context(), client.Response{}), client.ErrLost)
	})
}

func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		r := granted(t, c, "k", client.WithPendingTTL(time.Minute))
		type key struct{}
		parent, giveUp := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
		within, cancel := r.Within(parent)
		defer cancel()
		if within.Value(key{}) != "v" || within.Err() != nil {
			t.Error("not the parent's")
		}
		soon, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		limited, cancelLimited := r.Within(soon)
		if at, _ := limited.Deadline(); time.Until(at) > time.Second {
			t.Error("the parent's deadline is the earlier one")
		}
		cancelLimited()
		reason := errors.New("reason")
		giveUp(reason)
		if within.Err() != context.Canceled || !errors.Is(context.Cause(within), reason) || r.Context().Err() != nil {
			t.Errorf("%v, %v, %v", within.Err(), context.Cause(within), r.Context().Err())
		}
		short, cancelShort := granted(t, c, "k2", client.WithPendingTTL(10*time.Second)).Within(t.Context())
		defer cancelShort()
		<-short.Done()
		if short.Err() != context.DeadlineExceeded || !errors.Is(context.Cause(short), client.ErrLapsed) {
			t.Errorf("at the owner's deadline: %v, %v", short.Err(), context.Cause(short))
		}
		again, cancelAgain := r.Within(t.Context())
		defer cancelAgain()
		wantNone(t, r.Release(t.Context(), ""))
		<-again.Done()
		if !errors.Is(context.Cause(again), client.ErrSettled) {
			t.Error(context.Cause(again))
		}
	})
}
