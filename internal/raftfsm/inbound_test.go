package raftfsm

import (
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestATermThatIsNotToBeBelieved has somebody claim terms that no peer can have come to.
func TestATermThatIsNotToBeBelieved(t *testing.T) {
	pair(t, func(t *testing.T, sender *transport, count func() int) {
		header := raft.RPCHeader{Addr: []byte("a")}
		ask := map[string]func(term uint64) error{
			"entries": func(term uint64) error {
				return sender.AppendEntries("b", "b", &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: 1}, &raft.AppendEntriesResponse{})
			},
			"a heartbeat": func(term uint64) error {
				return sender.AppendEntries("b", "b", &raft.AppendEntriesRequest{RPCHeader: header, Term: term}, &raft.AppendEntriesResponse{})
			},
			"a vote": func(term uint64) error {
				return sender.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: term}, &raft.RequestVoteResponse{})
			},
			"a vote beforehand": func(term uint64) error {
				return sender.RequestPreVote("b", "b", &raft.RequestPreVoteRequest{RPCHeader: header, Term: term}, &raft.RequestPreVoteResponse{})
			},
			"a state": func(term uint64) error {
				return sender.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{RPCHeader: header, Term: term}, &raft.InstallSnapshotResponse{}, strings.NewReader(""))
			},
		}
		for name, ask := range ask {
			for _, term := range []uint64{termsAheadMax + 1, 1 << 40, math.MaxInt64, math.MaxUint64} {
				err := ask(term)
				if err == nil || !strings.Contains(err.Error(), "is not to be believed in term 0") {
					t.Errorf("%s in term %d: %v", name, term, err)
				}
			}
			if n := count(); n != 0 {
				t.Fatalf("%s: raft has heard of it, %d times", name, n)
			}
		}
		if err := ask["entries"](termsAheadMax); err != nil || count() != 1 {
			t.Errorf("the last term that is believed: %v, %d", err, count())
		}
	})
}

func TestTermsThatAreBelieved(t *testing.T) {
	for _, c := range []struct {
		current, term uint64
		believed      bool
	}{
		{0, 0, true}, {0, termsAheadMax, true}, {0, termsAheadMax + 1, false},
		{7, 3, true}, {7, termsAheadMax + 7, true}, {7, termsAheadMax + 8, false},
		{math.MaxUint64 - 1, math.MaxUint64, true}, {math.MaxUint64, 1, true},
	} {
		if err := believe(c.current, &raft.AppendEntriesRequest{Term: c.term}); (err == nil) != c.believed {
			t.Errorf("term %d in term %d: %v", c.term, c.current, err)
		}
	}
	if err := believe(0, &raft.TimeoutNowRequest{}); err != nil {
		t.Error(err)
	}
}

// TestTermsOfAnswersThatAreNotToBeBelieved: raft takes the term of an answer to a vote, too.
func TestTermsOfAnswersThatAreNotToBeBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		open := func(at raft.ServerAddress) *transport {
			cfg := GroupConfig{Self: raft.ServerID(at), Layer: n.layer(at), Timing: DefaultTiming()}
			return newTransport(&cfg, newSlogAdapter(discard()), acceptAll, &terms{})
		}
		liar, asking := open("b"), open("a")
		defer liar.Close()
		defer asking.Close()
		liar.runs.begin(&raft.Raft{})
		var claims uint64
		go func() {
			for {
				select {
				case rpc := <-liar.Consumer():
					if _, vote := rpc.Command.(*raft.RequestVoteRequest); vote {
						rpc.Respond(&raft.RequestVoteResponse{Term: claims}, nil)
					} else {
						rpc.Respond(&raft.RequestPreVoteResponse{Term: claims}, nil)
					}
				case <-liar.closing:
					return
				}
			}
		}()
		header := raft.RPCHeader{Addr: []byte("a")}
		for term, believed := range map[uint64]bool{3: true, 8: true, 7 + termsAheadMax: true, 8 + termsAheadMax: false, math.MaxUint64: false} {
			claims = term
			err := asking.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: 7}, &raft.RequestVoteResponse{})
			if (err == nil) != believed {
				t.Errorf("the answer to a vote, in term %d: %v", term, err)
			}
			err = asking.RequestPreVote("b", "b", &raft.RequestPreVoteRequest{RPCHeader: header, Term: 7}, &raft.RequestPreVoteResponse{})
			if (err == nil) != believed {
				t.Errorf("the answer to a vote beforehand, in term %d: %v", term, err)
			}
		}
	})
}

// TestWhatNoPeerSends never comes to raft, which would panic over it, or store what cannot be
// read again; and the next message on its connection is heard.
func TestWhatNoPeerSends(t *testing.T) {
	entry := func(index, term uint64) *raft.Log {
		return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: []byte("x")}
	}
	of := func(kind raft.LogType, data string) *raft.Log {
		return &raft.Log{Index: 6, Term: 3, Type: kind, Data: []byte(data)}
	}
	configuration := string(raft.EncodeConfiguration(*Voters(raft.Server{ID: "a", Address: "a"})))
	pair(t, func(t *testing.T, sender *transport, count func() int) {
		heard := 0
		for name, c := range map[string]struct {
			entries  []*raft.Log
			believed bool
		}{
			"no entries":                {nil, true},
			"entries":                   {[]*raft.Log{entry(6, 2), entry(7, 2), entry(8, 3), entry(9, 4)}, true},
			"a configuration":           {[]*raft.Log{of(raft.LogConfiguration, configuration)}, true},
			"a first entry":             {[]*raft.Log{of(raft.LogNoop, "")}, true},
			"none in place of one":      {[]*raft.Log{entry(6, 2), nil}, false},
			"a gap":                     {[]*raft.Log{entry(6, 2), entry(8, 2)}, false},
			"a gap at the beginning":    {[]*raft.Log{entry(7, 2)}, false},
			"one twice":                 {[]*raft.Log{entry(6, 2), entry(6, 2)}, false},
			"one of no index":           {[]*raft.Log{entry(0, 2)}, false},
			"a term that goes back":     {[]*raft.Log{entry(6, 3), entry(7, 2)}, false},
			"a term before the last":    {[]*raft.Log{entry(6, 1)}, false},
			"a term that is to come":    {[]*raft.Log{entry(6, 5)}, false},
			"a broken configuration":    {[]*raft.Log{of(raft.LogConfiguration, "\xc1")}, false},
			"an empty configuration":    {[]*raft.Log{of(raft.LogConfiguration, "")}, false},
			"a peer that is added":      {[]*raft.Log{of(raft.LogAddPeerDeprecated, "")}, false},
			"a peer that is removed":    {[]*raft.Log{of(raft.LogRemovePeerDeprecated, "")}, false},
			"a kind that there is not":  {[]*raft.Log{of(77, "")}, false},
			"what is behind all others": {[]*raft.Log{entry(math.MaxUint64, 3)}, false},
		} {
			request := asked(&raft.AppendEntriesRequest{Term: 4, PrevLogEntry: 5, PrevLogTerm: 2, Entries: c.entries})
			err := sender.AppendEntries("b", "b", request, &raft.AppendEntriesResponse{})
			if c.believed {
				heard++
			}
			if got := count(); (err == nil) != c.believed || got != heard {
				t.Errorf("%s: %v; raft has heard %d, want %d", name, err, got, heard)
			}
		}
		if err := believe(4, &raft.AppendEntriesRequest{Term: 4, PrevLogEntry: math.MaxUint64, Entries: []*raft.Log{entry(0, 4)}}); err == nil {
			t.Error("an entry behind the last that there can be")
		}
		for size, believed := range map[int64]bool{-1: false, 0: false, 1: true} {
			state := &raft.InstallSnapshotRequest{SnapshotVersion: 1, Term: 4, LastLogIndex: 9, LastLogTerm: 4, Configuration: []byte(configuration), Size: size}
			if err := believe(4, state); (err == nil) != believed {
				t.Errorf("a state of %d bytes: %v", size, err)
			}
		}
		// What is in the state is not taken for a message.
		for range 3 {
			state := &raft.InstallSnapshotRequest{
				RPCHeader: raft.RPCHeader{Addr: []byte("a")}, SnapshotVersion: 1, Term: 4, LastLogIndex: 9, LastLogTerm: 4, Configuration: []byte("\xc1"), Size: 1 << 20,
			}
			err := sender.InstallSnapshot("b", "b", state, &raft.InstallSnapshotResponse{}, io.LimitReader(zeros{}, state.Size))
			if err == nil || !strings.Contains(err.Error(), "malformed configuration") || count() != heard {
				t.Errorf("a state with a broken configuration: %v", err)
			}
		}
	})
}

// zeros reads as zeros, which as a message would be entries.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestAStateIsNotCopiedForAFollowerThatIsGone: raft copies the state before it finds out that
// nobody takes it, so what has failed to be sent is held until the follower is back.
func TestAStateIsNotCopiedForAFollowerThatIsGone(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a", "b", "c")
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		lost := raft.ServerID(c.others(g)[0])
		c.network.isolate(raft.ServerAddress(lost), true)
		returned := make(chan error, 1)
		go func() {
			returned <- g.transport.InstallSnapshot(lost, raft.ServerAddress(lost), &raft.InstallSnapshotRequest{Term: g.Term(), Size: 1},
				&raft.InstallSnapshotResponse{}, strings.NewReader("x"))
		}()
		time.Sleep(10 * time.Minute)
		select {
		case err := <-returned:
			t.Errorf("it is to be tried again while the follower is away: %v", err)
			returned <- err
		default:
		}
		c.network.isolate(raft.ServerAddress(lost), false)
		back := time.Now()
		if err := <-returned; err == nil || time.Since(back) > time.Second {
			t.Errorf("%v after the follower was back: %v", time.Since(back), err)
		}
		c.agree()
	})
}
