package raftfsm

import (
	"runtime"
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
// An entry is sent ahead to one follower: the quickest of those that have acknowledged all
// before it and to which nothing is on its way. With the leader that is a majority of
// three; the others get it from raft itself, at the time at which they would have got it
// without this, and several entries at once where they come thick, which is one sync.

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
	took  time.Duration
}

// idle reports whether something may be sent ahead, and how long the follower has taken
// for entries lately.
func (l *line) idle() (took time.Duration, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.took, !l.busy && l.ahead == nil
}

// tookShare is the weight of the latest exchange in how long a follower takes.
const tookShare = 8

// answered notes how long the follower has taken for entries.
func (l *line) answered(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.took == 0 {
		l.took = after
	}
	l.took += (after - l.took) / tookShare
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

// sendAhead sends new entries of this leader to a follower that has all before them. It
// does not wait. The entries must not change any more.
func (t *transport) sendAhead(before store.Position, entries []*raft.Log) {
	node := t.raft.Load()
	if node == nil || before.Term == 0 {
		return
	}
	term := entries[0].Term
	to, l := t.quickest(node.GetConfiguration().Configuration(), before.Index, term)
	if l == nil {
		return
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
	if !l.overtake(run) {
		return
	}
	t.foreruns.Go(func() {
		run.err = t.exchange(to.ID, to.Address, run.sent, run.request, &run.response)
		close(run.done)
	})
	// The request should be out before this goroutine keeps the processor busy with the
	// write: the way to the follower and back takes longer than that.
	runtime.Gosched()
}

// quickest picks the follower that entries behind an index are sent ahead to; nil for
// nobody.
func (t *transport) quickest(configuration raft.Configuration, index, term uint64) (to raft.Server, picked *line) {
	var least time.Duration
	for _, server := range configuration.Servers {
		if server.ID == t.self || server.Suffrage != raft.Voter || t.acknowledged.matched(server.ID, term) != index {
			continue
		}
		l := t.line(server.ID)
		if took, idle := l.idle(); idle && (picked == nil || took < least) {
			to, picked, least = server, l, took
		}
	}
	return to, picked
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
