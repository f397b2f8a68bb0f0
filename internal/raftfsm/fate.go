package raftfsm

import (
	"errors"

	"github.com/hashicorp/raft"
)

// Fate is what an error of a proposal's future says about the proposal.
type Fate uint8

// The three fates. Unknown is never taken for another: the entry may have been
// applied, may be applied later, also after a restart, or never.
const (
	// Committed is the fate of a future without an error. Whether the entry changed
	// anything is in its [Result].
	Committed Fate = iota
	// NotApplied says that the entry is in no log and never will be.
	NotApplied
	// Unknown says that nobody knows.
	Unknown
)

// Classify returns what the future's error says. There are three errors of which
// raft's code shows that the entry was not appended; every other one, known today or
// not, is Unknown:
//
//   - ErrEnqueueTimeout: it never reached raft's main loop.
//   - ErrNotLeader: the main loop turned it away before it had an index.
//   - ErrLeadershipTransferInProgress: the same.
//
// Among the others are ErrLeadershipLost (appended, and perhaps committed by the
// next leader), ErrRaftShutdown, ErrAbortedByRestore and every error of the log
// store (the entry was found applied after a restart).
func Classify(err error) Fate {
	switch {
	case err == nil:
		return Committed
	case errors.Is(err, raft.ErrEnqueueTimeout),
		errors.Is(err, raft.ErrNotLeader),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return NotApplied
	default:
		return Unknown
	}
}
