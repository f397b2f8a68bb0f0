package raftfsm

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// termsAheadMax is how far ahead of this replica's term the term of a message may be. A
// term is an election, and two elections of a shard in every second of sixty years are
// fewer: who claims more is no peer. Without a bound one such message, in the last term
// that there is, would leave the shard without a term to elect a leader in, and raft,
// which reckons the next one without looking, would count from 0 again. So the last term
// is out of reach: it takes this bound of messages and elections to come there.
const termsAheadMax = 1 << 32

// believeTerm refuses a message whose term is not to be believed, before raft takes the
// term for its own.
func believeTerm(current uint64, command any) error {
	var term uint64
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		term = request.Term
	case *raft.RequestVoteRequest:
		term = request.Term
	case *raft.RequestPreVoteRequest:
		term = request.Term
	case *raft.InstallSnapshotRequest:
		term = request.Term
	}
	if term > current && term-current > termsAheadMax {
		return fmt.Errorf("term %d is not to be believed in term %d: the bound is %d terms ahead", term, current, uint64(termsAheadMax))
	}
	return nil
}
