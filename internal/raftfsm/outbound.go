package raftfsm

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// outbound is a transport's way out: what raft sends to others. Raft calls it from one
// routine a follower for what replicates, from another for heartbeats, and from one for
// each vote; the log calls sendAhead.
//
// Whatever is answered is noted on the way, with the moment before it was sent (exchange):
// [Group.Confirmed] rests on that, and nothing else gets answers from the network.
type outbound struct {
	network      *raft.NetworkTransport
	runs         *running
	closing      <-chan struct{}
	self         raft.ServerID
	acknowledged *acknowledgements
	freshFor     time.Duration // how long the answer to something that was sent is taken for a new one

	held atomic.Int64 // calls that are in hold

	mu       sync.Mutex
	lines    map[raft.ServerID]*line
	ended    bool           // none is added to foreruns any more
	foreruns sync.WaitGroup // what is sent ahead and has no answer
}

// line returns the line to a follower.
func (o *outbound) line(id raft.ServerID) *line {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lines[id]
	if l == nil {
		l = &line{}
		o.lines[id] = l
	}
	return l
}

// begin counts a forerun that Close waits for, unless that is under way.
func (o *outbound) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.foreruns.Add(1)
	}
	return !o.ended
}

// end lets nothing be sent ahead any more.
func (o *outbound) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}

// appendEntries sends raft's request, unless it was sent ahead.
func (o *outbound) appendEntries(
	id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	if isHeartbeat(request) {
		return o.exchange(id, target, time.Now(), request, response)
	}
	l := o.line(id)
	ahead := l.enter(request)
	defer l.leave()
	var taken bool
	var err error
	if ahead != nil {
		taken, err = ahead.take(o.freshFor, response)
	}
	if !taken {
		o.spare(id, l, request)
		err = o.exchange(id, target, time.Now(), request, response)
	}
	if err != nil {
		o.hold(id, request.Term)
	}
	return err
}

// exchange sends a request and notes the answer. sent is before anything is sent: the
// follower answers after that moment.
func (o *outbound) exchange(
	id raft.ServerID, target raft.ServerAddress, sent time.Time, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	if err := o.network.AppendEntries(id, target, request, response); err != nil {
		return err
	}
	if len(request.Entries) > 0 {
		o.line(id).answered(time.Since(sent))
	}
	o.acknowledged.appended(id, sent, request, response)
	return nil
}

// isHeartbeat tells a heartbeat as raft and its network transport do: everything else
// comes from the routine that replicates, of which there is one a follower.
func isHeartbeat(request *raft.AppendEntriesRequest) bool {
	return request.PrevLogEntry == 0 && request.PrevLogTerm == 0 && len(request.Entries) == 0 && request.LeaderCommitIndex == 0
}

// installSnapshot sends a state.
func (o *outbound) installSnapshot(
	id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse, data io.Reader,
) error {
	if err := o.network.InstallSnapshot(id, target, request, response, data); err != nil {
		o.hold(id, request.Term) // raft makes a copy of the state before it tries again
		return err
	}
	o.acknowledged.installed(id, request, response)
	return nil
}

// holdLook is how often hold looks whether there is still something to wait for.
const holdLook = 100 * time.Millisecond

// hold keeps the replicating routine until the follower answers something: heartbeats
// go on and find it, at the latest half a Heartbeat after it is back. Raft itself would
// wait twice as long after each failure, up to 10 s, and learn only then that a follower
// is there again, which by its heartbeats counts as a member in good health. Whoever
// restarts one node after the other would take the majority away.
//
// It ends with the leadership, with the follower's membership and with the transport. A
// transfer of leadership to a follower that is held for would wait for its routine;
// [Group.TransferLeadership] asks only for one that has just answered.
func (o *outbound) hold(id raft.ServerID, term uint64) {
	o.held.Add(1)
	defer o.held.Add(-1)
	answered := o.acknowledged.next(id)
	look := time.NewTicker(holdLook)
	defer look.Stop()
	for o.replicates(id, term) {
		select {
		case <-answered:
			return
		case <-o.closing:
			return
		case <-look.C:
		}
	}
}

// replicates reports whether this replica still leads that term and has that follower.
func (o *outbound) replicates(id raft.ServerID, term uint64) bool {
	node := o.runs.raft()
	if node == nil || node.State() != raft.Leader || node.CurrentTerm() != term {
		return false
	}
	_, follows := address(node.GetConfiguration().Configuration(), id)
	return follows
}

// requestVote asks for a vote. Raft takes the term of the answer for its own, so it is
// looked at first, as is that of requestPreVote.
func (o *outbound) requestVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse,
) error {
	if err := o.network.RequestVote(id, target, request, response); err != nil {
		return err
	}
	return believeTerm(request.Term, response.Term)
}

// requestPreVote asks whether there would be a vote.
func (o *outbound) requestPreVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse,
) error {
	if err := o.network.RequestPreVote(id, target, request, response); err != nil {
		return err
	}
	return believeTerm(request.Term, response.Term)
}
