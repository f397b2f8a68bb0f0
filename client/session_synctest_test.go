package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// wire counts what goes over a client's connections.
type wire struct {
	calls, sessions, open atomic.Int64
}

type wireKey struct{}

// TagRPC implements stats.Handler.
func (w *wire) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	session := info.FullMethodName == "/coordinator.v1.CoordinatorService/Session"
	if session {
		w.sessions.Add(1)
		w.open.Add(1)
	} else {
		w.calls.Add(1)
	}
	return context.WithValue(ctx, wireKey{}, session)
}

// HandleRPC implements stats.Handler.
func (w *wire) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, end := event.(*stats.End); end && ctx.Value(wireKey{}) == true {
		w.open.Add(-1)
	}
}

// TagConn implements stats.Handler.
func (*wire) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*wire) HandleConn(context.Context, stats.ConnStats) {}

func (w *wire) watch() client.DialOption {
	return client.WithDialOptions(grpc.WithStatsHandler(w))
}

// crowd runs a function for many at once.
func crowd(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// Many calls at once share streams; each is answered as by itself.
func TestManyCallsShareAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		nodes.Latency(time.Millisecond)
		var w wire
		c := dial(t, nodes, w.watch(), client.WithSessions(true))
		granted(t, c, "first") // from now on it knows its cluster
		var won, pending, mismatched, replayed atomic.Int64
		crowd(400, func(i int) {
			key := fmt.Sprint("k", i%100)
			r, err := c.Reserve(t.Context(), id(key), client.WithFingerprint([]byte{byte(i / 300)}))
			var committed *client.CommittedError
			switch {
			case err == nil:
				won.Add(1)
				if err := r.Extend(t.Context(), time.Hour); err != nil {
					t.Error(err)
				}
				if err := r.Commit(t.Context(), client.Response{Code: 7, Body: []byte(key)}); err != nil {
					t.Error(err)
				}
			case errors.As(err, &committed):
				replayed.Add(1)
				if string(committed.Response.Body) != key {
					t.Errorf("%s: replayed %q", key, committed.Response.Body)
				}
			case errors.Is(err, client.ErrPending):
				pending.Add(1)
			case errors.Is(err, client.ErrFingerprintMismatch):
				mismatched.Add(1)
			default:
				t.Error(err)
			}
		})
		if won.Load() != 100 || won.Load()+pending.Load()+mismatched.Load()+replayed.Load() != 400 {
			t.Errorf("%d granted, %d pending, %d mismatched, %d replayed", won.Load(), pending.Load(), mismatched.Load(), replayed.Load())
		}
		t.Logf("%d calls by themselves, %d sessions", w.calls.Load(), w.sessions.Load())
		if w.sessions.Load() == 0 || w.calls.Load() > 200 {
			t.Errorf("%d calls of 600 went by themselves, and %d sessions were opened", w.calls.Load(), w.sessions.Load())
		}
		// Nobody uses it any more.
		time.Sleep(time.Minute)
		if open := w.open.Load(); open != 0 {
			t.Errorf("%d sessions are open", open)
		}
		// It is opened again, and closed with the client.
		crowd(100, func(i int) { granted(t, c, fmt.Sprint("again", i)) })
		wantNone(t, c.Close())
		synctest.Wait()
		if open := w.open.Load(); open != 0 {
			t.Errorf("%d sessions are open after Close", open)
		}
	})
}

// A stream names its cluster once, as it is opened. So none is opened before that is known: what
// was asked first of a node of another cluster would be carried out there from then on.
func TestNoStreamIsSharedForAClusterThatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		nodes.Latency(time.Millisecond)
		var named, nameless atomic.Int64
		c := dial(t, nodes, client.WithSessions(true), client.WithDialOptions(grpc.WithChainStreamInterceptor(
			func(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
				sent, _ := metadata.FromOutgoingContext(ctx)
				if slices.Equal(sent.Get("coordinator-cluster"), []string{""}) {
					nameless.Add(1)
				} else {
					named.Add(1)
				}
				return open(ctx, description, conn, method, options...)
			})))
		for round := range 2 {
			crowd(100, func(i int) { granted(t, c, fmt.Sprint(round, "k", i)) })
		}
		if named.Load() == 0 || nameless.Load() != 0 {
			t.Errorf("%d streams named their cluster, and %d named none", named.Load(), nameless.Load())
		}
	})
}

// Who has interceptors, or metadata for one call, has a stream for each.
func TestCallsThatAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		nodes.Latency(time.Millisecond)
		var w wire
		watched := dial(t, nodes, w.watch())
		crowd(50, func(i int) { granted(t, watched, fmt.Sprint("a", i)) })
		tagged := metadata.AppendToOutgoingContext(t.Context(), "tenant", "t")
		shared := dial(t, nodes, w.watch(), client.WithSessions(true))
		crowd(50, func(i int) {
			if _, err := shared.Reserve(tagged, id(fmt.Sprint("b", i))); err != nil {
				t.Error(err)
			}
		})
		large := client.Response{Body: make([]byte, 200<<10)}
		crowd(20, func(i int) {
			r, err := shared.Reserve(tagged, id(fmt.Sprint("c", i)))
			if err != nil {
				t.Error(err)
				return
			}
			if err := r.Commit(t.Context(), large); err != nil {
				t.Error(err)
			}
		})
		if n := w.sessions.Load(); n != 0 {
			t.Errorf("%d sessions", n)
		}
	})
}

// A coordinator that knows no sessions is called as before.
func TestACoordinatorWithoutSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		nodes.Latency(time.Millisecond) // else nobody waits for anybody
		var tries atomic.Int64
		c := dial(t, nodes, client.WithSessions(true), client.WithDialOptions(grpc.WithStreamInterceptor(
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
				tries.Add(1)
				return nil, status.Error(codes.Unimplemented, "unknown method Session")
			})))
		for round := range 3 {
			crowd(100, func(i int) { granted(t, c, fmt.Sprint(round, "-", i)) })
		}
		if tries.Load() != 1 {
			t.Errorf("a session was tried %d times", tries.Load())
		}
	})
}

// A coordinator that has as many sessions as it may is called without one, and asked again
// after a while.
func TestACoordinatorWithoutRoomForASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		nodes.Latency(time.Millisecond) // else nobody waits for anybody
		others, leave := context.WithCancel(t.Context())
		defer leave()
		var tries, calls atomic.Int64
		c := dial(t, nodes, client.WithSessions(true), client.WithDialOptions(grpc.WithStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
				if tries.Add(1) == 1 {
					for range 16 { // those of others, over a connection that is shared
						stream, err := open(others, desc, conn, method)
						if err != nil {
							return nil, err
						}
						_ = stream.SendMsg(&coordinatorv1.SessionRequest{Calls: []*coordinatorv1.SessionCall{{Id: 1}}})
						if err := stream.RecvMsg(&coordinatorv1.SessionResponse{}); err != nil {
							return nil, err
						}
					}
				}
				return open(ctx, desc, conn, method, options...)
			}), grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
				calls.Add(1)
				return call(ctx, method, request, answer, conn, options...)
			})))
		for round := range 3 {
			crowd(100, func(i int) { granted(t, c, fmt.Sprint(round, "-", i)) })
		}
		if tries.Load() != 1 || calls.Load() != 300 {
			t.Errorf("a session was tried %d times, and of 300 calls %d were made by themselves", tries.Load(), calls.Load())
		}
		leave()
		time.Sleep(10 * time.Second)
		crowd(100, func(i int) { granted(t, c, fmt.Sprint("again", i)) })
		if tries.Load() != 2 || calls.Load() > 350 {
			t.Errorf("a session was tried %d times, and of 400 calls %d were made by themselves", tries.Load(), calls.Load())
		}
	})
}

// A node of another cluster refuses a session as it refuses a call: nothing was done here, and
// nobody is told that it may have been.
func TestASessionWithAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		nodes.Latency(100 * time.Microsecond)
		var w wire
		// It is over before the pause after the first try is, so that no try is cut off.
		c := dial(t, nodes, w.watch(), client.WithSessions(true), client.WithCluster(strings.Repeat("0f", 16)), client.WithCallTimeout(12*time.Millisecond))
		crowd(100, func(i int) {
			_, err := c.Reserve(t.Context(), id(fmt.Sprint("k", i)))
			if want(t, err, client.ErrUnavailable); errors.Is(err, client.ErrUnknown) {
				t.Error(err)
			}
		})
		if w.sessions.Load() == 0 {
			t.Error("there was no session")
		}
	})
}

// A caller that has gone is answered at once, whatever the session does, and those beside
// it go on.
func TestACallerOfASessionThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 1)
		nodes.Latency(time.Millisecond)
		var w wire
		c := dial(t, nodes, w.watch(), client.WithSessions(true))
		crowd(100, func(i int) { granted(t, c, fmt.Sprint("first", i)) })
		nodes.Network.Isolate("n1")
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		began := time.Now()
		crowd(60, func(i int) {
			_, err := c.Reserve(ctx, id(fmt.Sprint("second", i)))
			want(t, err, context.DeadlineExceeded)
			var failed *client.Error
			if !errors.As(err, &failed) {
				t.Errorf("%v", err)
			}
		})
		if took := time.Since(began); took != 700*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		nodes.Heal()
		time.Sleep(10 * time.Second)
		crowd(60, func(i int) { granted(t, c, fmt.Sprint("third", i)) })
	})
}

// Sessions break while calls are under way: nodes crash, stop and hand over. Every call is
// made again and told the truth: one grant a key, and what is committed stays.
func TestSessionsThatBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		nodes.Latency(time.Millisecond)
		var w wire
		c := dial(t, nodes, w.watch(), client.WithSessions(true), client.WithCallTimeout(time.Minute))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 3 {
				time.Sleep(2 * time.Second)
				leader := nodes.AwaitLeader(0)
				nodes.Crash(leader)
				time.Sleep(3 * time.Second)
				nodes.StartNode(leader)
				time.Sleep(3 * time.Second)
				_ = nodes.Handover(0, "")
				time.Sleep(time.Second)
				stopped := nodes.AwaitLeader(0)
				nodes.StopNode(stopped)
				nodes.StartNode(stopped)
			}
		}()
		const keys = 60
		var fences sync.Map
		for round := 0; ; round++ {
			select {
			case <-done:
				t.Logf("%d rounds, %d calls by themselves, %d sessions", round, w.calls.Load(), w.sessions.Load())
				if w.sessions.Load() < 4 {
					t.Errorf("only %d sessions: nothing broke", w.sessions.Load())
				}
				return
			default:
			}
			crowd(keys, func(i int) {
				key := fmt.Sprint(round, "-", i)
				r, err := c.Reserve(t.Context(), id(key))
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				if r.Attempt() != 1 {
					t.Errorf("%s: attempt %d", key, r.Attempt())
				}
				if other, twice := fences.LoadOrStore(r.Fence(), key); twice {
					t.Errorf("%s and %s have fence %d", key, other, r.Fence())
				}
				if err := r.Commit(t.Context(), client.Response{Body: []byte(key)}); err != nil {
					t.Errorf("%s: %v", key, err)
				}
				_, err = c.Reserve(t.Context(), id(key))
				var committed *client.CommittedError
				if !errors.As(err, &committed) || string(committed.Response.Body) != key {
					t.Errorf("%s: %v", key, err)
				}
			})
			time.Sleep(50 * time.Millisecond)
		}
	})
}
