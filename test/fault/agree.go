package fault

import (
	"context"
	"fmt"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/process"
)

const (
	agreeWithin = 30 * time.Second // until three replicas were seen at one index
	agreeEvery  = 10 * time.Millisecond
)

// digests are what replicas said their states come to, by the index that they had applied.
type digests map[uint64]map[string]uint64

// agree asks the nodes for the digests of their own replicas of a shard until all were
// seen at one index, and returns an error where two differ, or never met.
func agree(c *process.Cluster, shard int) error {
	seen := make(digests)
	last := make(map[string]string)
	for until := time.Now().Add(agreeWithin); time.Now().Before(until); time.Sleep(agreeEvery) {
		for _, n := range c.Nodes {
			index, digest, err := digestOf(n, shard)
			if err != nil {
				last[n.Name] = err.Error()
				continue
			}
			last[n.Name] = fmt.Sprintf("%x at %d", digest, index)
			if done, err := seen.add(shard, n.Name, index, digest, len(c.Nodes)); done || err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("shard %d: the replicas were not seen at one index within %v: %v", shard, agreeWithin, last)
}

// add notes a digest, and reports whether all nodes have been seen at that index.
func (d digests) add(shard int, node string, index, digest uint64, nodes int) (all bool, err error) {
	if d[index] == nil {
		d[index] = make(map[string]uint64)
	}
	for other, theirs := range d[index] {
		if theirs != digest {
			return false, fmt.Errorf("shard %d: at index %d, %s has a state of digest %x and %s one of %x", shard, index, other, theirs, node, digest)
		}
	}
	d[index][node] = digest
	return len(d[index]) == nodes, nil
}

// digestOf asks a node for its own replica.
func digestOf(n *process.Node, shard int) (index, digest uint64, err error) {
	own, err := replicaOf(n, shard)
	return own.GetAppliedIndex(), own.GetStateDigest(), err
}

// replicaOf asks a node what its own replica is like.
func replicaOf(n *process.Node, shard int) (*coordinatorv1.Shard, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	answer, err := coordinatorv1.NewAdminServiceClient(n.Conn()).GetShard(ctx, &coordinatorv1.GetShardRequest{Shard: uint32(shard), Local: true})
	return answer.GetShard(), err
}
