package rpc_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// stalling is a connection that stops reading while it is told to.
type stalling struct {
	net.Conn
	mu      sync.Mutex
	resumed chan struct{} // nil while it reads
}

func (s *stalling) stall() (resume func()) {
	resumed := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumed = resumed
	return func() { close(resumed) }
}

// Read implements net.Conn. What was on its way when the stall began comes through.
func (s *stalling) Read(into []byte) (int, error) {
	s.mu.Lock()
	resumed := s.resumed
	s.mu.Unlock()
	if resumed != nil {
		<-resumed
	}
	return s.Conn.Read(into)
}

// dialTCP returns a client of a node over a TCP connection that can stall.
func dialTCP(t *testing.T, n *node) (client *grpc.ClientConn, connection func() *stalling) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.serve(t, listener)
	dialed := make(chan *stalling, 8)
	client = dial(t, func(ctx context.Context, _ string) (net.Conn, error) {
		raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		s := &stalling{Conn: raw}
		dialed <- s
		return s, nil
	})
	return client, func() *stalling { return <-dialed }
}

// commitLarge commits a response with a body of 1 MiB that does not compress well.
func commitLarge(t *testing.T, n *node, name string) (body []byte) {
	t.Helper()
	return commitBody(t, n, name, 1<<20)
}

func commitBody(t *testing.T, n *node, name string, size int) (body []byte) {
	t.Helper()
	body = bytes.Repeat([]byte{7}, size)
	grant := granted(t, n, &coordinatorv1.ReserveRequest{Identity: key(name)})
	_, err := n.coordinator.Commit(withTimeout(t), &coordinatorv1.CommitRequest{
		Identity: key(name), Token: grant.GetToken(), Response: &coordinatorv1.Response{Body: body},
	})
	wantNone(t, err)
	return body
}

// A client that asks for much and reads nothing costs what the bound says, and no more;
// it keeps nobody else from an answer; and what it held is given back when it reads or
// goes.
func TestAClientThatDoesNotRead(t *testing.T) {
	for _, test := range []struct {
		name string
		ask  func(context.Context, coordinatorv1.CoordinatorServiceClient) (body []byte, err error)
	}{
		{"get", func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient) ([]byte, error) {
			answer, err := c.Get(ctx, &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
			return answer.GetRecord().GetResponse().GetBody(), err
		}},
		{"reserve", func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient) ([]byte, error) {
			answer, err := c.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("k")})
			return answer.GetCommitted().GetResponse().GetBody(), err
		}},
	} {
		for _, forwarded := range []bool{false, true} {
			for _, goes := range []bool{false, true} {
				name := test.name
				if forwarded {
					name += ", forwarded"
				}
				if goes {
					name += ", until it goes"
				}
				t.Run(name, func(t *testing.T) {
					const bound, calls = 8 << 20, 300
					small := func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = bound }
					var n *node
					if forwarded {
						n, _ = startTwo(t, small)
					} else {
						n = start(t, "n1", small)
					}
					body := commitLarge(t, n, "k")
					client, dialed := dialTCP(t, n)
					slow := coordinatorv1.NewCoordinatorServiceClient(client)
					if got, err := test.ask(withTimeout(t), slow); err != nil || !bytes.Equal(got, body) {
						t.Fatalf("%d bytes, %v", len(got), err)
					}
					connection := dialed()

					before := heap()
					resume := connection.stall()
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					errs := make(chan error, calls)
					handled := n.handled.Load()
					for range calls {
						go func() {
							got, err := test.ask(ctx, slow)
							if err == nil && !bytes.Equal(got, body) {
								t.Error("another body")
							}
							errs <- err
						}()
					}
					// The server is through with all of them, though nobody reads.
					for n.handled.Load() < handled+calls {
						if ctx.Err() != nil {
							t.Fatalf("%d of %d calls were carried out", n.handled.Load()-handled, calls)
						}
						runtime.Gosched()
					}
					// Both ends are in this process, and two nodes where it is forwarded.
					if grown := heap() - before; grown > 4*bound {
						t.Errorf("the heap has grown by %d MiB", grown>>20)
					}
					// Others are answered.
					if got, err := test.ask(withTimeout(t), n.coordinator); err != nil || !bytes.Equal(got, body) {
						t.Errorf("another client: %d bytes, %v", len(got), err)
					}

					if goes {
						_ = connection.Close()
					}
					resume()
					full := 0
					for range calls {
						if err := <-errs; reason.Of(err).Reason == reason.Overloaded {
							full++
						} else if err != nil && !goes {
							t.Errorf("got %v", err)
						}
					}
					if !goes && (full < calls-2*bound>>20 || full == calls) {
						t.Errorf("%d of %d calls were refused", full, calls)
					}
					// All of it is given back.
					for n.unsent() > 0 && ctx.Err() == nil {
						runtime.Gosched()
					}
					if held := n.unsent(); held != 0 {
						t.Errorf("%d bytes are held for nobody", held)
					}
				})
			}
		}
	}
}

// Who takes nothing keeps others from their answers for as long as a client of a session may, and no
// longer.
func TestWhoTakesNothingKeepsNobodyForLong(t *testing.T) {
	const bound, clients = 8 << 20, 3
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = bound })
		listener := bufconn.Listen(1 << 10)
		n.serve(t, listener)
		body := commitLarge(t, n, "k")
		request := framed(t, &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
		var slow []*bareClient
		for range clients {
			client := dialBare(t, listener)
			for i := range 2 * bound >> 20 {
				stream := uint32(2*i + 1)
				client.begin(stream, coordinatorv1.CoordinatorService_Get_FullMethodName)
				wantNone(t, client.framer.WriteData(stream, true, request))
			}
			slow = append(slow, client)
		}
		get := func() error {
			answer, err := n.coordinator.Get(t.Context(), &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
			if err == nil && !bytes.Equal(answer.GetRecord().GetResponse().GetBody(), body) {
				t.Error("another body")
			}
			return err
		}
		synctest.Wait()
		for range 9 {
			wantReason(t, get(), reason.Overloaded)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		wantNone(t, get())
		synctest.Wait()
		for i, client := range slow {
			if _, err := io.Copy(io.Discard, client.connection); err != nil || n.unsent() != 0 {
				t.Errorf("connection %d goes on: %v; %d bytes are held", i, err, n.unsent())
			}
			_ = client.connection.Close()
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// Who takes an answer now and then, and asks for another, keeps others from theirs three times as long
// as who takes nothing, and no longer, whether its answers are of calls or of a session.
func TestWhoTakesLittleByLittleKeepsNobodyForLong(t *testing.T) {
	const bound, answer, clients = 1 << 20, 100 << 10, 2
	const each = bound / 2 / answer // of which one connection may have as many
	for name, ask := range map[string]func(c *bareClient, asked int) (stream uint32){
		"calls": func(c *bareClient, asked int) uint32 {
			stream := uint32(2*asked + 1)
			c.begin(stream, coordinatorv1.CoordinatorService_Get_FullMethodName)
			wantNone(t, c.framer.WriteData(stream, true, framed(t, &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})))
			return stream
		},
		"a session": func(c *bareClient, asked int) uint32 {
			if asked == 0 {
				c.open(1)
			}
			call := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k")})
			call.Id = uint64(asked + 1)
			wantNone(t, c.framer.WriteData(1, false, messageOf(t, call)))
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = bound })
				listener := bufconn.Listen(1 << 20)
				n.serve(t, listener)
				body := commitBody(t, n, "k", answer)
				var slow []*bareClient
				waiting := make([][]uint32, clients) // streams, in the order of what was asked
				for i := range clients {
					c := dialBare(t, listener)
					wantNone(t, c.framer.WriteWindowUpdate(0, 1<<30))
					for asked := range each {
						waiting[i] = append(waiting[i], ask(c, asked))
						synctest.Wait()
					}
					slow = append(slow, c)
				}
				began := time.Now()
				for second := 1; ; second++ {
					time.Sleep(time.Second)
					got, err := n.coordinator.Get(t.Context(), &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
					if err == nil {
						if !bytes.Equal(got.GetRecord().GetResponse().GetBody(), body) {
							t.Error("another body")
						}
						break
					}
					wantReason(t, err, reason.Overloaded)
					if time.Since(began) > time.Minute {
						t.Fatalf("others were kept out for %v", time.Since(began))
					}
					if second%9 != 0 {
						continue
					}
					for i, c := range slow { // each takes the oldest, and asks for another
						wantNone(t, c.framer.WriteWindowUpdate(waiting[i][0], answer+1<<10))
						synctest.Wait()
						waiting[i] = append(waiting[i][1:], ask(c, each-1+second/9))
						synctest.Wait()
					}
				}
				if took := time.Since(began); took < 29*time.Second || took > 31*time.Second {
					t.Errorf("others were kept out for %v", took)
				}
				for i, c := range slow {
					select {
					case <-c.ended:
					default:
						t.Errorf("connection %d goes on", i)
					}
					_ = c.connection.Close()
				}
				synctest.Wait()
				if n.unsent() != 0 {
					t.Errorf("%d bytes are held", n.unsent())
				}
				n.server.Stop()
				_ = n.connection.Close()
			})
		})
	}
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
