package raftfsm

import (
	"time"

	"github.com/hashicorp/raft"
)

// Of two followers, the one to which entries are sent ahead makes a majority with the leader.
// The other is not needed for that, and gets them from raft itself; where entries come thick,
// several at once, which is one message and one sync: as long as the first answers, the
// second is sent entries no more often than every [spareEvery].

// spareEvery is how often a follower is sent entries that is not needed for a majority.
const spareEvery = 10 * time.Millisecond

// spare waits before raft's own request is sent to a follower that is not needed for a
// majority: as long as it takes until spareEvery has passed since the one before, or until
// the follower that has the entries already turns out not to have them. What comes
// meanwhile goes with the next request. One that is as large as they come is not held
// back: its follower has to catch up.
func (o *outbound) spare(id raft.ServerID, l *line, request *raft.AppendEntriesRequest) {
	if n := len(request.Entries); n == 0 || n >= appendEntriesMax {
		return
	}
	defer l.sends()
	wait, run := l.pause(), o.covering(id, request)
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
	case <-o.closing:
		return
	}
	select {
	case <-over.C:
	case <-o.closing:
	}
}

// covering returns what has been sent ahead to another follower, if that makes a majority
// for all entries of a request with the leader.
func (o *outbound) covering(id raft.ServerID, request *raft.AppendEntriesRequest) *forerun {
	node := o.runs.raft()
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
		votes = votes || server.ID == o.self
		if server.ID == o.self || server.ID == id {
			continue
		}
		if run := o.line(server.ID).covers(request); run != nil {
			covering = run
		}
	}
	if !votes || voters > 3 {
		return nil
	}
	return covering
}
