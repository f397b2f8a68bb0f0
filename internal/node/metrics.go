package node

import (
	"net/http"

	"github.com/atmostonce/coordinator/internal/metrics"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// registerMetrics makes the metrics of the node, whose servers count their calls in those
// that are given.
func (n *Node) registerMetrics(client, peer *rpc.Calls) (err error) {
	n.metrics, err = metrics.New(metrics.Config{
		Version:   n.cfg.Version,
		NodeID:    n.cfg.NodeID,
		ClusterID: n.foundCluster,
		Ready:     func() bool { return n.notReady() == "" },
		Disk:      n.disk,
		Shards:    n.shards.count,
		Numbers:   n.shards.numbers,
		Ports: []metrics.Port{
			{Name: "client", Expected: true, Calls: client, NotAfter: notAfter(n.security.clients), Connections: n.listener.connections},
			{Name: "peer", Calls: peer, NotAfter: notAfter(n.security.peers)},
		},
		Actor:  n.cfg.Actor,
		Logger: n.cfg.Logger,
	})
	return err
}

// metricsHandler answers /metrics.
func (n *Node) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", n.metrics.Handler())
	return mux
}

// foundCluster is the cluster's id, "" while it is not found. Unlike node.json it is read
// without waiting for a disk.
func (n *Node) foundCluster() string {
	if id := n.clusterID.Load(); id != nil {
		return *id
	}
	return ""
}

// disk is the free space as it was looked at last: looking may hang with the disk.
func (n *Node) disk() metrics.Disk {
	free := n.freeBytes.Load()
	return metrics.Disk{
		FreeBytes: free, Known: free >= 0, FreeBytesMin: n.cfg.FreeBytesMin, Full: n.storageFull.Load(),
	}
}

// numbers returns what this node knows of a shard, and false before that is open.
func (s *shards) numbers(number int) (shard.Numbers, bool) {
	if replica := s.each[number].replica.Load(); replica != nil {
		return replica.Numbers(), true
	}
	return shard.Numbers{}, false
}
