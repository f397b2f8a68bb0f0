package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/internal/metakey"
)

// routing returns a router that connects nowhere, with endpoints e1, e2 and e3.
func routing(t *testing.T, now *time.Duration, endpointsOnly bool) *router {
	t.Helper()
	r := newRouter(func(address string) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}, func() time.Duration { return *now }, endpointsOnly)
	t.Cleanup(r.close)
	for _, address := range []string{"e1:1", "e2:1", "e3:1", "e1:1"} {
		if err := r.add(address); err != nil {
			t.Fatal(err)
		}
	}
	r.first = 0
	return r
}

func told(shard, shards int, leader string) metadata.MD {
	return metadata.Pairs(metakey.Shard, fmt.Sprint(shard), metakey.Shards, fmt.Sprint(shards), metakey.Leader, leader)
}

// of returns an identity of the shard.
func of(shard, shards int) Identity {
	for i := 0; ; i++ {
		if id := (Identity{Key: fmt.Sprint(i)}); id.shard(shards) == shard {
			return id
		}
	}
}

func TestRoutes(t *testing.T) {
	now := time.Duration(0)
	r := routing(t, &now, false)
	ask := func(id Identity, asked map[*clusterNode]bool, want string, wantAnew bool) *clusterNode {
		t.Helper()
		n, anew := r.pick(id, asked)
		if n.address != want || anew != wantAnew {
			t.Fatalf("asked %s, anew %v; want %s, %v", n.address, anew, want, wantAnew)
		}
		if asked != nil {
			asked[n] = true
		}
		return n
	}
	zero, one := of(0, 2), of(1, 2)
	r.done(ask(zero, nil, "e1:1", false), told(0, 2, "l0:1"), true)
	r.done(ask(one, nil, "e1:1", false), told(1, 2, "e2:1"), true)
	r.done(ask(zero, nil, "l0:1", false), told(0, 2, "l0:1"), true)
	// The leader is silent, and then every endpoint is.
	asked := map[*clusterNode]bool{}
	r.done(ask(zero, asked, "l0:1", false), nil, false)
	r.done(ask(zero, asked, "e1:1", false), nil, false)
	r.done(ask(zero, asked, "e2:1", false), nil, false) // which led shard 1
	r.done(ask(zero, asked, "e3:1", false), nil, false)
	r.done(ask(zero, asked, "e1:1", true), nil, false)
	// e1 fell silent last; of those that are suspect, the next one is asked.
	ask(one, nil, "e2:1", false)
	now += suspectFor
	r.done(ask(one, nil, "e2:1", false), told(1, 2, "e3:1"), true)
	ask(one, nil, "e3:1", false)
	// Another cluster has moved in behind the addresses.
	r.done(ask(one, nil, "e3:1", false), told(0, 5, "e1:1"), true)
	ask(of(0, 5), nil, "e1:1", false)
}

func TestHintsThatAreNone(t *testing.T) {
	now := time.Duration(0)
	r := routing(t, &now, false)
	for _, header := range []metadata.MD{
		nil,
		metadata.Pairs(metakey.Shard, "0", metakey.Leader, "l:1"),
		told(0, 0, "l:1"), told(0, -1, "l:1"), told(2, 2, "l:1"), told(-1, 2, "l:1"), told(0, 1<<20, "l:1"),
		told(0, 2, "no port"), told(0, 2, ""),
		metadata.Join(told(0, 2, "l:1"), told(0, 2, "m:1")),
	} {
		n, _ := r.pick(Identity{Key: "k"}, nil)
		r.done(n, header, true)
		if len(r.leaders) != 0 || len(r.nodes) != 3 {
			t.Errorf("learned from %v", header)
		}
	}
	only := routing(t, &now, true)
	n, _ := only.pick(Identity{Key: "k"}, nil)
	only.done(n, told(0, 1, "l:1"), true)
	if len(only.nodes) != 3 || len(only.leaders) != 0 {
		t.Error("a node that is no endpoint was learned")
	}
	only.done(n, told(0, 1, "e2:1"), true)
	if only.leaders[0] == nil {
		t.Error("a leader that is an endpoint was not learned")
	}
}

// Nodes that come and go under new addresses do not pile up.
func TestLearnedNodesAreBounded(t *testing.T) {
	now := time.Duration(0)
	r := routing(t, &now, false)
	busy, _ := r.pick(Identity{Key: "k"}, nil)
	for i := range 1000 {
		r.done(busy, told(0, 1, fmt.Sprintf("l%d:1", i)), true)
		if len(r.nodes) > 3+learnedMost {
			t.Fatalf("%d nodes", len(r.nodes))
		}
		busy, _ = r.pick(Identity{Key: "k"}, nil)
		if busy.address != fmt.Sprintf("l%d:1", i) {
			t.Fatalf("asked %s", busy.address)
		}
	}
	// One in whose hands a call is stays.
	for i := range 100 {
		r.mu.Lock()
		r.learn(told(0, 1, fmt.Sprintf("m%d:1", i)))
		there := r.nodes[busy.address] == busy
		r.mu.Unlock()
		if !there {
			t.Fatal("closed a connection that is in use")
		}
	}
}

func TestDialRefuses(t *testing.T) {
	for name, dial := range map[string]func() (*Client, error){
		"no endpoint":  func() (*Client, error) { return Dial(nil) },
		"no port":      func() (*Client, error) { return Dial([]string{"127.0.0.1"}) },
		"plain text":   func() (*Client, error) { return Dial([]string{"127.0.0.1:1", "10.0.0.1:1"}) },
		"no time":      func() (*Client, error) { return Dial([]string{"127.0.0.1:1"}, WithCallTimeout(0)) },
		"no try":       func() (*Client, error) { return Dial([]string{"127.0.0.1:1"}, WithTryTimeout(-1)) },
		"no end of it": func() (*Client, error) { return Dial([]string{"127.0.0.1:1"}, WithSettleTimeout(0)) },
	} {
		if c, err := dial(); err == nil || c != nil {
			t.Errorf("%s: dialed", name)
		}
	}
	for _, address := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1"} {
		c, err := Dial([]string{address})
		if err != nil {
			t.Error(err)
			continue
		}
		c.router.mu.Lock()
		c.router.learn(told(0, 1, "10.0.0.1:1"))
		if len(c.router.nodes) != 1 {
			t.Error("a node that may not be spoken to in plain text was learned")
		}
		c.router.mu.Unlock()
		_ = c.Close()
	}
}

// What nobody could connect to is refused at once, with the endpoint and what it must be.
func TestDialRefusesImpossibleEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"":                              `client: endpoint "" is not host:port: missing port in address`,
		"host":                          "is not host:port: missing port in address",
		"a:b:c":                         "is not host:port: too many colons in address",
		"::1:7420":                      "is not host:port: too many colons in address",
		"host:":                         `client: endpoint "host:" has no port`,
		"host:0":                        "has the port 0, it must be from 1 to 65535",
		"host:65536":                    "has the port 65536, it must be from 1 to 65535",
		"host:99999999999999999999":     "it must be from 1 to 65535",
		"host:-1":                       `has the port "-1", it must be a number from 1 to 65535`,
		"host:+1":                       `has the port "+1", it must be a number from 1 to 65535`,
		"host:http":                     `has the port "http", it must be a number from 1 to 65535`,
		"host: 1":                       "it must be a number from 1 to 65535",
		":7420":                         "has no host; this machine itself is 127.0.0.1 or [::1]",
		"a b:1":                         `has ' ' in its host, which is no part of a name or an IP address`,
		" a:1":                          `has ' ' in its host`,
		"a\n:1":                         `has '\n' in its host`,
		"[fe80::1%eth0]:1":              `has '%' in its host`,
		"user@host:1":                   `has '@' in its host`,
		"a,b:1":                         `has ',' in its host`,
		strings.Repeat("h", 256) + ":1": "has a host of 256 bytes, the limit is 255",
	} {
		for _, others := range [][]string{nil, {"127.0.0.1:1"}} {
			if c, err := Dial(append(others, endpoint), WithInsecure()); err == nil || c != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", endpoint, err, want)
			}
		}
	}
	for _, endpoint := range []string{
		"127.0.0.1:1", "[::1]:65535", "[fe80::1]:7420", "a-b_c.example.:7420", "7:7", "b\u00fccher.example:7420",
	} {
		c, err := Dial([]string{endpoint}, WithInsecure())
		if err != nil {
			t.Error(err)
			continue
		}
		_ = c.Close()
	}
}

// A call whose time is over before a node was asked says so, and that nothing was done.
func TestACallWithoutTime(t *testing.T) {
	c, err := Dial([]string{"127.0.0.1:1"}, WithCallTimeout(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		code codes.Code
		want string
	}{
		{t.Context(), codes.DeadlineExceeded, "the time for the call was over before a node was asked"},
		{cancelled, codes.Canceled, "the call was cancelled before a node was asked"},
	} {
		_, err := c.Get(test.ctx, Identity{Key: "k"})
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != test.code || failed.Message != test.want || failed.MaybeApplied || !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, want %v %q", err, test.code, test.want)
		}
	}
}

// The clock runs, and never backwards.
func TestSystemClock(t *testing.T) {
	for name, now := range map[string]clock{"system": systemClock(), "monotonic": monotonic()} {
		before := now()
		for range 1000 {
			after := now()
			if after < before {
				t.Fatalf("%s: %v after %v", name, after, before)
			}
			before = after
		}
	}
}
