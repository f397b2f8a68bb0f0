package raftfsm

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

// Raft writes an entry to the leader's log, syncs it, and only then sends it: an entry
// takes two syncs one after the other. Here the leader's log hands new entries to the
// transport before it writes them, and they are sent meanwhile. When raft comes to ask
// for the same thing, the answer is there, or on its way.
//
// What is acknowledged is the same as before. Raft counts the leader's own copy once it is
// synced, and a follower's once raft has asked for it, which is after that; a follower
// answers when its copy is synced. A leader that crashes in between leaves entries with
// followers that it does not have itself: nobody has been told of them, and the next
// leader has them or has not, as with any entry that was under way (Ongaro's
// dissertation, section 10.2.1).
//
// An entry is sent ahead only to a follower that has acknowledged all before it, and
// to which nothing is on its way: it finds it where its log ends. So what arrives out of turn is
// never more than one message a follower.

// forerun is an AppendEntries that was sent before raft asked for it.
type forerun struct {
	request *raft.AppendEntriesRequest
	sent    time.Time

	done     chan struct{} // closed when there is an answer
	response raft.AppendEntriesResponse
	err      error
}

// answers reports whether the answer is one to raft's own request as well: entries of the
// same leader, between the same two places. Raft takes an answer for one that is as new
// as its request; one from before fresh is too old for that.
func (f *forerun) answers(request *raft.AppendEntriesRequest, fresh time.Time) bool {
	n := len(f.request.Entries)
	return f.sent.After(fresh) && n == len(request.Entries) &&
		f.request.Term == request.Term &&
		f.request.PrevLogEntry == request.PrevLogEntry && f.request.PrevLogTerm == request.PrevLogTerm &&
		f.request.Entries[n-1].Index == request.Entries[n-1].Index && f.request.Entries[n-1].Term == request.Entries[n-1].Term
}

// line is the way to a follower, which raft's replicating routine shares with what is
// sent ahead of it.
type line struct {
	mu    sync.Mutex
	busy  bool     // raft's routine uses it
	ahead *forerun // what it has yet to find
}

// enter is raft's routine's: it returns what has been sent ahead, or nil.
func (l *line) enter() *forerun {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = true
	ahead := l.ahead
	l.ahead = nil
	return ahead
}

func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
}

// overtake leaves something to be found, unless the line is in use.
func (l *line) overtake(ahead *forerun) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy || l.ahead != nil {
		return false
	}
	l.ahead = ahead
	return true
}

// line returns the line to a follower.
func (t *transport) line(id raft.ServerID) *line {
	t.linesMu.Lock()
	defer t.linesMu.Unlock()
	l := t.lines[id]
	if l == nil {
		l = &line{}
		t.lines[id] = l
	}
	return l
}

// sendAhead sends new entries of this leader to the followers that have all before
// them. It does not wait. The entries must not change any more.
func (t *transport) sendAhead(before store.Position, entries []*raft.Log) {
	node := t.raft.Load()
	if node == nil || before.Term == 0 {
		return
	}
	term := entries[0].Term
	for _, server := range node.GetConfiguration().Configuration().Servers {
		if server.ID == t.self || t.acknowledged.matched(server.ID, term) != before.Index {
			continue
		}
		local := t.EncodePeer(t.self, t.LocalAddr())
		run := &forerun{
			request: &raft.AppendEntriesRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.self), Addr: local},
				Term:      term, Leader: local,
				PrevLogEntry: before.Index, PrevLogTerm: before.Term,
				Entries: entries, LeaderCommitIndex: node.CommitIndex(),
			},
			sent: time.Now(),
			done: make(chan struct{}),
		}
		if t.line(server.ID).overtake(run) {
			t.foreruns.Go(func() {
				run.err = t.exchange(server.ID, server.Address, run.sent, run.request, &run.response)
				close(run.done)
			})
		}
	}
}

// found waits for what was sent ahead of raft's request, and reports whether its answer
// is that of the request.
func (t *transport) found(run *forerun, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse) (found bool, err error) {
	if run == nil {
		return false, nil
	}
	<-run.done
	if !run.answers(request, time.Now().Add(-t.freshFor)) {
		return false, nil
	}
	*response = run.response
	return true, run.err
}
