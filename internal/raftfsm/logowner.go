package raftfsm

import (
	"bytes"
	"fmt"

	"github.com/atmostonce/coordinator/internal/store"
)

// keyOwner is where a log keeps whose it is, beside raft's few values. The indexes and terms
// of two shards look alike, so a log that was put in another's place would be replayed into
// its state.
var keyOwner = []byte("Owner")

func ownerText(owner store.Identification) []byte {
	return fmt.Appendf(nil, "shard %d of %d of cluster %q", owner.Shard, owner.Shards, owner.ClusterID)
}

// checkOwner compares whose a log is with whose it must be. One that is new, or from before
// it was noted, does not say.
func checkOwner(dir string, log *logStore, owner store.Identification) error {
	noted, err := log.Get(keyOwner)
	if err != nil {
		return fmt.Errorf("%s: the log: %w", dir, err)
	}
	if want := ownerText(owner); len(noted) > 0 && !bytes.Equal(noted, want) {
		return fmt.Errorf("%s: %w: the log is of %s, not of %s", dir, ErrDiverged, noted, want)
	}
	return nil
}

// noteOwner notes it in a log that does not say.
func noteOwner(log *logStore, owner store.Identification) error {
	if noted, err := log.Get(keyOwner); err != nil || len(noted) > 0 {
		return err
	}
	return log.Set(keyOwner, ownerText(owner))
}
