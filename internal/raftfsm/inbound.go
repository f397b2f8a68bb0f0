package raftfsm

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// What other replicas say is looked at before raft acts on it: raft takes the term of
// whatever it is told for its own, stores what cannot be read again, and panics over what
// no peer sends.

// termsAheadMax is how far ahead of this replica's term the term of a message may be. A
// term is an election, and two elections of a shard in every second of sixty years are
// fewer: who claims more is no peer. Without a bound one such message, in the last term
// that there is, would leave the shard without a term to elect a leader in, and raft,
// which reckons the next one without looking, would count from 0 again. So the last term
// is out of reach: it takes this bound of messages and elections to come there.
const termsAheadMax = 1 << 32

// believeTerm refuses a term that a peer cannot have come to, before raft takes it for
// its own.
func believeTerm(current, term uint64) error {
	if term > current && term-current > termsAheadMax {
		return fmt.Errorf("term %d is not to be believed in term %d: the bound is %d terms ahead", term, current, uint64(termsAheadMax))
	}
	return nil
}

// believe refuses a request that no peer sends to a replica in the current term.
func believe(current uint64, request any) error {
	switch r := request.(type) {
	case *raft.AppendEntriesRequest:
		if err := believeTerm(current, r.Term); err != nil {
			return err
		}
		return believeEntries(r)
	case *raft.RequestVoteRequest:
		return believeTerm(current, r.Term)
	case *raft.RequestPreVoteRequest:
		return believeTerm(current, r.Term)
	case *raft.InstallSnapshotRequest:
		if err := believeTerm(current, r.Term); err != nil {
			return err
		}
		if _, err := decodeConfiguration(r.Configuration); err != nil {
			return fmt.Errorf("a state at entry %d: %w", r.LastLogIndex, err)
		}
	}
	return nil
}

// believeEntries refuses entries that do not follow each other from the one before them
// on, or are not of a kind that is written today.
func believeEntries(request *raft.AppendEntriesRequest) error {
	for i, entry := range request.Entries {
		at, from := request.PrevLogEntry+1+uint64(i), request.PrevLogTerm
		if i > 0 {
			from = request.Entries[i-1].Term
		}
		switch {
		case entry == nil:
			return fmt.Errorf("entry %d is missing", at)
		case entry.Index != at || at == 0:
			return fmt.Errorf("entry %d stands where entry %d should", entry.Index, at)
		case entry.Term < from || entry.Term > request.Term:
			return fmt.Errorf("entry %d is of term %d, behind one of term %d and from a leader of term %d", at, entry.Term, from, request.Term)
		}
		switch entry.Type {
		case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		case raft.LogConfiguration:
			if _, err := decodeConfiguration(entry.Data); err != nil {
				return fmt.Errorf("entry %d: %w", at, err)
			}
		default:
			return fmt.Errorf("entry %d is of a kind, %d, that is not written", at, entry.Type)
		}
	}
	return nil
}

// refuse answers a message that goes no further. What follows it on its connection is
// read to its end before that, so as not to be taken for the next message; there is one
// at a time on a connection, which bounds those that are read.
func refuse(rpc raft.RPC, err error) {
	if rpc.Reader == nil {
		rpc.Respond(nil, err)
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(nil, err)
	}()
}

// RequestVote implements [raft.Transport].
func (t *transport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse,
) error {
	if err := t.NetworkTransport.RequestVote(id, target, request, response); err != nil {
		return err
	}
	return believeTerm(request.Term, response.Term)
}

// RequestPreVote implements [raft.WithPreVote].
func (t *transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse,
) error {
	if err := t.NetworkTransport.RequestPreVote(id, target, request, response); err != nil {
		return err
	}
	return believeTerm(request.Term, response.Term)
}
