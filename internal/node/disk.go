package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/internal/disk"
)

// A full disk ends the node, so the floor of free space must be wider than what is
// written between two looks at it: where there is less than spaceNear times the floor it
// is looked at every spaceEvery, otherwise, like the directory, every diskEvery.
const (
	diskEvery  = time.Second
	spaceEvery = 50 * time.Millisecond
	spaceNear  = 4
)

// watchDisk looks after the data directory and the space around it, until ctx ends.
func (n *Node) watchDisk(ctx context.Context) {
	// The first two by turns: a directory that is gone lacks both.
	checks := []func() error{n.lock.Check, n.file.Check}
	looked := time.Time{}
	for i := 0; ; {
		if time.Since(looked) >= diskEvery {
			looked = time.Now()
			n.lookAtDirectory(checks[i%len(checks)])
			n.lookAtDirectory(n.shards.checkPlaces)
			i++
		}
		next := diskEvery
		if n.lookAtSpace() {
			next = spaceEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// lookAtDirectory ends the node where its directory, or a part of it, was deleted or replaced: what it
// writes to the open files then is lost with them, and must not be acknowledged.
func (n *Node) lookAtDirectory(check func() error) {
	switch err := check(); {
	case errors.Is(err, disk.ErrGone):
		n.fail(err)
	case err != nil:
		n.cfg.Logger.Warn("cannot look at the data directory", "data_dir", n.cfg.DataDir, "error", err)
	}
}

// lookAtSpace reports whether the floor is near.
func (n *Node) lookAtSpace() (near bool) {
	free, err := n.cfg.FreeBytes(n.cfg.DataDir)
	if err != nil {
		// Nobody knows that there is enough, so it counts as if there were none.
		n.cfg.Logger.Warn("cannot tell the free disk space", "data_dir", n.cfg.DataDir, "error", err)
		free = 0
	}
	n.freeBytes.Store(free)
	near = err == nil && free/spaceNear < n.cfg.FreeBytesMin
	full := free < n.cfg.FreeBytesMin
	if n.storageFull.Swap(full) == full {
		return near
	}
	if full {
		n.cfg.Logger.Error("disk space is short: no new keys are taken", "data_dir", n.cfg.DataDir,
			"free_bytes", free, "floor_bytes", n.cfg.FreeBytesMin)
	} else {
		n.cfg.Logger.Info("there is disk space again: new keys are taken", "free_bytes", free)
	}
	return near
}

// space says how much is free, as looked at last, and how much must be; "" before the first look.
func (n *Node) space() string {
	free := n.freeBytes.Load()
	if free < 0 {
		return ""
	}
	return fmt.Sprintf("%s free, the floor is %s", amount(free), amount(n.cfg.FreeBytesMin))
}

// amount writes a number of bytes for people, no larger than it is.
func amount(bytes int64) string {
	for _, unit := range []struct {
		name  string
		shift int
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if tenths := bytes * 10 >> unit.shift; tenths >= 10 && bytes < 1<<59 {
			return strings.TrimSuffix(fmt.Sprintf("%d.%d", tenths/10, tenths%10), ".0") + " " + unit.name
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// freeBytes asks the operating system.
func freeBytes(dir string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil //nolint:unconvert // far below 2^63; the types differ by system
}
