package actor

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// lonely is the stream layer of a group of one: nobody ever calls.
type lonely struct{ closed chan struct{} }

func (l lonely) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l lonely) Close() error              { close(l.closed); return nil }
func (l lonely) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (l lonely) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, errors.New("there is nobody to call")
}

// testShard is a real group of one voter with its actor, on real files.
type testShard struct {
	*Actor
	t     testing.TB
	dir   string
	group *raftfsm.Group
	fates *fates
}

// openShard starts a shard and waits until it serves. Whatever the configuration's
// function changes is changed before.
func openShard(t testing.TB, dir string, adjust func(*Config)) *testShard {
	t.Helper()
	return openShardOn(t, dir, store.Config{}, adjust)
}

// openShardOn starts a shard whose state has bounds of its own.
func openShardOn(t testing.TB, dir string, state store.Config, adjust func(*Config)) *testShard {
	t.Helper()
	const self raft.ServerID = "n1/00112233445566778899aabbccddeeff"
	group, err := raftfsm.Open(raftfsm.GroupConfig{
		Dir:            filepath.Join(dir, "0000"),
		Identification: store.Identification{ClusterID: "test", Shard: 0, Shards: 1},
		Create:         true,
		Store:          state,
		Self:           self,
		Layer:          lonely{closed: make(chan struct{})},
		Bootstrap:      raftfsm.Voters(raft.Server{ID: self, Address: "127.0.0.1:1"}),
		Logger:         slog.New(slog.DiscardHandler),
		Fatal:          func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &testShard{t: t, dir: dir, group: group, fates: &fates{Group: group}}
	cfg := Default()
	cfg.Group, cfg.Store, cfg.Logger = s.fates, group.Store(), slog.New(slog.DiscardHandler)
	if adjust != nil {
		adjust(&cfg)
	}
	if s.Actor, err = Start(cfg); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := s.Submit(t.Context(), Request{Received: time.Now()})
		if err == nil {
			return s
		}
		if !errors.Is(err, ErrNoLeader) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *testShard) close() {
	s.t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		s.t.Errorf("Stop: %v", err)
	}
	if err := s.group.Close(context.Background()); err != nil {
		s.t.Errorf("Close: %v", err)
	}
}

// inBubble runs a test against a fresh shard in virtual time.
func inBubble(t *testing.T, adjust func(*Config), test func(t *testing.T, s *testShard)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openShard(t, dir, adjust)
		defer s.close()
		test(t, s)
	})
}

func (s *testShard) lastIndex() uint64 {
	_, _, last := s.group.Indexes()
	return last
}

// fates is the real group, except where a test has decided what befalls a proposal.
type fates struct {
	*raftfsm.Group
	mu    sync.Mutex
	next  []fate
	ticks []error // what befalls the next entries that nobody has asked for
}

// fate is what befalls the next entry with commands: the real group gets it or not,
// and the caller hears the error, or nothing at all.
type fate struct {
	reaches bool
	err     error
	hangs   <-chan struct{}
}

func (f *fates) decree(next ...fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, next...)
}

func (f *fates) Propose(entry []byte, within time.Duration) raft.ApplyFuture {
	decoded, err := raftfsm.DecodeEntry(entry)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ticks) > 0 && len(decoded.Commands) == 0 && !decoded.LeaderStart {
		err := f.ticks[0]
		f.ticks = f.ticks[1:]
		return doomed{fate{err: err}}
	}
	if len(f.next) == 0 || len(decoded.Commands) == 0 {
		return f.Group.Propose(entry, within)
	}
	next := f.next[0]
	f.next = f.next[1:]
	if next.reaches {
		_ = f.Group.Propose(entry, within).Error()
	}
	return doomed{next}
}

type doomed struct{ fate }

func (d doomed) Error() error {
	if d.hangs != nil {
		<-d.hangs
	}
	return d.err
}
func (d doomed) Response() any { return nil }
func (d doomed) Index() uint64 { return 0 }

var attempts atomic.Uint64

func freshAttempt() (id admission.AttemptID) {
	binary.BigEndian.PutUint64(id[:], attempts.Add(1))
	return id
}

func key(name string) admission.Identity {
	return admission.Identity{Namespace: "default", Key: name}
}

// reserve is the request of a fresh attempt for a key.
func reserve(name string, ttl time.Duration) Request {
	return Request{
		Command: admission.Reserve{
			Identity: key(name), Attempt: freshAttempt(), PendingTTL: ttl, Retention: time.Hour,
		},
		Received:  time.Now(),
		WantedFor: time.Hour,
	}
}

func (s *testShard) mustSubmit(request Request) Reply {
	s.t.Helper()
	reply, err := s.Submit(s.t.Context(), request)
	if err != nil {
		s.t.Fatalf("Submit: %v", err)
	}
	return reply
}

func (s *testShard) grant(name string, ttl time.Duration) admission.Token {
	s.t.Helper()
	reply := s.mustSubmit(reserve(name, ttl))
	if reply.Answer.Outcome != admission.OutcomeGranted {
		s.t.Fatalf("%s: %v %v, want a grant", name, reply.Answer.Outcome, reply.Answer.Refusal)
	}
	return reply.Answer.Token
}

func commit(name string, token admission.Token, body string) Request {
	return Request{
		Command: admission.Commit{
			Identity: key(name), Token: token,
			Response: admission.Response{Hash: [32]byte{1, byte(len(body))}, Bytes: 4, Stored: []byte(body)},
		},
		Received: time.Now(),
	}
}

func release(name string, token admission.Token) Request {
	return Request{Command: admission.Release{Identity: key(name), Token: token, Reason: "no"}, Received: time.Now()}
}

// waiter is a Reserve that waits, in a goroutine of its own.
type waiter struct {
	reply Reply
	err   error
	done  chan struct{}
	after time.Duration
}

func (s *testShard) wait(ctx context.Context, name string, wait time.Duration) *waiter {
	request := reserve(name, time.Minute)
	request.Wait = wait
	w := &waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.reply, w.err = s.Submit(ctx, request)
		w.after = time.Since(request.Received)
	}()
	synctest.Wait()
	return w
}

func (w *waiter) isDone() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// openBenchShard starts a shard that ends with the benchmark.
func openBenchShard(b *testing.B) *testShard {
	b.Helper()
	s := openShard(b, b.TempDir(), nil)
	b.Cleanup(s.close)
	return s
}

func syncData(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
