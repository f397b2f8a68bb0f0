package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// clockVariable names the file from which a node with [shiftedClock] reads how far its
// wall clock is off, as a Go duration.
const clockVariable = "TEST_WALL_CLOCK"

// shiftedClock makes the wall part of time.Now wrong by what a file says, in everything
// that the program is made of. The monotonic part stays as it is: what it is for is to
// run evenly whatever happens to the wall clock.
func shiftedClock() []process.Edit {
	return []process.Edit{
		{
			File: "std/time/time.go",
			Old:  "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {",
			New:  "\tsec, nsec, mono := runtimeNow()\n\tsec += wallShift.Load()\n\tif mono == 0 {",
		},
		{File: "std/time/shift.go", New: `package time

import "sync/atomic"

var wallShift atomic.Int64

// ShiftWall makes the wall clock wrong by whole seconds.
func ShiftWall(by Duration) { wallShift.Store(int64(by / Second)) }
`},
		{File: "cmd/coordinator/shift.go", New: `package main

import (
	"os"
	"strings"
	"time"
)

func init() {
	path := os.Getenv("` + clockVariable + `")
	look := func() {
		text, err := os.ReadFile(path)
		if err != nil {
			return
		}
		if by, err := time.ParseDuration(strings.TrimSpace(string(text))); err == nil {
			time.ShiftWall(by)
		}
	}
	if path == "" {
		return
	}
	look()
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			look()
		}
	}()
}
`},
	}
}

// shortLog makes a node keep few log entries, so that a follower that was away for a
// moment needs a snapshot. The log keeps what it has dropped until the end of its segment,
// so segments are small, too.
func shortLog() []process.Edit {
	return []process.Edit{
		{File: "internal/raftfsm/config.go", Old: "snapshotEntries: 8192,", New: "snapshotEntries: 60,"},
		{File: "internal/raftfsm/config.go", Old: "trailing:        10_240,", New: "trailing:        16,"},
		{File: "internal/raftlog/log.go", Old: "const SegmentBytes = 8 << 20", New: "const SegmentBytes = 128 << 10"},
		{File: "internal/raftfsm/open.go", Old: "snapshotInterval = time.Minute", New: "snapshotInterval = 500 * time.Millisecond"},
	}
}

// clocks are the wall clocks of the nodes.
type clocks struct{ dir string }

func (c clocks) path(node string) string { return filepath.Join(c.dir, node+".clock") }

// use makes a node's next life have a clock of its own.
func (c clocks) use(n *process.Node) { n.Use("", clockVariable+"="+c.path(n.Name)) }

// set makes a node's wall clock wrong by that.
func (c clocks) set(node string, by time.Duration) error {
	temporary := c.path(node) + ".new"
	if err := os.WriteFile(temporary, []byte(by.String()), 0o600); err != nil {
		return fmt.Errorf("the clock of %s: %w", node, err)
	}
	return os.Rename(temporary, c.path(node))
}
