package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// inbound is a transport's way in: what others send to raft. All of it, but for heartbeats
// that change nothing, is looked at before raft acts on it (deliver): raft takes the term of
// whatever it is told for its own, stores what cannot be read again, and panics over what no
// peer sends. Nothing is delivered before raft runs.
//
// There are two ways on to raft: consumer, which its main loop reads, and the handler of
// heartbeats, which the connection's own goroutine calls (setHeartbeatHandler).
type inbound struct {
	network *raft.NetworkTransport
	runs    *running
	closing <-chan struct{}

	// accept looks at what a leader sends; what it returns an error for is answered
	// with that and goes no further.
	accept   func(*raft.AppendEntriesRequest) error
	terms    *terms
	declines atomic.Bool // takes over from nobody
	consumer chan raft.RPC
	done     chan struct{} // closed at the end of forward
}

// forward hands what comes in to raft's main loop.
func (i *inbound) forward() {
	defer close(i.done)
	for {
		select {
		case rpc := <-i.network.Consumer():
			if !i.deliver(rpc) {
				return
			}
		case <-i.closing:
			return
		}
	}
}

// deliver hands a message to raft's main loop, or refuses it. It returns false where the
// transport closes.
func (i *inbound) deliver(rpc raft.RPC) bool {
	select {
	case <-i.runs.began:
	case <-i.closing:
		rpc.Respond(nil, raft.ErrTransportShutdown)
		return false
	}
	err := believe(i.runs.raft().CurrentTerm(), rpc.Command)
	if request, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && err == nil {
		err = i.accept(request)
	}
	if err != nil {
		refuse(rpc, err)
		return true
	}
	if _, ok := rpc.Command.(*raft.TimeoutNowRequest); ok {
		if i.declines.Load() {
			rpc.Respond(nil, errDeclines)
			return true
		}
		i.terms.stand()
	}
	select {
	case i.consumer <- rpc:
		return true
	case <-i.closing:
		rpc.Respond(nil, raft.ErrTransportShutdown)
		return false
	}
}

// errDeclines is what who hands over to a replica is told that is about to be closed.
var errDeclines = errors.New("this replica is about to be closed, and takes over from nobody")

// setHeartbeatHandler sets raft's handler, which is called beside its main loop.
func (i *inbound) setHeartbeatHandler(handle func(raft.RPC)) {
	i.network.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !i.pass(rpc, handle) {
			i.deliver(rpc)
		}
	})
}

// pass hands a heartbeat to raft's handler if it is steady, and reports whether it was.
func (i *inbound) pass(rpc raft.RPC, handle func(raft.RPC)) bool {
	heartbeat, ok := rpc.Command.(*raft.AppendEntriesRequest)
	return ok && i.terms.during(heartbeat.Term, func() bool {
		steady := i.steady(heartbeat)
		if steady {
			handle(rpc)
		}
		return steady
	})
}

// steady reports whether a heartbeat is from the leader of the term that this follower is in
// already. Any other may change something, and waits for the main loop. That the follower
// may be a candidate a moment later does no harm: [terms].
func (i *inbound) steady(heartbeat *raft.AppendEntriesRequest) bool {
	node := i.runs.raft()
	return node != nil && node.State() == raft.Follower && node.CurrentTerm() == heartbeat.Term
}

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
		if r.Size <= 0 { // raft would take its own for what it has received, and copy that
			return fmt.Errorf("a state at entry %d of %d bytes", r.LastLogIndex, r.Size)
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
