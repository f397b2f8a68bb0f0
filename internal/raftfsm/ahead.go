package raftfsm

import (
	"runtime"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

// Raft writes an entry to the leader's log, syncs it, and only then sends it: an entry
// takes two syncs one after the other. Here the leader's log hands new entries to the
// transport before it writes them, and they are sent meanwhile. When raft comes to ask
// for the same thing, the answer is there, or on its way: [line].
//
// What is acknowledged is the same as before. Raft counts the leader's own copy once it is
// synced, and a follower's once raft has asked for it, which is after that; a follower
// answers when its copy is synced. A leader that crashes in between leaves entries with
// followers that it does not have itself: nobody has been told of them, and the next
// leader has them or has not, as with any entry that was under way (Ongaro's
// dissertation, section 10.2.1).
//
// An entry is sent ahead to one follower: the quickest of those that have acknowledged all
// before it and to which nothing is on its way. With the leader that is a majority of
// three. The other follower is not needed for that: [outbound.spare].

// sendAhead sends new entries of this leader to a follower that has all before them. It
// does not wait. The entries must not change any more.
func (o *outbound) sendAhead(before store.Position, entries []*raft.Log) {
	node := o.runs.raft()
	if node == nil || before.Term == 0 {
		return
	}
	term := entries[0].Term
	to, l := o.quickest(node.GetConfiguration().Configuration(), before.Index, term)
	if l == nil {
		return
	}
	local := o.network.EncodePeer(o.self, o.network.LocalAddr())
	run := &forerun{
		request: &raft.AppendEntriesRequest{
			RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(o.self), Addr: local},
			Term:         term,
			PrevLogEntry: before.Index, PrevLogTerm: before.Term,
			Entries: entries, LeaderCommitIndex: node.CommitIndex(),
		},
		sent: time.Now(),
		done: make(chan struct{}),
	}
	if !l.overtake(run) {
		return
	}
	if !o.begin() {
		run.err = raft.ErrTransportShutdown
		close(run.done)
		return
	}
	go func() {
		defer o.foreruns.Done()
		run.err = o.exchange(to.ID, to.Address, run.sent, run.request, &run.response)
		close(run.done)
	}()
	// The request should be out before this goroutine keeps the processor busy with the
	// write: the way to the follower and back takes longer than that.
	runtime.Gosched()
}

// quickest picks the follower that entries behind an index are sent ahead to; nil for
// nobody.
func (o *outbound) quickest(configuration raft.Configuration, index, term uint64) (to raft.Server, picked *line) {
	var least time.Duration
	for _, server := range configuration.Servers {
		if server.ID == o.self || server.Suffrage != raft.Voter || o.acknowledged.matched(server.ID, term) != index {
			continue
		}
		l := o.line(server.ID)
		if took, idle := l.idle(); idle && (picked == nil || took < least) {
			to, picked, least = server, l, took
		}
	}
	return to, picked
}
