package node

import (
	"context"
	"syscall"
	"time"
)

// spaceEvery is the time between two looks at the free space. A full disk panics
// inside Raft, so the floor must be wider than what is written meanwhile.
const spaceEvery = time.Second

// watchSpace keeps storageFull up to date until ctx ends.
func (n *Node) watchSpace(ctx context.Context) {
	if n.cfg.FreeBytesMin == 0 {
		return
	}
	for {
		n.lookAtSpace()
		select {
		case <-ctx.Done():
			return
		case <-time.After(spaceEvery):
		}
	}
}

func (n *Node) lookAtSpace() {
	free, err := n.cfg.FreeBytes(n.cfg.DataDir)
	if err != nil {
		n.cfg.Logger.Warn("cannot tell the free disk space", "data_dir", n.cfg.DataDir, "error", err)
		return
	}
	full := free < n.cfg.FreeBytesMin
	if n.storageFull.Swap(full) == full {
		return
	}
	if full {
		n.cfg.Logger.Error("disk space is short: no new keys are taken", "data_dir", n.cfg.DataDir,
			"free_bytes", free, "floor_bytes", n.cfg.FreeBytesMin)
	} else {
		n.cfg.Logger.Info("there is disk space again: new keys are taken", "free_bytes", free)
	}
}

// freeBytes asks the operating system.
func freeBytes(dir string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil //nolint:unconvert // far below 2^63; the types differ by system
}
