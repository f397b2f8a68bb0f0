package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/test/process"
)

// forger speaks to peer ports as a peer would, and is none. What it has to know of a
// node is in that node's own answers to everybody.
type forger struct {
	cluster string
	life    peer.Life                // of the process that it says it is
	targets map[string]raft.ServerID // by node
	ports   map[string]string
}

// newForger reads who the nodes are.
func newForger(c *process.Cluster) (*forger, error) {
	// Newer than whoever said to be a stranger before.
	f := &forger{life: peer.NewLife(uint64(time.Now().UnixNano())), targets: make(map[string]raft.ServerID), ports: make(map[string]string)}
	for _, n := range c.Nodes {
		text, err := os.ReadFile(filepath.Join(n.Dir, "node.json"))
		if err != nil {
			return nil, err
		}
		var node struct {
			ClusterID   string `json:"cluster_id"`
			Incarnation string `json:"incarnation"`
		}
		if err := json.Unmarshal(text, &node); err != nil {
			return nil, err
		}
		f.cluster = node.ClusterID
		f.targets[n.Name] = peer.ServerID(n.Name, node.Incarnation)
		f.ports[n.Name] = n.Peer
	}
	return f, nil
}

// stranger is a server that is no member of anything.
func stranger() raft.ServerID {
	return peer.ServerID("stranger", "00000000000000000000000000000bad")
}

// open opens a connection for a shard's Raft messages, as somebody.
func (f *forger) open(ctx context.Context, node string, shard int, as raft.ServerID) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", f.ports[node])
	if err != nil {
		return nil, err
	}
	header := peer.Header{Kind: peer.KindRaft, Shard: shard, Cluster: f.cluster, Target: f.targets[node], Sender: as, Life: f.life}
	encoded, err := header.Encode()
	if err == nil {
		_, err = conn.Write(encoded)
	}
	// A status byte, and the life of the process that answers.
	answer := make([]byte, 1+8+16)
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err = conn.Read(answer[:1])
	}
	if err == nil && answer[0] != byte(peer.StatusOK) {
		err = fmt.Errorf("%s refused the connection with status %d", node, answer[0])
	}
	if err == nil {
		_, err = conn.Read(answer[1:])
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return conn, nil
}

// messages returns a transport that sends well-formed Raft messages to a node's shard.
func (f *forger) messages(node string, shard int, as raft.ServerID) *raft.NetworkTransport {
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: forgedLayer{f: f, node: node, shard: shard, as: as}, MaxPool: 1, Timeout: 3 * time.Second,
		MsgpackUseNewTimeFormat: true,
	})
}

// forgedLayer is a raft.StreamLayer that dials one node.
type forgedLayer struct {
	f     *forger
	node  string
	shard int
	as    raft.ServerID
}

func (l forgedLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return l.f.open(ctx, l.node, l.shard, l.as)
}

func (l forgedLayer) Accept() (net.Conn, error) { return nil, errors.New("nobody dials a forger") }
func (l forgedLayer) Close() error              { return nil }
func (l forgedLayer) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
