package raftfsm

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Follower is what is known of another server of the group.
type Follower struct {
	ID      raft.ServerID
	Address raft.ServerAddress // in the configuration; it may be reached elsewhere
	Voter   bool
	// MatchIndex is the last index that it has acknowledged in this term; 0 where
	// this replica is not the leader or has not heard of it yet.
	MatchIndex uint64
	// LastContact is when an answer of it came in, on this node's clock; zero for
	// never.
	LastContact time.Time
}

// acknowledgements remembers what followers have answered to the AppendEntries of
// the newest term that this replica has led.
type acknowledgements struct {
	signal chan struct{} // conflating: something has been acknowledged

	mu        sync.Mutex
	term      uint64
	followers map[raft.ServerID]*acknowledgement
	// wanted says that the latest majority that was asked for was not there. Only then
	// is the next acknowledgement signalled: heartbeats are acknowledged all the time,
	// and an idle leader is not to be woken by each.
	wanted bool
}

type acknowledgement struct {
	sent    time.Time // of the latest request of the term that was answered with success
	match   uint64
	contact time.Time // of the latest answer in any term

	awaited chan struct{} // closed with the next answer; nil where nobody waits
}

func newAcknowledgements() *acknowledgements {
	return &acknowledgements{signal: make(chan struct{}, 1), followers: make(map[raft.ServerID]*acknowledgement)}
}

// of returns the follower's entry for the term, or nil where the term is over.
// a.mu is held.
func (a *acknowledgements) of(id raft.ServerID, term uint64) *acknowledgement {
	if term > a.term {
		a.term = term
		for _, follower := range a.followers {
			follower.sent, follower.match = time.Time{}, 0
		}
	}
	follower := a.entry(id)
	follower.contact = time.Now()
	if follower.awaited != nil {
		close(follower.awaited)
		follower.awaited = nil
	}
	if term < a.term {
		return nil
	}
	return follower
}

// entry returns the follower's entry. a.mu is held.
func (a *acknowledgements) entry(id raft.ServerID) *acknowledgement {
	follower := a.followers[id]
	if follower == nil {
		follower = &acknowledgement{}
		a.followers[id] = follower
	}
	return follower
}

// next returns a channel that is closed when the follower next answers anything.
func (a *acknowledgements) next(id raft.ServerID) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	follower := a.entry(id)
	if follower.awaited == nil {
		follower.awaited = make(chan struct{})
	}
	return follower.awaited
}

// appended notes the answer to an AppendEntries. A heartbeat counts as a sign that
// the follower had promised no later term, which is all that its success means; of
// the follower's log it says nothing.
func (a *acknowledgements) appended(
	id raft.ServerID, sent time.Time, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) {
	a.mu.Lock()
	follower := a.of(id, request.Term)
	success := follower != nil && response.Success && response.Term == request.Term
	if success {
		if sent.After(follower.sent) {
			follower.sent = sent
		}
		match := request.PrevLogEntry
		if n := len(request.Entries); n > 0 {
			match = request.Entries[n-1].Index
		}
		follower.match = max(follower.match, match)
	}
	wake := success && a.wanted
	if wake {
		a.wanted = false
	}
	a.mu.Unlock()
	if wake {
		a.wake()
	}
}

// matched returns the last index that the follower has acknowledged in the term; 0 where
// that is not known.
func (a *acknowledgements) matched(id raft.ServerID, term uint64) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if term != a.term {
		return 0
	}
	return a.entry(id).match
}

// installed notes the answer to an InstallSnapshot.
func (a *acknowledgements) installed(id raft.ServerID, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	follower := a.of(id, request.Term)
	if follower != nil && response.Success {
		follower.match = max(follower.match, request.LastLogIndex)
	}
}

func (a *acknowledgements) wake() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}

// majority reports whether more than half of the configuration's voters have
// acknowledged something of the term that was sent after since. self counts if it
// is one of them.
func (a *acknowledgements) majority(configuration raft.Configuration, self raft.ServerID, term uint64, since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	voters, confirmed := 0, 0
	for _, server := range configuration.Servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		if server.ID == self {
			confirmed++
		} else if follower := a.followers[server.ID]; follower != nil && term == a.term && follower.sent.After(since) {
			confirmed++
		}
	}
	if confirmed > voters/2 {
		return true
	}
	a.wanted = true
	return false
}

// describe returns the servers of the configuration without self. leading is the
// term that this replica leads, or 0.
func (a *acknowledgements) describe(configuration raft.Configuration, self raft.ServerID, leading uint64) []Follower {
	a.mu.Lock()
	defer a.mu.Unlock()
	var followers []Follower
	for _, server := range configuration.Servers {
		if server.ID == self {
			continue
		}
		follower := Follower{ID: server.ID, Address: server.Address, Voter: server.Suffrage == raft.Voter}
		if known := a.followers[server.ID]; known != nil {
			follower.LastContact = known.contact
			if leading == a.term {
				follower.MatchIndex = known.match
			}
		}
		followers = append(followers, follower)
	}
	return followers
}
