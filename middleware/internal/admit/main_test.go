package admit

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
	"github.com/atmostonce/coordinator/test/cluster"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit))
}

// nodes starts a cluster in the bubble.
func nodes(t *testing.T, n int) *cluster.Cluster {
	t.Helper()
	return cluster.Start(t, cluster.Options{Nodes: n, Change: func(c *node.Config) { c.Shards = 1 }})
}

// settings are the defaults, with a client of the cluster from the host.
func settings(t *testing.T, c *cluster.Cluster, host string, options ...client.DialOption) *Settings {
	t.Helper()
	var endpoints []string
	for _, name := range c.Names {
		endpoints = append(endpoints, name+":7420")
	}
	began := time.Now()
	dialed, err := client.Dial(endpoints, append([]client.DialOption{
		client.WithInsecure(), client.WithDialer(c.Network.Host(host).Dial),
		client.WithClock(func() time.Duration { return time.Since(began) }),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialed.Close() })
	s := Defaults(dialed, "https://docs.example")
	s.Logger = slog.New(slog.DiscardHandler)
	if wrong := s.Check(true); len(wrong) != 0 {
		t.Fatal(wrong)
	}
	return &s
}

func question(key string) Question { return Question{Principal: "me", Operation: "op", Key: key} }

// state is what the record of a key is.
func state(t *testing.T, s *Settings, key string) client.State {
	t.Helper()
	record, err := s.Client.Get(t.Context(), client.Identity{Principal: "me", Operation: "op", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return record.State
}

// script is a handler that does what the test says.
type script struct {
	run       func(ctx context.Context)
	verdict   verdict.Verdict
	goesOn    bool // something else answered for it
	begun     bool // the caller has a part of the answer
	response  client.Response
	mu        sync.Mutex
	abandoned bool
	ended     bool // as Judge was told
}

func (s *script) Handle(ctx context.Context) {
	if s.run != nil {
		s.run(ctx)
	}
}

func (s *script) Returned() bool { return !s.goesOn }

func (s *script) Judge(ended bool) verdict.Verdict {
	s.ended = ended
	return s.verdict
}

func (s *script) Status() string { return "as the script says" }

func (s *script) Response() (client.Response, error) { return s.response, nil }

func (s *script) Abandon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandoned = !s.begun
	return s.abandoned
}
