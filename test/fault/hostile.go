package fault

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	proc "github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

// attack is one thing that a stranger does to one port of a node.
type attack struct {
	kind string
	do   func(ctx context.Context, f *forger, n *process.Node) error
}

// residentMax is what a node may have on its heap under attack: what it has otherwise is
// a fifth of it.
const residentMax = 1 << 30

// hostile does an attack to all three nodes at a time, and looks at their memory.
func hostile(a attack) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		f, err := newForger(sc.c)
		if err != nil {
			return err
		}
		failures := make([]error, len(sc.c.Nodes))
		var attacking sync.WaitGroup
		for i, n := range sc.c.Nodes {
			attacking.Go(func() {
				bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
				defer cancel()
				if err := a.do(bounded, f, n); err != nil {
					failures[i] = fmt.Errorf("%s: %w", n.Name, err)
				}
			})
			sc.did("attack: " + a.kind)
		}
		attacking.Wait()
		for _, n := range sc.c.Nodes {
			memory, err := proc.ReadMemory(n.PID())
			if err == nil && memory.Anonymous > residentMax {
				failures = append(failures, fmt.Errorf("%s has %d MiB of memory", n.Name, memory.Anonymous>>20))
			}
		}
		return errors.Join(failures...)
	}
}

// attacks returns what strangers do to the two ports.
func attacks() []attack {
	return []attack{
		{"garbage at the gRPC port", func(ctx context.Context, _ *forger, n *process.Node) error { return garbage(ctx, n.Client) }},
		{"garbage at the peer port", func(ctx context.Context, _ *forger, n *process.Node) error { return garbage(ctx, n.Peer) }},
		{"half-open connections at the gRPC port", func(ctx context.Context, _ *forger, n *process.Node) error { return halfOpen(ctx, n.Client) }},
		{"half-open connections at the peer port", func(ctx context.Context, _ *forger, n *process.Node) error { return halfOpen(ctx, n.Peer) }},
		{"huge HTTP/2 frames", func(ctx context.Context, _ *forger, n *process.Node) error { return hugeFrames(ctx, n.Client) }},
		{"floods of HTTP/2 pings, settings, resets", func(ctx context.Context, _ *forger, n *process.Node) error { return floods(ctx, n.Client) }},
		{"oversized and malformed calls", malformedCalls},
		{"peer headers of others, and damaged ones", strangeHeaders},
		{"a peer connection with garbage for messages", garbledMessages},
		{"Raft messages of a stranger, terms absurd", func(ctx context.Context, f *forger, n *process.Node) error { return strangersVotes(f, n) }},
	}
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(20 * time.Second)
		}
		_ = conn.SetDeadline(deadline)
	}
	return conn, err
}

// garbage sends random bytes of all lengths.
func garbage(ctx context.Context, address string) error {
	for size := 1; size <= 1<<20; size *= 4 {
		conn, err := dial(ctx, address)
		if err != nil {
			return err
		}
		noise := make([]byte, size)
		_, _ = cryptorand.Read(noise)
		_, _ = conn.Write(noise) // it may be closed in the middle
		_ = conn.Close()
	}
	return nil
}

// halfOpen opens many connections that say nothing, or half a word.
func halfOpen(ctx context.Context, address string) error {
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	for i := range 400 {
		conn, err := dial(ctx, address)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		open = append(open, conn)
		switch i % 3 {
		case 1:
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n"))
		case 2:
			_, _ = conn.Write([]byte("\xadACP\x02"))
		}
	}
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
	}
	return nil
}

// hugeFrames begins frames that are longer than anybody takes.
func hugeFrames(ctx context.Context, address string) error {
	for _, kind := range []byte{0x0, 0x1, 0x4, 0x6, 0x8, 0x9, 0xff} {
		conn, err := dial(ctx, address)
		if err != nil {
			return err
		}
		frame := []byte{0xff, 0xff, 0xff, kind, 0, 0, 0, 0, 1}
		_, _ = conn.Write(append([]byte(http2.ClientPreface), frame...))
		_, _ = conn.Write(make([]byte, 1<<20))
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<20))
		_ = conn.Close()
	}
	return nil
}

// floods sends each of some frames many times.
func floods(ctx context.Context, address string) error {
	for _, flood := range []func(*http2.Framer, uint32) error{
		func(f *http2.Framer, _ uint32) error { return f.WritePing(false, [8]byte{1}) },
		func(f *http2.Framer, _ uint32) error { return f.WriteSettings() },
		func(f *http2.Framer, i uint32) error {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: callHeaders(), EndHeaders: true}); err != nil {
				return err
			}
			return f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		func(f *http2.Framer, i uint32) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: callHeaders(), EndHeaders: true})
		},
		func(f *http2.Framer, i uint32) error { return f.WriteWindowUpdate(0, 1) },
		func(f *http2.Framer, i uint32) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: callHeaders()})
			}
			return f.WriteContinuation(1, false, bytes.Repeat([]byte{0x40, 1, 'x', 1, 'y'}, 200))
		},
	} {
		conn, err := dial(ctx, address)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		_, _ = conn.Write([]byte(http2.ClientPreface))
		framer := http2.NewFramer(conn, nil)
		err = framer.WriteSettings()
		for i := uint32(0); i < 5000 && err == nil && ctx.Err() == nil; i++ {
			err = flood(framer, i) // until the node has had enough
		}
		_ = conn.Close()
	}
	return nil
}

func callHeaders() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/coordinator.v1.CoordinatorService/Reserve"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // a buffer takes everything
	}
	return block.Bytes()
}

// raw is a codec that sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) {
	if b, ok := v.([]byte); ok {
		return b, nil
	}
	return nil, fmt.Errorf("not bytes: %T", v)
}
func (raw) Unmarshal([]byte, any) error { return nil }

// malformedCalls makes calls that are refused, each for what is wrong with it.
func malformedCalls(ctx context.Context, _ *forger, n *process.Node) error {
	conn, err := connect(n.Client, grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer conn.Close()
	service := coordinatorv1.NewCoordinatorServiceClient(conn)
	noise := make([]byte, 4096)
	_, _ = cryptorand.Read(noise)
	long := strings.Repeat("x", 100_000)
	const reserve = "/coordinator.v1.CoordinatorService/Reserve"
	calls := []struct {
		kind string
		want []codes.Code
		call func(context.Context) error
	}{
		{"a message of 32 MiB", []codes.Code{codes.ResourceExhausted}, func(ctx context.Context) error {
			return conn.Invoke(ctx, reserve, make([]byte, 32<<20), new([]byte), grpc.ForceCodec(raw{}))
		}},
		{"noise for a message", []codes.Code{codes.Internal, codes.InvalidArgument}, func(ctx context.Context) error {
			return conn.Invoke(ctx, reserve, noise, new([]byte), grpc.ForceCodec(raw{}))
		}},
		{"a message that claims to be longer", []codes.Code{codes.Internal, codes.InvalidArgument}, func(ctx context.Context) error {
			return conn.Invoke(ctx, reserve, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 'x'}, new([]byte), grpc.ForceCodec(raw{}))
		}},
		{"deeply nested groups", []codes.Code{codes.Internal, codes.InvalidArgument}, func(ctx context.Context) error {
			return conn.Invoke(ctx, reserve, bytes.Repeat([]byte{0x7b}, 1<<20), new([]byte), grpc.ForceCodec(raw{}))
		}},
		{"an unknown method", []codes.Code{codes.Unimplemented}, func(ctx context.Context) error {
			return conn.Invoke(ctx, "/coordinator.v1.CoordinatorService/Admit", noise[:0], new([]byte), grpc.ForceCodec(raw{}))
		}},
		{"a key of 100,000 bytes", []codes.Code{codes.InvalidArgument}, func(ctx context.Context) error {
			_, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: long}})
			return err
		}},
		{"a key that is no UTF-8", []codes.Code{codes.InvalidArgument}, func(ctx context.Context) error {
			_, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: "\xff\xfe"}})
			return err
		}},
		{"no identity", []codes.Code{codes.InvalidArgument}, func(ctx context.Context) error {
			_, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{})
			return err
		}},
		{"a token of noise", []codes.Code{codes.InvalidArgument}, func(ctx context.Context) error {
			_, err := service.Commit(ctx, &coordinatorv1.CommitRequest{Identity: &coordinatorv1.Identity{Key: "k"}, Token: long})
			return err
		}},
		{"metadata of 200 KiB", []codes.Code{codes.Internal, codes.Unavailable, codes.ResourceExhausted, codes.Unknown}, func(ctx context.Context) error {
			ctx = metadata.AppendToOutgoingContext(ctx, "padding", long, "more", long)
			_, err := service.Get(ctx, &coordinatorv1.GetRequest{Identity: &coordinatorv1.Identity{Key: "k"}})
			return err
		}},
	}
	for _, c := range calls {
		bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := c.call(bounded)
		cancel()
		code, expected := status.Code(err), false
		for _, want := range c.want {
			expected = expected || code == want
		}
		if !expected {
			return fmt.Errorf("%s was answered with %w", c.kind, err)
		}
	}
	return nil
}

// strangeHeaders opens peer connections that are meant for others, or for nobody.
func strangeHeaders(ctx context.Context, f *forger, n *process.Node) error {
	others := *f
	others.cluster = "00000000000000000000000000000000"
	if conn, err := others.open(ctx, n.Name, 0, stranger()); err == nil {
		_ = conn.Close()
		return errors.New("it took a connection of another cluster")
	}
	for name, target := range f.targets {
		if name == n.Name {
			continue
		}
		meant := forger{cluster: f.cluster, life: f.life, targets: map[string]raft.ServerID{n.Name: target}, ports: f.ports}
		if conn, err := meant.open(ctx, n.Name, 0, stranger()); err == nil {
			_ = conn.Close()
			return fmt.Errorf("it took a connection that is meant for %s", name)
		}
	}
	if conn, err := f.open(ctx, n.Name, 77, stranger()); err == nil {
		_ = conn.Close()
		return errors.New("it took a connection for a shard that there is not")
	}
	header := append([]byte("\xadACP\x02\x01"), 0xff, 0xff)
	for cut := range header {
		conn, err := dial(ctx, n.Peer)
		if err != nil {
			return err
		}
		_, _ = conn.Write(header[:cut+1])
		_ = conn.Close()
	}
	return nil
}

// garbledMessages opens good connections and sends what is no message on them.
func garbledMessages(ctx context.Context, f *forger, n *process.Node) error {
	noise := make([]byte, 1<<20)
	_, _ = cryptorand.Read(noise)
	claims := func(code byte) []byte { return binary.BigEndian.AppendUint32([]byte{code}, math.MaxUint32) }
	payloads := [][]byte{
		noise,
		{0xff},
		bytes.Repeat([]byte{0x91}, 1<<20), // arrays in arrays
		bytes.Repeat([]byte{0x81}, 1<<20), // maps in maps
		claims(0xdd),                      // an array of four billion
		claims(0xdf),                      // a map of four billion
		claims(0xdb),                      // a text of 4 GiB
		claims(0xc6),                      // bytes, 4 GiB
		append(append([]byte{0x81, 0xa7}, "Entries"...), claims(0xdd)...),
		append(append([]byte{0x81, 0xa4}, "Addr"...), claims(0xc6)...),
		append(append([]byte{0x81, 0xa4}, "Data"...), claims(0xdb)...),
	}
	failures := make(chan error, 6)
	for kind := range byte(6) {
		go func() { failures <- garble(ctx, f, n, kind, payloads) }()
	}
	var failed []error
	for range 6 {
		failed = append(failed, <-failures)
	}
	return errors.Join(failed...)
}

// garble sends payloads, each on a connection of its own, as messages of a kind.
func garble(ctx context.Context, f *forger, n *process.Node, kind byte, payloads [][]byte) error {
	for _, payload := range payloads {
		conn, err := f.open(ctx, n.Name, int(kind)%shardsOfSuite, stranger())
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond)) // some wait for more
		_, _ = conn.Write(append([]byte{kind}, payload...))
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
		_ = conn.Close()
	}
	return nil
}

// strangersVotes sends well-formed Raft messages of one who is no member.
func strangersVotes(f *forger, n *process.Node) error {
	as := stranger()
	for shard := range shardsOfSuite {
		trans := f.messages(n.Name, shard, as)
		for _, term := range []uint64{0, 1, 1 << 40, math.MaxInt64, math.MaxUint64} {
			header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(as), Addr: []byte("stranger@127.0.0.1:1")}
			var vote raft.RequestVoteResponse
			err := trans.RequestVote(f.targets[n.Name], "", &raft.RequestVoteRequest{
				RPCHeader: header, Term: term, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64, LeadershipTransfer: true,
			}, &vote)
			if err == nil && vote.Granted {
				return fmt.Errorf("shard %d voted for a stranger in term %d", shard, term)
			}
			var preVote raft.RequestPreVoteResponse
			err = trans.RequestPreVote(f.targets[n.Name], "", &raft.RequestPreVoteRequest{
				RPCHeader: header, Term: term, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64,
			}, &preVote)
			if err == nil && preVote.Granted {
				return fmt.Errorf("shard %d would vote for a stranger in term %d", shard, term)
			}
			// A leader of the past is not listened to, nor one of a term that is not to be believed.
			var appended raft.AppendEntriesResponse
			err = trans.AppendEntries(f.targets[n.Name], "", &raft.AppendEntriesRequest{
				RPCHeader: header, Term: term,
				PrevLogEntry: 0, LeaderCommitIndex: math.MaxUint64,
				Entries: []*raft.Log{{Index: 1, Term: term, Type: raft.LogCommand, Data: []byte{1}}},
			}, &appended)
			if err == nil && appended.Success {
				return fmt.Errorf("shard %d took entries of a stranger in term %d", shard, term)
			}
			var installed raft.InstallSnapshotResponse
			err = trans.InstallSnapshot(f.targets[n.Name], "", &raft.InstallSnapshotRequest{
				RPCHeader: header, SnapshotVersion: raft.SnapshotVersionMax, Term: term, LastLogIndex: math.MaxUint64, LastLogTerm: term, Size: 3,
			}, &installed, strings.NewReader("bad"))
			if err == nil && installed.Success {
				return fmt.Errorf("shard %d took a state of a stranger in term %d", shard, term)
			}
		}
		_ = trans.Close()
		trans.CloseStreams()
	}
	return nil
}

// forgedLeader claims, as somebody, to lead every shard of a node in a term.
func forgedLeader(f *forger, n *process.Node, as raft.ServerID, term uint64) error {
	var failures []error
	for shard := range shardsOfSuite {
		trans := f.messages(n.Name, shard, as)
		address := []byte(string(as) + "@127.0.0.1:1")
		var answer raft.AppendEntriesResponse
		err := trans.AppendEntries(f.targets[n.Name], "", &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(as), Addr: address},
			Term:      term,
		}, &answer)
		if err != nil {
			failures = append(failures, fmt.Errorf("shard %d: %w", shard, err))
		}
		_ = trans.Close()
		trans.CloseStreams()
	}
	return errors.Join(failures...)
}
