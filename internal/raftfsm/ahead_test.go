package raftfsm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

// following returns a request with entries of its own term, behind the given place.
func following(term, previous, previousTerm uint64, entries ...uint64) *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: previous, PrevLogTerm: previousTerm}
	for _, index := range entries {
		r.Entries = append(r.Entries, &raft.Log{Index: index, Term: term})
	}
	return r
}

// An answer is that of a request only where it could not have been another.
func TestAnAnswerIsThatOfTheSameRequest(t *testing.T) {
	ahead := forerun{request: following(5, 7, 4, 8, 9)}
	other := following(5, 7, 4, 8, 9)
	other.Entries[1].Term = 4
	committed := following(5, 7, 4, 8, 9)
	committed.LeaderCommitIndex = 7
	later := following(5, 7, 4, 8, 9) // as a leader sends them that was elected once more
	later.Term = 6
	for _, test := range []struct {
		name    string
		request *raft.AppendEntriesRequest
		want    bool
	}{
		{"the same", following(5, 7, 4, 8, 9), true},
		{"of a leader that has committed more", committed, true},
		{"of a later term", later, false},
		{"with entries of a later term", following(6, 7, 4, 8, 9), false},
		{"of an earlier term", following(4, 7, 4, 8, 9), false},
		{"behind another entry", following(5, 6, 4, 8, 9), false},
		{"behind an entry of another term", following(5, 7, 5, 8, 9), false},
		{"from the beginning", following(5, 0, 0, 8, 9), false},
		{"with fewer entries", following(5, 7, 4, 8), false},
		{"with more entries", following(5, 7, 4, 8, 9, 10), false},
		{"with other entries", following(5, 7, 4, 8, 10), false},
		{"with an entry of another term", other, false},
		{"without entries", following(5, 7, 4), false},
	} {
		if got := ahead.answers(test.request); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// arrived is one that has its answer.
func arrived(request *raft.AppendEntriesRequest) *forerun {
	done := make(chan struct{})
	close(done)
	return &forerun{request: request, sent: time.Now(), done: done}
}

// A line carries one thing at a time: raft's, or one that is ahead of it.
func TestALineIsUsedByOne(t *testing.T) {
	idle := func(l *line) bool { _, idle := l.idle(); return idle }
	l := &line{}
	request := following(5, 7, 4, 8)
	first, second := arrived(request), arrived(request)
	if !idle(l) || !l.overtake(first) {
		t.Fatal("a fresh line is not idle")
	}
	if idle(l) || l.overtake(second) {
		t.Error("two are ahead of raft")
	}
	if l.enter(request) != first {
		t.Error("raft does not find what is ahead of it")
	}
	if idle(l) || l.overtake(second) {
		t.Error("something is ahead while raft is on its way")
	}
	l.leave()
	if l.enter(request) != nil {
		t.Error("raft finds the same a second time")
	}
	l.leave()
	if !idle(l) || !l.overtake(second) || l.enter(request) != second {
		t.Error("the line does not become idle")
	}
}

func TestHowLongAFollowerTakes(t *testing.T) {
	l := &line{}
	for _, test := range []struct{ after, want time.Duration }{
		{8 * time.Millisecond, 8 * time.Millisecond}, // the first is all that is known
		{16 * time.Millisecond, 9 * time.Millisecond},
		{time.Millisecond, 8 * time.Millisecond},
	} {
		l.answered(test.after)
		if took, _ := l.idle(); took != test.want {
			t.Errorf("after %v: %v, want %v", test.after, took, test.want)
		}
	}
}

func TestWhomIsSentToAhead(t *testing.T) {
	voter := func(id raft.ServerID) raft.Server { return raft.Server{ID: id, Address: raft.ServerAddress(id)} }
	three := raft.Configuration{Servers: []raft.Server{voter("a"), voter("b"), voter("c")}}
	for _, test := range []struct {
		name    string
		prepare func(tr *outbound)
		servers []raft.Server // where they are not three
		want    raft.ServerID
	}{
		{name: "the quickest", want: "c"},
		{name: "one that nothing is known of", prepare: func(tr *outbound) { tr.line("b").took = 0 }, want: "b"},
		{name: "not one that is behind", prepare: func(tr *outbound) {
			tr.acknowledged.followers["c"].match = 6
		}, want: "b"},
		{name: "not one that is thought to be further", prepare: func(tr *outbound) {
			tr.acknowledged.followers["c"].match = 8
		}, want: "b"},
		{name: "not one that raft is on its way to", prepare: func(tr *outbound) { tr.line("c").enter(following(5, 6, 4, 7)) }, want: "b"},
		{name: "not one that has an answer waiting", prepare: func(tr *outbound) { tr.line("c").overtake(arrived(following(5, 7, 4, 8))) }, want: "b"},
		{name: "nobody", prepare: func(tr *outbound) {
			tr.line("b").enter(following(5, 6, 4, 7))
			tr.line("c").enter(following(5, 6, 4, 7))
		}},
		{name: "nobody in a term that nothing was acknowledged in", prepare: func(tr *outbound) {
			tr.acknowledged.appended("b", time.Now(), following(6, 0, 0), &raft.AppendEntriesResponse{Term: 6, Success: true})
		}},
		{name: "not one without a vote", servers: []raft.Server{voter("a"), voter("b"), {ID: "c", Suffrage: raft.Nonvoter}}, want: "b"},
		{name: "not one that was removed", servers: []raft.Server{voter("a"), voter("b")}, want: "b"},
		{name: "not itself", servers: []raft.Server{voter("a")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := &outbound{self: "a", acknowledged: newAcknowledgements(), lines: make(map[raft.ServerID]*line)}
			for _, id := range []raft.ServerID{"a", "b", "c"} {
				tr.acknowledged.appended(id, time.Now(), following(5, 6, 5, 7), &raft.AppendEntriesResponse{Term: 5, Success: true})
			}
			tr.line("b").answered(3 * time.Millisecond)
			tr.line("c").answered(2 * time.Millisecond)
			if test.prepare != nil {
				test.prepare(tr)
			}
			configuration := three
			if test.servers != nil {
				configuration.Servers = test.servers
			}
			to, picked := tr.quickest(configuration, 7, 5)
			if to.ID != test.want || (picked != nil) != (test.want != "") {
				t.Errorf("%q, want %q", to.ID, test.want)
			}
			if picked != nil && picked != tr.line(to.ID) {
				t.Error("the line is another one's")
			}
		})
	}
}

// pair joins a transport to one whose answers say how many requests there were before.
func pair(t *testing.T, test func(t *testing.T, sender *transport, count func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		open := func(at raft.ServerAddress) *transport {
			cfg := GroupConfig{Self: raft.ServerID(at), Layer: n.layer(at), Timing: DefaultTiming()}
			return newTransport(&cfg, newSlogAdapter(discard()), acceptAll, &terms{})
		}
		receiver, sender := open("b"), open("a")
		receiver.runs.begin(&raft.Raft{})
		requests, stop, done := 0, make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case rpc := <-receiver.Consumer():
					requests++
					rpc.Respond(&raft.AppendEntriesResponse{Term: rpc.Command.(*raft.AppendEntriesRequest).Term, LastLog: 100, Success: true}, nil)
				case <-stop:
					return
				}
			}
		}()
		test(t, sender, func() int {
			synctest.Wait()
			return requests
		})
		close(stop)
		<-done
		if err := errors.Join(sender.Close(), receiver.Close()); err != nil {
			t.Error(err)
		}
	})
}

// asked returns raft's own request, with an address that the receiver can take.
func asked(request *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	request.RPCHeader = raft.RPCHeader{Addr: []byte("a")}
	return request
}

func TestWhatWasSentAheadIsNotSentAgain(t *testing.T) {
	failed := errors.New("the connection broke")
	for _, test := range []struct {
		name    string
		request *raft.AppendEntriesRequest
		old     time.Duration
		err     error
		sent    int // by raft's own request
		want    error
	}{
		{name: "the same request", request: following(5, 7, 4, 8)},
		{name: "the same request, which failed", request: following(5, 7, 4, 8), err: failed, want: failed},
		{name: "another request", request: following(5, 6, 4, 7, 8), sent: 1},
		{name: "another request than the one that failed", request: following(5, 6, 4, 7, 8), err: failed, sent: 1},
		{name: "the same request, long ago", request: following(5, 7, 4, 8), old: time.Second, sent: 1},
		{name: "the same request, which failed long ago", request: following(5, 7, 4, 8), old: time.Second, err: failed, sent: 1},
		{name: "a message without entries", request: following(5, 8, 5), sent: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			pair(t, func(t *testing.T, sender *transport, count func() int) {
				ahead := &forerun{
					request: following(5, 7, 4, 8), sent: time.Now(), done: make(chan struct{}),
					response: raft.AppendEntriesResponse{Term: 5, LastLog: 8, Success: true}, err: test.err,
				}
				sender.out.line("b").overtake(ahead)
				close(ahead.done)
				time.Sleep(test.old)
				var response raft.AppendEntriesResponse
				if err := sender.AppendEntries("b", "b", asked(test.request), &response); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
					t.Fatalf("error %v, want %v", err, test.want)
				}
				if n := count(); n != test.sent {
					t.Errorf("raft's request was sent %d times, want %d", n, test.sent)
				}
				if wanted := uint64(8 + 92*test.sent); test.want == nil && response.LastLog != wanted {
					t.Errorf("the answer is %+v, want the one that says %d", response, wanted)
				}
				if _, idle := sender.out.line("b").idle(); !idle {
					t.Error("the line is in use after that")
				}
				// And the next time there is nothing to be found.
				before := count()
				if err := sender.AppendEntries("b", "b", asked(following(5, 7, 4, 8)), &response); err != nil || count() != before+1 {
					t.Errorf("the same again: %v, sent %d times", err, count()-before)
				}
			})
		})
	}
}

// Raft waits for what is on its way, which is how it would be with a request of its own.
func TestRaftWaitsForWhatIsOnItsWay(t *testing.T) {
	pair(t, func(t *testing.T, sender *transport, count func() int) {
		ahead := &forerun{request: following(5, 7, 4, 8), sent: time.Now(), done: make(chan struct{})}
		sender.out.line("b").overtake(ahead)
		answered := make(chan error, 1)
		go func() {
			answered <- sender.AppendEntries("b", "b", asked(following(5, 7, 4, 8)), &raft.AppendEntriesResponse{})
		}()
		time.Sleep(100 * time.Millisecond)
		if n := count(); n != 0 || len(answered) != 0 {
			t.Fatalf("sent %d times and answered %d times while the answer is on its way", n, len(answered))
		}
		close(ahead.done)
		if err := <-answered; err != nil || count() != 0 {
			t.Errorf("error %v, sent %d times", err, count())
		}
	})
}

// A heartbeat goes its own way, whatever is ahead.
func TestHeartbeatsDoNotWaitForWhatIsAhead(t *testing.T) {
	pair(t, func(t *testing.T, sender *transport, count func() int) {
		ahead := &forerun{request: following(5, 7, 4, 8), sent: time.Now(), done: make(chan struct{})}
		sender.out.line("b").overtake(ahead)
		if err := sender.AppendEntries("b", "b", asked(following(5, 0, 0)), &raft.AppendEntriesResponse{}); err != nil || count() != 1 {
			t.Errorf("error %v, sent %d times", err, count())
		}
		if sender.out.line("b").enter(following(5, 7, 4, 8)) != ahead {
			t.Error("the heartbeat has taken what was ahead")
		}
	})
}

// What does not fit behind the log's end is nobody's to send.
func TestNothingIsSentAheadBehindAnUnknownPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		cfg := GroupConfig{Self: "a", Layer: n.layer("a"), Timing: DefaultTiming()}
		tr := newTransport(&cfg, newSlogAdapter(discard()), acceptAll, &terms{})
		entries := []*raft.Log{{Index: 8, Term: 5}}
		tr.out.sendAhead(store.Position{Index: 7, Term: 4}, entries) // there is no raft yet
		tr.runs.begin(&raft.Raft{})
		tr.out.sendAhead(store.Position{Index: 7}, entries)
		tr.out.sendAhead(store.Position{Index: 7, Term: 4}, entries) // in a group of nobody
		if len(tr.out.lines) != 0 {
			t.Errorf("%d followers were looked at", len(tr.out.lines))
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What cannot be the answer is not waited for: a call of a term that is over may hang for
// as long as a call may, and the follower be reachable on another connection.
func TestWhatCannotBeTheAnswerIsNotWaitedFor(t *testing.T) {
	for _, request := range []*raft.AppendEntriesRequest{following(6, 7, 4, 8), following(5, 7, 4), following(5, 6, 4, 7, 8)} {
		pair(t, func(t *testing.T, sender *transport, count func() int) {
			ahead := &forerun{request: following(5, 7, 4, 8), sent: time.Now(), done: make(chan struct{})}
			sender.out.line("b").overtake(ahead)
			answered := make(chan error, 1)
			go func() {
				answered <- sender.AppendEntries("b", "b", asked(request), &raft.AppendEntriesResponse{})
			}()
			synctest.Wait()
			if len(answered) != 1 || count() != 1 {
				t.Errorf("a request of term %d with %d entries waits for one of term 5", request.Term, len(request.Entries))
			}
			close(ahead.done)
			if err := <-answered; err != nil {
				t.Error(err)
			}
		})
	}
}

// What is sent before raft comes to the entries does not make it forget that they are
// there; and while the first has no answer there is no second.
func TestWhatIsAheadStaysAhead(t *testing.T) {
	l := &line{}
	ahead := &forerun{request: following(5, 7, 4, 8), sent: time.Now(), done: make(chan struct{})}
	l.overtake(ahead)
	for _, before := range []*raft.AppendEntriesRequest{following(5, 7, 4), following(5, 6, 4, 7), following(5, 5, 4, 6)} {
		if l.enter(before) != nil {
			t.Errorf("found by %v", before)
		}
		l.leave()
	}
	if l.enter(following(5, 8, 5, 9)) != nil {
		t.Error("found by what lies behind it")
	}
	l.leave()
	if _, idle := l.idle(); idle || l.overtake(arrived(following(5, 8, 5, 9))) {
		t.Error("another is sent ahead while the first has no answer")
	}
	close(ahead.done)
	if !l.overtake(arrived(following(5, 8, 5, 9))) {
		t.Error("nothing is sent ahead any more")
	}
}
