package actor

import (
	"errors"
	"sync/atomic"
)

// Counts is what an actor counts, from its start on.
type Counts struct {
	Entries  uint64 // that it has proposed, those without a command included
	Commands uint64 // in them
	Failed   uint64 // entries that came to nothing, or of which that is not known
	// Overloaded counts the calls that were refused for want of room, in the order of
	// [OverloadCauses].
	Overloaded [overloadCauses]uint64
}

// counts is where they are kept. The loop adds to all but overloaded, to which whoever
// submits does.
type counts struct {
	entries, commands, failed atomic.Uint64
	overloaded                [overloadCauses]atomic.Uint64
}

const overloadCauses = 6

// overloads are what may be full, and what that is called.
var overloads = [overloadCauses]struct {
	err  error
	name string
}{
	{ErrMailboxFull, "mailbox"},
	{ErrWaitersFull, "waiters"},
	{ErrKeyWaitersFull, "key_waiters"},
	{ErrStoreBehind, "state"},
	{ErrLogBehind, "log"},
	{ErrNoRoom, "answers"},
}

// OverloadCauses names what may be full.
func OverloadCauses() []string {
	names := make([]string, len(overloads))
	for i, o := range overloads {
		names[i] = o.name
	}
	return names
}

// Counts returns what was counted so far. It takes no lock.
func (a *Actor) Counts() Counts {
	c := Counts{Entries: a.counts.entries.Load(), Commands: a.counts.commands.Load(), Failed: a.counts.failed.Load()}
	for i := range c.Overloaded {
		c.Overloaded[i] = a.counts.overloaded[i].Load()
	}
	return c
}

// proposed counts an entry.
func (c *counts) proposed(commands int) {
	c.entries.Add(1)
	c.commands.Add(uint64(commands))
}

// ended counts the end of a call, if it is one for want of room.
func (c *counts) ended(err error) {
	if err == nil || !errors.Is(err, ErrOverloaded) {
		return
	}
	for i := range overloads {
		if errors.Is(err, overloads[i].err) {
			c.overloaded[i].Add(1)
			return
		}
	}
}
