package membership

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/peer"
)

// While a disk does not take node.json, the node says to others what is on it, and notes who
// the members are.
func TestAWriteThatHangsHoldsNobodyUp(t *testing.T) {
	f, err := Open(t.TempDir(), "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.File, cfg.PeerAddress, cfg.Logger = f, "h1:1", slog.New(slog.DiscardHandler)
	m := New(cfg)
	before, err := m.begin("c", []peer.Member{m.directory.self})
	if err != nil {
		t.Fatal(err)
	}

	// Whoever opens a pipe to write to it waits for a reader.
	pipe := f.path + temporary
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	begun, written := make(chan struct{}), make(chan error, 1)
	go func() {
		written <- f.update(func(s *State) {
			s.Starts++
			close(begun)
		})
	}()
	<-begun
	servers := map[raft.ServerID]raft.ServerAddress{before.ID(): "h1:1", peer.ServerID("n2", before.Incarnation): "h2:1"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if got := f.State(); !reflect.DeepEqual(got, before) {
			t.Errorf("before it was written: %+v", got)
		}
		m.Observe(servers)
		answer, err := m.Hello(t.Context(), peer.HelloMessage{})
		if err != nil || answer.ClusterID != "c" || len(answer.Members) != 2 {
			t.Errorf("answered %+v, %v", answer, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("somebody waits for the disk")
	}

	reader, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, reader)
	if err := errors.Join(reader.Close(), os.Remove(pipe)); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err == nil {
		t.Error("a pipe was synced")
	}
	<-done
	if got := f.State(); !reflect.DeepEqual(got, before) {
		t.Errorf("what was not written counts: %+v", got)
	}
	if err := f.update(func(s *State) { s.Starts++ }); err != nil || f.State().Starts != before.Starts+1 {
		t.Errorf("the next write: %v, %+v", err, f.State())
	}
}
