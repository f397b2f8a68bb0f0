// Package middleware tests both guards on real nodes, which are killed and started again.
package middleware

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
	"github.com/atmostonce/coordinator/test/process"
)

// programs are the nodes' programs; TestMain has built them.
var programs process.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "middleware")
	if err == nil {
		programs, err = process.Build(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
		http.DefaultClient.CloseIdleConnections()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// guarded is one guarded operation, and how often it ran for each key.
type guarded struct {
	ask  func(key string) (refusal string) // "": it is done
	runs sync.Map                          // by key: *atomic.Int64
}

func (g *guarded) ran(key string) {
	n, _ := g.runs.LoadOrStore(key, &atomic.Int64{})
	n.(*atomic.Int64).Add(1)
}

func overHTTP(t *testing.T, c *client.Client) *guarded {
	g := &guarded{}
	guard := httpadmit.New(c, httpadmit.WithPrincipal(func(*http.Request) string { return "me" }), httpadmit.WithKeyRequired(),
		httpadmit.WithLogger(slog.New(slog.DiscardHandler)))
	server := httptest.NewServer(guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := httpadmit.Reservation(r.Context()).Identity().Key
		g.ran(key)
		_, _ = io.WriteString(w, key)
	})))
	t.Cleanup(server.Close)
	g.ask = func(key string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("{}"))
		if err != nil {
			return err.Error()
		}
		r.Header.Set("Idempotency-Key", `"`+key+`"`)
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		switch {
		case err != nil:
			return err.Error()
		case answer.StatusCode == http.StatusOK && string(body) == key:
			return ""
		}
		return string(body)
	}
	return g
}

func overGRPC(t *testing.T, c *client.Client) *guarded {
	g := &guarded{}
	guard := grpcadmit.New(c, grpcadmit.WithPrincipal(func(context.Context) string { return "me" }), grpcadmit.WithKeyRequired(),
		grpcadmit.WithLogger(slog.New(slog.DiscardHandler)))
	g.ask = func(key string) string {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpcadmit.MetadataKey, key))
		answer, err := guard(ctx, wrapperspb.String("{}"), &grpc.UnaryServerInfo{FullMethod: "/test.Orders/Place"}, func(ctx context.Context, _ any) (any, error) {
			key := grpcadmit.Reservation(ctx).Identity().Key
			g.ran(key)
			return wrapperspb.String(key), nil
		})
		if err != nil {
			return fmt.Sprint(status.Convert(err).Proto())
		}
		if got, ok := answer.(*wrapperspb.StringValue); !ok || got.GetValue() != key {
			return fmt.Sprint("another answer: ", answer)
		}
		return ""
	}
	return g
}

// Requests come all the time, while the leader is killed, while nobody is there, and after all
// are back: with everything by default nobody waits long for an answer, a retry with the same
// key gets through in the end, and nothing runs twice.
func TestThroughRealFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills real nodes")
	}
	for name, guard := range map[string]func(*testing.T, *client.Client) *guarded{"http": overHTTP, "grpc": overGRPC} {
		t.Run(name, func(t *testing.T) {
			nodes := process.Start(t, programs, 3)
			c, err := client.Dial(nodes.Endpoints())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			g := guard(t, c)

			var (
				mu         sync.Mutex
				phase      string
				done       = map[string]int{}
				refused    = map[string]int{}
				unrecorded = map[string]int{}           // it was carried out, and the caller told so
				slowest    = map[string]time.Duration{} // of those that are done
				longest    = map[string]time.Duration{} // of those that are refused
			)
			enter := func(name string) { mu.Lock(); defer mu.Unlock(); phase = name }
			count := func(of map[string]int, name string) int { mu.Lock(); defer mu.Unlock(); return of[name] }
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var callers sync.WaitGroup
			for caller := range 6 {
				callers.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						key := fmt.Sprintf("%s-%d-%d", name, caller, i)
						for answered := false; !answered; {
							mu.Lock()
							in := phase
							mu.Unlock()
							began := time.Now()
							refusal := g.ask(key)
							took := time.Since(began)
							mu.Lock()
							if phase != in {
								in += ", then " + phase
							}
							switch {
							case refusal == "":
								done[in]++
								slowest[in] = max(slowest[in], took)
							case strings.Contains(refusal, "executed"): // WithSettleWait has passed
								unrecorded[in]++
							default:
								refused[in]++
								longest[in] = max(longest[in], took)
							}
							mu.Unlock()
							answered = refusal == ""
							switch {
							case answered:
							case strings.Contains(refusal, "IDEMPOTENCY_UNAVAILABLE"), strings.Contains(refusal, "IDEMPOTENCY_IN_FLIGHT"):
								pause := time.NewTimer(100 * time.Millisecond)
								<-pause.C
							default:
								t.Errorf("%s: %s", key, refusal)
								return
							}
						}
					}
				})
			}
			until := func(what string, is func() bool) {
				t.Helper()
				deadline, tick := time.NewTimer(2*time.Minute), time.NewTicker(20*time.Millisecond)
				defer deadline.Stop()
				defer tick.Stop()
				for !is() {
					select {
					case <-tick.C:
					case <-deadline.C:
						t.Fatalf("it did not come to this: %s", what)
					}
				}
			}
			enter("all are there")
			until("requests are carried out", func() bool { return count(done, "all are there") > 100 })
			leader, err := nodes.LeaderOfMost(30 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			enter("the leader is killed")
			if err := leader.Kill(); err != nil {
				t.Fatal(err)
			}
			until("requests are carried out by two", func() bool { return count(done, "the leader is killed") > 100 })
			until("the kill is got over", func() bool { return count(done, "the leader is killed") > 300 })
			enter("nobody is there")
			for _, node := range nodes.Nodes {
				if node.Running() {
					if err := node.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			}
			until("requests are refused", func() bool { return count(refused, "nobody is there") > 12 })
			enter("all are back")
			for _, node := range nodes.Nodes {
				if err := node.Start(); err != nil {
					t.Fatal(err)
				}
			}
			until("requests are carried out again", func() bool { return count(done, "all are back") > 100 })
			stop()
			callers.Wait()

			keys := 0
			g.runs.Range(func(key, n any) bool {
				keys++
				if ran := n.(*atomic.Int64).Load(); ran != 1 {
					t.Errorf("%v ran %d times", key, ran)
				}
				return true
			})
			phases := map[string]bool{}
			for _, of := range []map[string]int{done, refused, unrecorded} {
				for phase := range of {
					phases[phase] = true
				}
			}
			for _, phase := range slices.Sorted(maps.Keys(phases)) {
				t.Logf("%s: %d done within %v, %d refused within %v, %d done and not recorded in time", phase,
					done[phase], slowest[phase].Round(time.Millisecond), refused[phase], longest[phase].Round(time.Millisecond), unrecorded[phase])
				// 3 s by default, for a machine that has other work too.
				if longest[phase] > 10*time.Second {
					t.Errorf("%s: a refusal took %v", phase, longest[phase])
				}
			}
			t.Logf("%d keys", keys)
		})
	}
}
