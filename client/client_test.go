package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopExampleNode()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// start starts nodes in the bubble.
func start(t *testing.T, nodes int) *cluster.Cluster {
	t.Helper()
	return cluster.Start(t, cluster.Options{Nodes: nodes, Change: func(c *node.Config) { c.Shards = 1 }})
}

// dial returns a client on the cluster's client host, whose clock is the bubble's.
func dial(t *testing.T, c *cluster.Cluster, options ...client.DialOption) *client.Client {
	t.Helper()
	var endpoints []string
	for _, name := range c.Names {
		endpoints = append(endpoints, name+":7420")
	}
	began := time.Now()
	all := append([]client.DialOption{
		client.WithInsecure(),
		client.WithDialer(c.Network.Host(cluster.ClientHost).Dial),
		client.WithClock(func() time.Duration { return time.Since(began) }),
	}, options...)
	dialed, err := client.Dial(endpoints, all...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialed.Close() })
	return dialed
}

// intercept is an interceptor of every try.
func intercept(i grpc.UnaryClientInterceptor) client.DialOption {
	return client.WithDialOptions(grpc.WithUnaryInterceptor(i))
}

func id(key string) client.Identity { return client.Identity{Operation: "op", Key: key} }

// granted reserves and must be admitted.
func granted(t *testing.T, c *client.Client, key string, options ...client.ReserveOption) *client.Reservation {
	t.Helper()
	r, err := c.Reserve(t.Context(), id(key), options...)
	if err != nil {
		t.Fatalf("Reserve %s: %v", key, err)
	}
	return r
}

func want(t *testing.T, err error, is ...error) {
	t.Helper()
	for _, target := range is {
		if !errors.Is(err, target) {
			t.Fatalf("%v is not %q", err, target)
		}
	}
}

func wantNone(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// state returns what the record of a key is.
func state(t *testing.T, c *client.Client, key string) client.State {
	t.Helper()
	record, err := c.Get(context.WithoutCancel(t.Context()), id(key))
	wantNone(t, err)
	return record.State
}
