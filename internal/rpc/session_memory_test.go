package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/rpc/rpctest"
	"github.com/atmostonce/coordinator/internal/shard"
)

// What sessions may take is held against the memory that they do take: of clients that open all
// the sessions they get, send all that is taken from them and read nothing.
func TestSessionsTakeWhatTheyAreCountedAt(t *testing.T) {
	if os.Getenv(aloneVariable) == "" {
		runAlone(t)
		return
	}
	const (
		bound       = 32 << 20
		connections = 2
		sessions    = 16 * connections
		mostOpen    = bound / 4 / (416 << 10)
	)
	forwarded := reserveCall(&coordinatorv1.ReserveRequest{Identity: key("k"), AttemptId: attempt(1)})
	refused := commitCall(&coordinatorv1.CommitRequest{Identity: key("k")})
	large := commitCall(&coordinatorv1.CommitRequest{
		Identity: key("k"), Token: admission.Token{Fence: 1}.String(), Response: &coordinatorv1.Response{Body: make([]byte, 40<<10)},
	})
	for name, test := range map[string]struct {
		call  *coordinatorv1.SessionCall
		calls int // in a message
		least int
	}{
		"every call is forwarded to a node that does not answer": {forwarded, 5000, bound / 2},
		"every call is answered":                                 {refused, 5000, 0},
		"large calls are forwarded to a node that takes nothing": {large, 9, bound / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counted := rpc.NewCalls()
				n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.SessionBytesMax, cfg.Calls = bound, []*rpc.Calls{counted} })
				listener := bufconn.Listen(1 << 10)
				n.serve(t, listener)
				far := muteServer(t, test.calls)
				n.shards.Dial = func(shard.Leader) (grpc.ClientConnInterface, error) { return far, nil }
				n.shards.All(func(r *rpctest.Replica) { r.SetLeader(leaderNamed("n2")) })
				// A connection to the other node is there before any memory is counted.
				ctx, cancel := context.WithCancel(t.Context())
				go func() { _, _ = n.coordinator.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: key("first")}) }()
				var clients []*bareClient
				for range connections {
					clients = append(clients, dialBare(t, listener))
				}
				var calls []*coordinatorv1.SessionCall
				for i := range test.calls {
					call := proto.CloneOf(test.call)
					call.Id = uint64(i + 1)
					calls = append(calls, call)
				}
				flood := bytes.Repeat(messageOf(t, calls...), 4) // of which one is taken, and a part of the next

				before := inUse()
				for i := range sessions {
					client, stream := clients[i%connections], uint32(2*(i/connections)+1)
					client.open(stream)
					client.send(stream, flood)
				}
				synctest.Wait()
				took := inUse() - before
				t.Logf("%d KiB in use of %d", took>>10, bound>>10)
				if took > bound || took < test.least {
					t.Errorf("%d bytes are in use, the bound is %d", took, bound)
				}
				if open := counted.Sessions(); open != mostOpen {
					t.Errorf("%d sessions are open, there is room for %d", open, mostOpen)
				}
				cancel()
				for _, client := range clients {
					_ = client.connection.Close()
				}
				n.server.Stop()
				_, _ = n.connection.Close(), far.Close()
			})
		})
	}
}

// A message whose calls wait is counted, too: a session that sends one for which there is no room
// ends by name, and the others go on.
func TestMessagesOfSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) {
			leaderless(cfg)
			cfg.Settings.SessionBytesMax = 16 << 20 // of which 4 MiB are for messages, and 8 for 315 calls
		})
		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(shard.Leader{}) })
		var small []*coordinatorv1.SessionCall
		for i := range 400 {
			small = append(small, reserveCall(&coordinatorv1.ReserveRequest{Identity: key(fmt.Sprint(i))}))
		}
		large := func() []*coordinatorv1.SessionCall {
			call := commitCall(&coordinatorv1.CommitRequest{Identity: key("k"), Token: "x", Response: &coordinatorv1.Response{Body: make([]byte, 900<<10)}})
			return []*coordinatorv1.SessionCall{call, proto.CloneOf(call)}
		}
		first := openSession(t, n.coordinator)
		ids := first.send(small...)
		synctest.Wait()
		second, third, fourth := openSession(t, n.coordinator), openSession(t, n.coordinator), openSession(t, n.coordinator)
		waiting := append(second.send(large()...), third.send(large()...)...)
		synctest.Wait()
		fourth.send(large()...)
		_, err := fourth.stream.Recv()
		wantReason(t, err, reason.Overloaded)

		n.shards.All(func(r *rpctest.Replica) { r.SetLeader(self("n1")) })
		for _, id := range ids {
			if first.answer(id).GetReserve().GetGranted() == nil {
				t.Fatal("not granted")
			}
		}
		for i, s := range []*session{second, second, third, third} {
			wantReason(t, failed(s.answer(waiting[i])), reason.InvalidArgument)
		}
		again := openSession(t, n.coordinator)
		for _, id := range again.send(large()...) {
			wantReason(t, failed(again.answer(id)), reason.InvalidArgument)
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// aloneVariable is set in a process that does nothing but one test.
const aloneVariable = "COORDINATOR_TEST_ALONE"

// runAlone runs a test in a process of its own: memory is counted of all that goes on in one, and
// what the tests before have left goes when it pleases.
func runAlone(t *testing.T) {
	t.Helper()
	program, err := os.Executable()
	wantNone(t, err)
	command := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), aloneVariable+"=yes")
	said, err := command.CombinedOutput()
	t.Logf("%s", said)
	if err != nil || !bytes.Contains(said, []byte("--- PASS: "+t.Name())) {
		t.Errorf("alone: %v", err)
	}
}

// inUse is the memory that is in use: the heap, without garbage, and stacks. What tests before have
// left behind goes in several steps: pools keep it until the second collection, finalizers until they
// have run. So collections go on until they find nothing worth mentioning.
func inUse() int {
	const negligible = 64 << 10
	for last := math.MaxInt; ; {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		now := int(stats.HeapAlloc + stats.StackInuse)
		if now > last-negligible {
			return now
		}
		last = now
	}
}

// messageOf is a message of a session as gRPC frames it.
func messageOf(t *testing.T, calls ...*coordinatorv1.SessionCall) []byte {
	t.Helper()
	return framed(t, &coordinatorv1.SessionRequest{Calls: calls})
}

// framed is a message as a call sends it.
func framed(t *testing.T, message proto.Message) []byte {
	t.Helper()
	framed, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 5), message)
	wantNone(t, err)
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-5))
	return framed
}

// bareClient opens sessions with next to no memory of its own, sends as much as flow control
// lets it, and takes no answer: the windows that it gives are never renewed.
type bareClient struct {
	t          *testing.T
	connection net.Conn
	framer     *http2.Framer
	ended      chan struct{} // closed with the connection

	mu      sync.Mutex
	windows map[uint32]int // by stream; 0 is the connection's
	initial int            // of a stream
	data    int            // frames of answers
}

func dialBare(t *testing.T, listener *bufconn.Listener) *bareClient {
	t.Helper()
	connection, err := listener.Dial()
	wantNone(t, err)
	c := &bareClient{
		t: t, connection: connection, framer: http2.NewFramer(connection, connection), ended: make(chan struct{}),
		windows: map[uint32]int{0: 65535}, initial: 65535,
	}
	_, err = io.WriteString(connection, http2.ClientPreface)
	wantNone(t, err)
	wantNone(t, c.framer.WriteSettings())
	go c.receive()
	synctest.Wait()
	wantNone(t, c.framer.WriteSettingsAck())
	return c
}

func (c *bareClient) receive() {
	defer close(c.ended)
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if initial, ok := frame.Value(http2.SettingInitialWindowSize); ok {
				c.initial = int(initial)
			}
		case *http2.WindowUpdateFrame:
			c.windows[frame.StreamID] += int(frame.Increment)
		case *http2.DataFrame:
			c.data++
		}
		c.mu.Unlock()
	}
}

// answers is how many have come, where each takes one frame.
func (c *bareClient) answers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.data
}

func (c *bareClient) open(stream uint32) {
	c.t.Helper()
	c.begin(stream, coordinatorv1.CoordinatorService_Session_FullMethodName)
}

// begin begins a call of any method.
func (c *bareClient) begin(stream uint32, method string) {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "n1"},
		{Name: ":path", Value: method},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		wantNone(c.t, encoder.WriteField(field))
	}
	c.mu.Lock()
	c.windows[stream] = c.initial
	c.mu.Unlock()
	wantNone(c.t, c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
}

// send sends what is taken, and returns how much that was.
func (c *bareClient) send(stream uint32, data []byte) (sent int) {
	c.t.Helper()
	for sent < len(data) {
		synctest.Wait()
		c.mu.Lock()
		most := min(c.windows[0], c.windows[stream], 16<<10, len(data)-sent)
		c.windows[0] -= max(0, most)
		c.windows[stream] -= max(0, most)
		c.mu.Unlock()
		if most <= 0 {
			break
		}
		wantNone(c.t, c.framer.WriteData(stream, false, data[sent:sent+most]))
		sent += most
	}
	return sent
}

// muteServer is a connection to a node that takes calls and answers none, with next to no memory
// of its own.
func muteServer(t *testing.T, calls int) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 10)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		framer := http2.NewFramer(connection, connection)
		if _, err := io.ReadFull(connection, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		_ = framer.WriteSettings()
		if calls > 1000 {
			_ = framer.WriteWindowUpdate(0, 1<<30)
		}
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	connection, err := grpc.NewClient("passthrough:///mute", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithStaticStreamWindowSize(shard.StreamWindow), grpc.WithStaticConnWindowSize(shard.ConnectionWindow))
	wantNone(t, err)
	return connection
}
