package raftfsm

import (
	"fmt"
	"time"
)

// Timing is how often a group's replicas talk, and how long they wait. Raft varies
// each by chance, up to twice its value, so that groups and replicas do not move in
// step.
//
// The defaults weigh the time to a new leader against the cost of an idle group. A
// follower notices that its leader is gone after one to two Heartbeats, seldom
// three, and a pre-vote needs all but the dead one to have noticed: 0.9 to 1.8 s,
// and with the first entries of the new leader about 2 s. A leader sends a heartbeat
// to each follower every 60 to 120 ms, beside the reach of its lease by a factor of
// four, and an empty AppendEntries every Commit to 2 x Commit.
type Timing struct {
	// Heartbeat is how long a follower waits for its leader. A tenth of it, to a
	// fifth, is the time between heartbeats. At least 50 ms, 600 ms by default.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes before it tries again. Also
	// how long a transfer of leadership may take. At least Heartbeat, 800 ms by
	// default.
	Election time.Duration
	// Lease is how long a leader goes on without hearing from a majority. At least
	// 25 ms, at most Heartbeat, 500 ms by default.
	Lease time.Duration
	// Commit is the longest time without an AppendEntries. The commit index travels
	// with them: after the last entry of a burst a follower may apply that much
	// (up to twice) later than the leader. Nothing waits for it but a follower's
	// own state, which is not read while it follows; a new leader learns what is
	// committed from its own first entry. At least 1 ms, 500 ms by default.
	Commit time.Duration
	// Call is how long one message to a peer may take, until the answer. A message
	// may carry 64 entries of 1 MiB, which the peer writes and syncs. Sending a
	// state file may take that long for each 256 KiB. At least Heartbeat, 10 s by
	// default.
	Call time.Duration
}

// DefaultTiming returns the defaults.
func DefaultTiming() Timing {
	return Timing{
		Heartbeat: 600 * time.Millisecond,
		Election:  800 * time.Millisecond,
		Lease:     500 * time.Millisecond,
		Commit:    500 * time.Millisecond,
		Call:      10 * time.Second,
	}
}

// WithDefaults returns the timing with its zero values filled in.
func (t Timing) WithDefaults() Timing {
	defaults := DefaultTiming()
	for _, field := range [...]struct{ value, otherwise *time.Duration }{
		{&t.Heartbeat, &defaults.Heartbeat},
		{&t.Election, &defaults.Election},
		{&t.Lease, &defaults.Lease},
		{&t.Commit, &defaults.Commit},
		{&t.Call, &defaults.Call},
	} {
		if *field.value == 0 {
			*field.value = *field.otherwise
		}
	}
	return t
}

// Validate returns what is out of range, in one line that names the field.
func (t Timing) Validate() error {
	switch {
	case t.Heartbeat < 50*time.Millisecond:
		return fmt.Errorf("raftfsm: Heartbeat is %v, it must be at least 50ms", t.Heartbeat)
	case t.Election < t.Heartbeat:
		return fmt.Errorf("raftfsm: Election is %v, it must be at least Heartbeat, which is %v", t.Election, t.Heartbeat)
	case t.Lease < 25*time.Millisecond || t.Lease > t.Heartbeat:
		return fmt.Errorf("raftfsm: Lease is %v, it must be from 25ms to Heartbeat, which is %v", t.Lease, t.Heartbeat)
	case t.Commit < time.Millisecond:
		return fmt.Errorf("raftfsm: Commit is %v, it must be at least 1ms", t.Commit)
	case t.Call < t.Heartbeat:
		return fmt.Errorf("raftfsm: Call is %v, it must be at least Heartbeat, which is %v", t.Call, t.Heartbeat)
	}
	return nil
}
