package raftfsm

import (
	"fmt"
	"sync"

	"github.com/atmostonce/coordinator/internal/store"
)

// Check says what a state came to behind an entry. Every entry that a leader proposes
// carries one of its own state, and every replica that applies the entry, now or in a
// replay, compares it with its own. Replicas that have applied the same entries have
// the same state; one that has not, because its memory, its disk or its program is not
// as the others', must not answer anybody.
//
// Whoever disagrees with a leader stops. If it is the leader's state that is wrong, both
// others stop, and it is left without a majority: then nobody answers.
type Check struct {
	Index   uint64 // of the entry
	Digest  uint64 // see [store.Store.Digest]
	Version uint32 // [store.DigestVersion]; others are not compared
}

// checksKept is for how many of the latest entries a replica remembers what its state
// came to. A check is of an entry that had been applied when it was proposed: older than
// those that are in flight, of which there are far fewer.
const checksKept = 1024

// checks remembers what the state came to behind the latest entries.
type checks struct {
	mu     sync.Mutex
	latest Check
	recent [checksKept]Check // by index, modulo their number
	// compared counts the checks that were, for tests.
	compared uint64
}

// note remembers what the state has come to.
func (c *checks) note(index, digest uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = Check{Index: index, Digest: digest, Version: store.DigestVersion}
	c.recent[index%checksKept] = c.latest
}

// forget is called when another state has been installed.
func (c *checks) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = Check{}
	clear(c.recent[:])
}

// compare returns an error where the state came to something else. What is not known
// here is not compared: a replica that has just started, or installed a state, begins to
// know with the next entry.
func (c *checks) compare(with Check) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.recent[with.Index%checksKept]
	if with.Version != store.DigestVersion || own.Index != with.Index || with.Index == 0 {
		return nil
	}
	c.compared++
	if own.Digest != with.Digest {
		return fmt.Errorf("%w: behind entry %d it has digest %016x, and the leader's has %016x",
			ErrStateDiffers, with.Index, own.Digest, with.Digest)
	}
	return nil
}

// Check returns what the state of this replica has come to, for the next entry that it
// proposes. The zero value says that nothing has been applied since the start.
func (g *Group) Check() Check {
	c := &g.fsm.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}
