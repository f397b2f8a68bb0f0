package raftfsm

import (
	"runtime"
	"testing"

	"github.com/hashicorp/raft"
)

// A heartbeat that passes raft's main loop, which becomes a candidate just then and votes:
// what the handler does of the term comes before the vote. And no heartbeat of the term before
// passes once the next is noted, although raft has yet to say that it is in that.
func TestTheTermIsNotRaisedWhileAHeartbeatPasses(t *testing.T) {
	log, fatal, err := testLog(t, t.TempDir(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	noted := func() uint64 {
		term, err := log.log.GetUint64(keyCurrentTerm)
		if err != nil {
			t.Error(err)
		}
		return term
	}
	way := inbound{runs: &running{began: make(chan struct{})}, terms: &log.terms}
	way.runs.begin(&raft.Raft{}) // a follower in term 0
	heartbeat := raft.RPC{Command: &raft.AppendEntriesRequest{Term: 0}}
	raised := make(chan error, 1)
	passed := way.pass(heartbeat, func(raft.RPC) {
		go func() { raised <- log.SetUint64(keyCurrentTerm, 1) }() // the main loop
		for len(raised) == 0 && log.terms.passing.TryRLock() {     // until it is there, or through
			log.terms.passing.RUnlock()
			runtime.Gosched()
		}
		if term := noted(); term != 0 {
			t.Errorf("term %d is noted while a heartbeat of term 0 passes", term)
		}
		if err := log.SetUint64(keyCurrentTerm, 0); err != nil {
			t.Errorf("the handler cannot set the heartbeat's term: %v", err)
		}
	})
	if err := <-raised; err != nil || !passed || noted() != 1 || len(*fatal) != 0 {
		t.Errorf("passed %v, term %d, %v, %v", passed, noted(), err, *fatal)
	}
	if way.pass(heartbeat, func(raft.RPC) {}) {
		t.Error("a heartbeat passes in a term that is over")
	}
}

// A follower that is told to stand for election: a heartbeat of its leader that came before is
// through by then, and none passes raft's main loop any more, which would be made a follower
// again before it has asked for a vote.
func TestNoHeartbeatPassesWhoIsToldToStand(t *testing.T) {
	way := inbound{runs: &running{began: make(chan struct{})}, terms: &terms{}, consumer: make(chan raft.RPC, 1)}
	way.runs.begin(&raft.Raft{}) // a follower in term 0
	heartbeat := raft.RPC{Command: &raft.AppendEntriesRequest{Term: 0}}
	told := make(chan struct{})
	passed := way.pass(heartbeat, func(raft.RPC) {
		go func() {
			defer close(told)
			way.deliver(raft.RPC{Command: &raft.TimeoutNowRequest{}})
		}()
		for len(way.consumer) == 0 && way.terms.passing.TryRLock() { // until it waits, or is there
			way.terms.passing.RUnlock()
			runtime.Gosched()
		}
		if len(way.consumer) != 0 {
			t.Error("raft is told to stand while a heartbeat passes")
		}
	})
	<-told
	if !passed || len(way.consumer) != 1 {
		t.Errorf("the heartbeat before passed: %v; raft was told to stand: %d times", passed, len(way.consumer))
	}
	if way.pass(heartbeat, func(raft.RPC) {}) {
		t.Error("a heartbeat passes who is told to stand")
	}
	if err := way.terms.note(1, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if !way.terms.during(1, func() bool { return true }) {
		t.Error("heartbeats do not pass in the next term")
	}
}

func TestATermNeverGoesBack(t *testing.T) {
	dir := t.TempDir()
	log, _, err := testLog(t, dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, term := range []uint64{1, 5, 5} {
		if err := log.SetUint64(keyCurrentTerm, term); err != nil {
			t.Error(err)
		}
	}
	if err := log.close(); err != nil {
		t.Fatal(err)
	}
	log, fatal, err := testLog(t, dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.noteTerm(); err != nil {
		t.Fatal(err)
	}
	if err := log.SetUint64(keyCurrentTerm, 4); err == nil || len(*fatal) != 1 {
		t.Errorf("term 4 after term 5: %v, %v", err, *fatal)
	}
	if term, err := log.GetUint64(keyCurrentTerm); term != 5 || err != nil {
		t.Errorf("term %d, %v", term, err)
	}
	if err := log.SetUint64([]byte("LastVoteTerm"), 3); err != nil {
		t.Error(err)
	}
}
