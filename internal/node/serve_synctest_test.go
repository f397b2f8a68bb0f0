package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// alone starts one node.
func (w *world) alone() *Node {
	w.t.Helper()
	n := w.start("n1", func(c *Config) { c.Peers = nil })
	w.serving()
	return n
}

// begin begins a call over a connection, and sends nothing.
func begin(ctx context.Context, t *testing.T, over *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	stream, err := over.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// Whoever begins to ask how a node is, and does not go on, keeps nobody else from it for long.
func TestHealthIsToldToOthers(t *testing.T) {
	for _, connections := range []int{1, 8} {
		t.Run(fmt.Sprint(connections, " connections"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.alone()
				other := healthv1.NewHealthClient(w.client("n1"))
				check := func() error {
					_, err := other.Check(t.Context(), &healthv1.HealthCheckRequest{})
					return err
				}
				if err := check(); err != nil {
					t.Fatal(err)
				}
				for range connections {
					mute := w.client("n1")
					for range looksMax / connections {
						begin(t.Context(), t, mute, healthv1.Health_Check_FullMethodName)
					}
				}
				synctest.Wait()
				began := time.Now()
				for err := check(); err != nil; err = check() {
					if failed := reason.Of(err); failed.Reason != reason.Overloaded {
						t.Fatal(err)
					}
					if time.Since(began) > 5*time.Second {
						t.Fatalf("others were kept out for %v", time.Since(began))
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		})
	}
}

// Streams of what only shows something last as long as their client wants. So a connection has no
// more than some of them, and all together keep nobody from what is no stream.
func TestStreamsThatShowSomethingAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alone()
		ctx, cancel := context.WithCancel(t.Context())
		watch := func(over *grpc.ClientConn) error {
			stream, err := healthv1.NewHealthClient(over).Watch(ctx, &healthv1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}
		var first *grpc.ClientConn
		for i := range looksMax / looksOfConnectionMax {
			over := w.client("n1")
			for range looksOfConnectionMax {
				if err := watch(over); err != nil {
					t.Fatal(err)
				}
			}
			if i == 0 {
				first = over
				if err := watch(over); reason.Of(err).Reason != reason.Overloaded {
					t.Errorf("one more of a connection: %v", err)
				}
			}
		}
		another := w.client("n1")
		if err := watch(another); reason.Of(err).Reason != reason.Overloaded {
			t.Errorf("one more of all: %v", err)
		}
		if _, err := healthv1.NewHealthClient(first).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
			t.Errorf("what is no stream: %v", err)
		}
		cancel()
		synctest.Wait()
		ctx = t.Context()
		for _, over := range []*grpc.ClientConn{first, another} {
			if err := watch(over); err != nil {
				t.Errorf("once the others have ended: %v", err)
			}
		}
	})
}

// Whatever a port offers ends after a time if its message does not come, but for streams.
func TestWhatAPortOffersEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.alone()
		most := n.cfg.Calls.WantedForDefault + admission.WaitMax
		offered := n.public.GetServiceInfo()
		for name := range n.internal.GetServiceInfo() {
			if _, too := offered[name]; !too {
				t.Errorf("the peer port offers %s, which is to be looked at there", name)
			}
		}
		var streams, others []string
		began := time.Now()
		over := w.client("n1")
		ends := make(chan string, 100)
		for service, info := range offered {
			for _, method := range info.Methods {
				name := "/" + service + "/" + method.Name
				if method.IsClientStream || method.IsServerStream {
					streams = append(streams, name)
				} else {
					others = append(others, name)
				}
				stream := begin(t.Context(), t, over, name)
				go func() {
					err := stream.RecvMsg(new(healthv1.HealthCheckResponse))
					if status.Code(err) != codes.DeadlineExceeded || time.Since(began) != most {
						name = fmt.Sprintf("%s, after %v: %v", name, time.Since(began), err)
					}
					ends <- name
				}()
			}
		}
		var ended []string
		time.Sleep(2 * most)
		for len(ends) > 0 {
			ended = append(ended, <-ends)
		}
		slices.Sort(ended)
		slices.Sort(others)
		if !slices.Equal(ended, others) || len(streams) < 4 {
			t.Errorf("ended: %q\nwant: %q\nstreams: %q", ended, others, streams)
		}
	})
}
