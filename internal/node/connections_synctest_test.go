package node

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/raftfsm"
)

// counting counts the connections of a listener that are open.
type counting struct {
	net.Listener
	open, most atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if open := c.open.Add(1); open > c.most.Load() {
		c.most.Store(open)
	}
	return &countedConn{Conn: conn, of: c}, nil
}

type countedConn struct {
	net.Conn
	of   *counting
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// Whoever has led a shard keeps connections for it to every other node. The port has room for all of
// them, and for forwarded calls beside them, also where a cluster has as many shards as it may.
func TestThePeerPortHasRoomForEveryShard(t *testing.T) {
	const shards, others = 6, 2
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ports := make(map[string]*counting)
		for _, name := range []string{"n1", "n2", "n3"} {
			ports[name] = new(counting)
			w.start(name, func(c *Config) {
				c.Shards, c.BalanceEvery = shards, 0
				c.ListenOn = func(network, address string) (net.Listener, error) {
					listener, err := w.network.listen(network, address)
					if address == name+":7430" {
						ports[name].Listener = listener
						return ports[name], err
					}
					return listener, err
				}
			})
		}
		w.serving()
		for _, name := range []string{"n2", "n3", "n1", "n3", "n2", "n1"} {
			for shard := range shards {
				if err := w.leaderOf(shard).Router().Replica(shard).TransferLeadership(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			w.serving()
			for i := range 4 * shards {
				w.admits(fmt.Sprint(name, "-", time.Now(), "-", i), "n1", "n2", "n3")
			}
			time.Sleep(10 * time.Second)
		}
		const each = raftfsm.ConnectionsMax
		for name, port := range ports {
			// Two of each of the others are for what is forwarded, and for a Hello.
			if most := port.most.Load(); most > shards*others*each+2*others || most < shards*others {
				t.Errorf("%s had %d connections at a time, room is for %d", name, most, shards*others*each)
			}
		}
	})
	for _, nodes := range []int{1, 3, peer.MembersMax} {
		room := connectionsMax(membership.ShardsMax, nodes)
		if need := membership.ShardsMax * (nodes - 1) * raftfsm.ConnectionsMax; room-need < 2*nodes {
			t.Errorf("%d nodes: there is room for %d connections, of which the shards may have %d", nodes, room, need)
		}
	}
}
