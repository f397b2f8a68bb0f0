package raftfsm

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestAcknowledgements(t *testing.T) {
	three := *Voters(raft.Server{ID: "a", Address: "a"}, raft.Server{ID: "b", Address: "b"}, raft.Server{ID: "c", Address: "c"})
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	request := func(term, previous uint64, entries ...uint64) *raft.AppendEntriesRequest {
		r := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: previous}
		for _, index := range entries {
			r.Entries = append(r.Entries, &raft.Log{Index: index})
		}
		return r
	}
	success := func(term uint64) *raft.AppendEntriesResponse {
		return &raft.AppendEntriesResponse{Term: term, Success: true, LastLog: 99}
	}

	a := newAcknowledgements()
	if a.majority(three, "a", 5, at(0)) {
		t.Error("a majority of nothing")
	}
	a.appended("b", at(1), request(5, 0), success(5)) // a heartbeat
	select {
	case <-a.signal:
	default:
		t.Error("not signalled")
	}
	if !a.majority(three, "a", 5, at(0)) {
		t.Error("self and b are a majority")
	}
	if a.majority(three, "a", 5, at(1)) {
		t.Error("what was sent at the moment of the question counts")
	}
	if a.majority(three, "x", 5, at(0)) {
		t.Error("a leader without a vote counts itself")
	}
	if match := a.describe(three, "a", 5)[0].MatchIndex; match != 0 {
		t.Errorf("a heartbeat says nothing of the log: %d", match)
	}

	a.appended("b", at(2), request(5, 7), &raft.AppendEntriesResponse{Term: 5})
	a.appended("b", at(3), request(5, 7), &raft.AppendEntriesResponse{Term: 6, Success: true})
	select {
	case <-a.signal:
		t.Error("a refusal is signalled")
	default:
	}
	if a.majority(three, "a", 5, at(1)) {
		t.Error("a refusal counts")
	}
	a.appended("b", at(4), request(5, 7), success(5))
	a.appended("b", at(2), request(5, 7, 8, 9), success(5)) // sent before, answered after
	if !a.majority(three, "a", 5, at(3)) || a.majority(three, "a", 5, at(4)) {
		t.Error("the latest sent is what counts")
	}
	a.appended("b", at(5), request(5, 3), success(5))
	if follower := a.describe(three, "a", 5)[0]; follower.MatchIndex != 9 || follower.LastContact.IsZero() {
		t.Errorf("%+v", follower)
	}
	if follower := a.describe(three, "a", 0)[0]; follower.MatchIndex != 0 || follower.LastContact.IsZero() {
		t.Errorf("not leading: %+v", follower)
	}
	a.installed("c", &raft.InstallSnapshotRequest{Term: 5, LastLogIndex: 50}, &raft.InstallSnapshotResponse{Success: true})
	if follower := a.describe(three, "a", 5)[1]; follower.MatchIndex != 50 {
		t.Errorf("%+v", follower)
	}

	// A new term forgets; the old one does not come back.
	a.appended("c", at(6), request(7, 0), success(7))
	a.appended("b", at(7), request(5, 9), success(5))
	if a.majority(three, "a", 5, at(0)) {
		t.Error("a term that is over")
	}
	four := three.Clone()
	four.Servers = append(four.Servers, raft.Server{ID: "d", Address: "d", Suffrage: raft.Voter})
	if !a.majority(three, "a", 7, at(5)) || a.majority(four, "a", 7, at(5)) {
		t.Error("self and c are two of three, and two of four are no majority")
	}
	four.Servers[3].Suffrage = raft.Nonvoter
	a.appended("d", at(9), request(7, 0), success(7))
	if !a.majority(four, "a", 7, at(5)) || a.majority(four, "a", 7, at(8)) {
		t.Error("a server without a vote counts")
	}
}

// TestHeartbeatsThatChangeSomethingWaitForTheMainLoop is about the fast path.
func TestHeartbeatsThatChangeSomethingWaitForTheMainLoop(t *testing.T) {
	n := newNetwork()
	cfg := GroupConfig{Self: "a", Layer: n.layer("a"), Timing: DefaultTiming()}
	receiver := newTransport(&cfg, newSlogAdapter(discard()), acceptAll, &terms{})
	defer receiver.Close()
	from := GroupConfig{Self: "b", Layer: n.layer("b"), Timing: DefaultTiming()}
	sender := newTransport(&from, newSlogAdapter(discard()), acceptAll, &terms{})
	defer sender.Close()

	node := &raft.Raft{} // a follower in term 0
	receiver.runs.begin(node)
	receiver.SetHeartbeatHandler(func(rpc raft.RPC) {
		rpc.Respond(&raft.AppendEntriesResponse{Term: 100, Success: true}, nil)
	})
	go func() {
		for rpc := range receiver.Consumer() {
			rpc.Respond(&raft.AppendEntriesResponse{Term: 200, Success: true}, nil)
			if rpc.Command.(*raft.AppendEntriesRequest).Term == 99 {
				return
			}
		}
	}()
	header := raft.RPCHeader{Addr: []byte("b")}
	for _, c := range []struct {
		name    string
		request raft.AppendEntriesRequest
		want    uint64
	}{
		{"another term", raft.AppendEntriesRequest{RPCHeader: header, Term: 3}, 200},
		{"entries", raft.AppendEntriesRequest{RPCHeader: header, Term: 3, PrevLogEntry: 4}, 200},
		{"the last", raft.AppendEntriesRequest{RPCHeader: header, Term: 99}, 200},
	} {
		var response raft.AppendEntriesResponse
		if err := sender.AppendEntries("a", "a", &c.request, &response); err != nil {
			t.Fatal(err)
		}
		if response.Term != c.want {
			t.Errorf("%s: answered by %d", c.name, response.Term)
		}
	}
	for _, c := range []struct {
		command any
		passes  bool
	}{
		{&raft.AppendEntriesRequest{Term: 0}, true},
		{&raft.AppendEntriesRequest{Term: 1}, false},
		{&raft.RequestVoteRequest{}, false},
	} {
		if got := receiver.in.pass(raft.RPC{Command: c.command}, func(raft.RPC) {}); got != c.passes {
			t.Errorf("%+v: passes %v", c.command, got)
		}
	}
	receiver.runs.node.Store(nil)
	if receiver.in.pass(raft.RPC{Command: &raft.AppendEntriesRequest{}}, func(raft.RPC) {}) {
		t.Error("passes without a raft")
	}
	if _, err := sender.AppendEntriesPipeline("a", "a"); err == nil {
		t.Error("a pipeline")
	}
}

type addresses map[raft.ServerID]raft.ServerAddress

func (a addresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if at, ok := a[id]; ok {
		return at, nil
	}
	return "", errUnreachable
}

func TestTheAddressBookKnowsItself(t *testing.T) {
	book := addressBook{ServerAddressProvider: addresses{"b": "b:1"}, self: "a", address: "a:1"}
	if at, err := book.ServerAddr("a"); err != nil || at != "a:1" {
		t.Errorf("a: %s, %v", at, err)
	}
	if at, err := book.ServerAddr("b"); err != nil || at != "b:1" {
		t.Errorf("b: %s, %v", at, err)
	}
	if _, err := book.ServerAddr("c"); err == nil {
		t.Error("c is known")
	}
}

// acceptAll is for transports without a log.
func acceptAll(*raft.AppendEntriesRequest) error { return nil }
