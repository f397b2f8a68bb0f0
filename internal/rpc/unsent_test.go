package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

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
	body = bytes.Repeat([]byte{7}, 1<<20)
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
// longer; who takes little by little stays.
func TestWhoTakesNothingKeepsNobodyForLong(t *testing.T) {
	const bound, clients = 8 << 20, 3
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.UnsentBytesMax = bound })
		listener := bufconn.Listen(1 << 10)
		n.serve(t, listener)
		body := commitLarge(t, n, "k")
		framed, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 5), &coordinatorv1.GetRequest{Identity: key("k"), IncludeBody: true})
		wantNone(t, err)
		binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-5))
		var slow []*bareClient
		for range clients {
			client := dialBare(t, listener)
			for i := range 2 * bound >> 20 {
				stream := uint32(2*i + 1)
				client.begin(stream, coordinatorv1.CoordinatorService_Get_FullMethodName)
				wantNone(t, client.framer.WriteData(stream, true, framed))
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

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
