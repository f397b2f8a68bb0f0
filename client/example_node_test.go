package client_test

import (
	"context"
	"os"
	"sync"

	"github.com/atmostonce/coordinator/internal/node"
)

// The examples run against one node on loopback, which is started with the first one.
var exampleNode struct {
	once    sync.Once
	node    *node.Node
	dir     string
	address string
}

// endpoint returns the address of a coordinator.
func endpoint() string {
	e := &exampleNode
	e.once.Do(func() {
		dir, err := os.MkdirTemp("", "coordinator-examples")
		if err != nil {
			panic(err)
		}
		cfg := node.Default()
		cfg.DataDir, cfg.Listen, cfg.Shards = dir, "127.0.0.1:0", 1
		started, err := node.Start(context.Background(), cfg)
		if err != nil {
			panic(err)
		}
		e.dir, e.node, e.address = dir, started, started.Address().String()
	})
	return e.address
}

func stopExampleNode() {
	if exampleNode.node != nil {
		_ = exampleNode.node.Stop(context.Background())
		_ = os.RemoveAll(exampleNode.dir)
	}
}
