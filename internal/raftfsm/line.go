package raftfsm

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

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

// take waits for the answer and gives it to raft's request, which it answers as well, unless
// the entries were sent longer ago than is said: raft takes an answer for one that is as new
// as its request.
func (f *forerun) take(freshFor time.Duration, response *raft.AppendEntriesResponse) (taken bool, err error) {
	<-f.done
	if time.Since(f.sent) >= freshFor {
		return false, nil
	}
	*response = f.response
	return true, f.err
}

// line is the way to one follower. Two use it: raft's replicating routine, between enter and
// leave, and before it the log's appends, which overtake. What is sent ahead goes through
// it like this:
//
//	         overtake                enter, with the same                answer
//	nothing ──────────▶ sent ahead ───────────────────────▶ found ───────────────▶ nothing
//	                        └─────────────────────────────▶ dropped ─────┘
//	                          enter, with what lies behind
//
// Three things hold:
//
//  1. One at a time: nothing is sent ahead while raft's routine is in a call, has yet to come
//     to what was sent before, or that has no answer (isIdle).
//  2. An answer is given to one request of raft's, and to none that it is no answer to (enter).
//  3. Raft waits for nothing that it cannot use: what it has passed is dropped, and what is
//     before it is left where it is (enter).
//
// There may be two routines for a while, where a follower is removed and added again or its
// leader elected again. The first to leave lets something be sent ahead then, beside the
// other's request: the follower skips what it has already, and refuses what it cannot put
// behind anything.
type line struct {
	mu sync.Mutex

	busy   bool     // raft's routine is in a call
	ahead  *forerun // sent ahead, and raft has yet to come to it
	latest *forerun // the last that was sent ahead, whatever became of it

	took   time.Duration // how long the follower has taken for entries lately
	sentAt time.Time     // when raft last sent entries itself
}

// enter is raft's routine's, with its next request. It returns what has been sent ahead of
// that and is to be waited for, or nil.
func (l *line) enter(request *raft.AppendEntriesRequest) *forerun {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = true
	ahead := l.ahead
	if ahead == nil || ahead.isAhead(request) {
		return nil
	}
	l.ahead = nil
	if !ahead.answers(request) {
		return nil
	}
	return ahead
}

// leave is raft's routine's, at the end of its call.
func (l *line) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
}

// isIdle reports whether something may be sent ahead. l.mu is held.
func (l *line) isIdle() bool {
	return !l.busy && l.ahead == nil && (l.latest == nil || !l.latest.isUnderWay())
}

// overtake leaves something for raft to come to, unless the line is in use. Whoever does it
// sends that.
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
