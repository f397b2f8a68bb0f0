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
// three. The other follower is not needed for that, and gets it from raft itself; where
// entries come thick, several at once, which is one message and one sync: as long as the
// first follower answers, the second is sent entries no more often than every
// [spareEvery].

// forerun is an AppendEntries that was sent before raft asked for it.
type forerun struct {
	request *raft.AppendEntriesRequest
	sent    time.Time

	done     chan struct{} // closed when there is an answer
	response raft.AppendEntriesResponse
	err      error
}

// answers reports whether the answer is one to raft's own request as well: entries of the
// same leader, between the same two places.
func (f *forerun) answers(request *raft.AppendEntriesRequest) bool {
	n := len(f.request.Entries)
	return n == len(request.Entries) &&
		f.request.Term == request.Term &&
		f.request.PrevLogEntry == request.PrevLogEntry && f.request.PrevLogTerm == request.PrevLogTerm &&
		f.request.Entries[n-1].Index == request.Entries[n-1].Index && f.request.Entries[n-1].Term == request.Entries[n-1].Term
}

// isAhead reports whether raft has yet to come to the entries: the request is about what
// lies before them.
func (f *forerun) isAhead(request *raft.AppendEntriesRequest) bool {
	end := request.PrevLogEntry
	if n := len(request.Entries); n > 0 {
		end = request.Entries[n-1].Index
	}
	return f.request.Term == request.Term && end <= f.request.PrevLogEntry
}

// isUnderWay reports whether there is no answer yet.
func (f *forerun) isUnderWay() bool {
	select {
	case <-f.done:
		return false
	default:
		return true
	}
}

// line is the way to a follower, which raft's replicating routine shares with what is
// sent ahead of it.
type line struct {
	mu     sync.Mutex
	busy   bool     // raft's routine uses it
	ahead  *forerun // what raft has yet to find
	latest *forerun // it may be under way still, found or not
	took   time.Duration
	sentAt time.Time // when raft last sent entries
}

// spareEvery is how often a follower is sent entries that is not needed for a majority.
const spareEvery = 10 * time.Millisecond

// enter is raft's routine's: it returns what has been sent ahead of the request, or nil.
// What cannot be found any more is dropped.
func (l *line) enter(request *raft.AppendEntriesRequest) *forerun {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = true
	ahead := l.ahead
	switch {
	case ahead == nil || ahead.isAhead(request):
		return nil
	case !ahead.answers(request):
		ahead = nil
	}
	l.ahead = nil
	return ahead
}

func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
}

// isIdle reports whether something may be sent ahead. l.mu is held.
func (l *line) isIdle() bool {
	return !l.busy && l.ahead == nil && (l.latest == nil || !l.latest.isUnderWay())
}

// overtake leaves something to be found, unless the line is in use.
func (l *line) overtake(ahead *forerun) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isIdle() {
		return false
	}
	l.ahead, l.latest = ahead, ahead
	return true
}

// idle reports whether something may be sent ahead, and how long the follower has taken
// for entries lately.
func (l *line) idle() (took time.Duration, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.took, l.isIdle()
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
			RPCHeader:    raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.self), Addr: local},
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
	if !t.begin() {
		run.err = raft.ErrTransportShutdown
		close(run.done)
		return
	}
	go func() {
		defer t.foreruns.Done()
		run.err = t.exchange(to.ID, to.Address, run.sent, run.request, &run.response)
		close(run.done)
	}()
	// The request should be out before this goroutine keeps the processor busy with the
	// write: the way to the follower and back takes longer than that.
	runtime.Gosched()
}

// spare waits before raft's own request is sent to a follower that is not needed for a
// majority: as long as it takes until spareEvery has passed since the one before, or until
// the follower that has the entries already turns out not to have them. What comes
// meanwhile goes with the next request. One that is as large as they come is not held
// back: its follower has to catch up.
func (t *transport) spare(id raft.ServerID, l *line, request *raft.AppendEntriesRequest) {
	if n := len(request.Entries); n == 0 || n >= appendEntriesMax {
		return
	}
	defer l.sends()
	wait, run := l.pause(), t.covering(id, request)
	if wait <= 0 || run == nil {
		return
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	select {
	case <-run.done:
		if run.err != nil || !run.response.Success {
			return
		}
	case <-over.C:
		return
	case <-t.closing:
		return
	}
	select {
	case <-over.C:
	case <-t.closing:
	}
}

// pause is how long it takes until raft may send entries to a follower that is not needed.
func (l *line) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return spareEvery - time.Since(l.sentAt)
}

// sends notes that raft is about to.
func (l *line) sends() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sentAt = time.Now()
}

// covering returns what has been sent ahead to another follower, if that makes a majority
// for all entries of a request with the leader.
func (t *transport) covering(id raft.ServerID, request *raft.AppendEntriesRequest) *forerun {
	node := t.raft.Load()
	if node == nil {
		return nil
	}
	voters, votes := 0, false // how many, and whether this replica is one
	var covering *forerun
	for _, server := range node.GetConfiguration().Configuration().Servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		votes = votes || server.ID == t.self
		if server.ID == t.self || server.ID == id {
			continue
		}
		if run := t.line(server.ID).covers(request); run != nil {
			covering = run
		}
	}
	if !votes || voters > 3 {
		return nil
	}
	return covering
}

// covers returns what was sent ahead last, if that ends where a request ends or behind it.
func (l *line) covers(request *raft.AppendEntriesRequest) *forerun {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest == nil || l.latest.request.Term != request.Term {
		return nil
	}
	sent := l.latest.request.Entries
	if sent[len(sent)-1].Index < request.Entries[len(request.Entries)-1].Index {
		return nil
	}
	return l.latest
}

// begin counts a forerun that Close waits for, unless that is under way.
func (t *transport) begin() bool {
	t.linesMu.Lock()
	defer t.linesMu.Unlock()
	select {
	case <-t.closing:
		return false
	default:
		t.foreruns.Add(1)
		return true
	}
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
// is that of the request. Raft takes an answer for one that is as new as its request; there
// are some that are too old for that.
func (t *transport) found(run *forerun, response *raft.AppendEntriesResponse) (found bool, err error) {
	if run == nil {
		return false, nil
	}
	<-run.done
	if time.Since(run.sent) >= t.freshFor {
		return false, nil
	}
	*response = run.response
	return true, run.err
}
