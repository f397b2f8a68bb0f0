package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// bystander is a raft that knows of a group and does nothing.
func bystander(t *testing.T, servers []raft.Server) *raft.Raft {
	t.Helper()
	config := raft.DefaultConfig()
	config.LocalID = "a"
	config.HeartbeatTimeout, config.ElectionTimeout = time.Hour, time.Hour
	config.Logger = newSlogAdapter(discard())
	_, network := raft.NewInmemTransport("a")
	kept := raft.NewInmemStore()
	snapshots := raft.NewInmemSnapshotStore()
	if err := raft.BootstrapCluster(config, kept, kept, snapshots, network, raft.Configuration{Servers: servers}); err != nil {
		t.Fatal(err)
	}
	node, err := raft.NewRaft(config, &raft.MockFSM{}, kept, kept, snapshots, network)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// sparing is a transport of a, which sends to b. What was sent ahead to the others is put
// on their lines by hand.
type sparing struct {
	t      *testing.T
	sender *transport
	count  func() int
}

func withSpare(t *testing.T, servers []raft.Server, test func(t *testing.T, s sparing)) {
	t.Helper()
	pair(t, func(t *testing.T, sender *transport, count func() int) {
		node := bystander(t, servers)
		sender.runs.begin(node)
		test(t, sparing{t, sender, count})
		if err := node.Shutdown().Error(); err != nil {
			t.Error(err)
		}
	})
}

// send returns how long a request to b took.
func (s sparing) send(request *raft.AppendEntriesRequest) time.Duration {
	s.t.Helper()
	began, before := time.Now(), s.count()
	if err := s.sender.AppendEntries("b", "b", asked(request), &raft.AppendEntriesResponse{}); err != nil {
		s.t.Error(err)
	}
	if sent := s.count() - before; sent != 1 {
		s.t.Errorf("the request was sent %d times", sent)
	}
	return time.Since(began)
}

// ahead leaves a forerun on a follower's line that has no answer yet.
func (s sparing) ahead(id raft.ServerID, request *raft.AppendEntriesRequest) *forerun {
	s.t.Helper()
	run := &forerun{request: request, sent: time.Now(), done: make(chan struct{})}
	if !s.sender.out.line(id).overtake(run) {
		s.t.Fatal("the line is in use")
	}
	return run
}

// answer gives a forerun its answer.
func answer(run *forerun, success bool, err error) {
	run.response, run.err = raft.AppendEntriesResponse{Term: run.request.Term, LastLog: 100, Success: success}, err
	close(run.done)
}

// members are the servers of a group; those behind a dash have no vote.
func members(names string) (servers []raft.Server) {
	voters, others, _ := bytes.Cut([]byte(names), []byte("-"))
	for i, name := range slices.Concat(voters, others) {
		server := raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)}
		if i >= len(voters) {
			server.Suffrage = raft.Nonvoter
		}
		servers = append(servers, server)
	}
	return servers
}

var errBroken = errors.New("the connection broke")

// A follower waits only for what it is not needed for. It was sent entry 8 three
// milliseconds ago, then others were sent something ahead, and now it is asked for more.
func TestWhoIsSpared(t *testing.T) {
	const pause = 3 * time.Millisecond
	succeeded := func(run *forerun) { answer(run, true, nil) }
	for _, test := range []struct {
		name    string
		members string                                       // "abc" if it is empty
		others  map[raft.ServerID]*raft.AppendEntriesRequest // what was sent ahead; to c and the same if it is nil
		answer  func(run *forerun)                           // nil: it hangs
		request *raft.AppendEntriesRequest                   // nil: entry 9
		waits   bool
	}{
		{name: "another has it", answer: succeeded, waits: true},
		{name: "another has more", answer: succeeded, waits: true,
			others: map[raft.ServerID]*raft.AppendEntriesRequest{"c": following(5, 8, 5, 9, 10)}},
		{name: "another has what lies behind", answer: succeeded, waits: true,
			others: map[raft.ServerID]*raft.AppendEntriesRequest{"c": following(5, 9, 5, 10)}},
		{name: "it is on its way", waits: true},

		{name: "nothing was sent ahead", others: map[raft.ServerID]*raft.AppendEntriesRequest{}},
		{name: "it failed", answer: func(run *forerun) { answer(run, false, errBroken) }},
		{name: "it was rejected", answer: func(run *forerun) { answer(run, false, nil) }},
		{name: "of an earlier term", answer: succeeded, request: following(6, 8, 5, 9)},
		{name: "of a later term", answer: succeeded, request: following(4, 8, 4, 9)},
		{name: "another has less", answer: succeeded, request: following(5, 8, 5, 9, 10)},
		{name: "another had what lies before", answer: succeeded, request: following(5, 9, 5, 10)},
		{name: "of two", members: "ab", answer: succeeded},
		{name: "of four", members: "abcd", answer: succeeded},
		{name: "of five", members: "abcde", answer: succeeded},
		{name: "of five, three of which have it", members: "abcde", answer: succeeded,
			others: map[raft.ServerID]*raft.AppendEntriesRequest{"c": following(5, 8, 5, 9), "d": following(5, 8, 5, 9)}},
		{name: "who has it has no vote", members: "ab-c", answer: succeeded},
		{name: "it has it itself", answer: succeeded,
			others: map[raft.ServerID]*raft.AppendEntriesRequest{"b": following(5, 9, 5, 10)}},
		{name: "no entries", answer: succeeded, request: following(5, 8, 5)},
		{name: "a heartbeat", answer: succeeded, request: following(5, 0, 0)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.members == "" {
				test.members = "abc"
			}
			if test.others == nil {
				test.others = map[raft.ServerID]*raft.AppendEntriesRequest{"c": following(5, 8, 5, 9)}
			}
			if test.request == nil {
				test.request = following(5, 8, 5, 9)
			}
			withSpare(t, members(test.members), func(t *testing.T, s sparing) {
				s.send(following(5, 7, 4, 8))
				time.Sleep(pause)
				for id, request := range test.others {
					if run := s.ahead(id, request); test.answer != nil {
						test.answer(run)
					}
				}
				want := time.Duration(0)
				if test.waits {
					want = spareEvery - pause
				}
				if took := s.send(test.request); took != want {
					t.Errorf("it was sent after %v, want %v", took, want)
				}
			})
		})
	}
}

// What another has not after all is sent at once; what it has is not sent sooner.
func TestTheSpareFollowerHearsHowTheOtherFares(t *testing.T) {
	const answered = 4 * time.Millisecond
	for _, test := range []struct {
		name    string
		success bool
		err     error
		want    time.Duration
	}{
		{"it has it", true, nil, spareEvery},
		{"it refuses it", false, nil, answered},
		{"it cannot be reached", false, errBroken, answered},
		{"it cannot be reached, and seemed to have it", true, errBroken, answered},
	} {
		t.Run(test.name, func(t *testing.T) {
			withSpare(t, members("abc"), func(t *testing.T, s sparing) {
				s.send(following(5, 7, 4, 8))
				run := s.ahead("c", following(5, 8, 5, 9))
				time.AfterFunc(answered, func() { answer(run, test.success, test.err) })
				if took := s.send(following(5, 8, 5, 9)); took != test.want {
					t.Errorf("it was sent after %v, want %v", took, test.want)
				}
			})
		})
	}
}

// The time counts from one sending of entries to the next.
func TestHowOftenTheSpareFollowerIsSentEntries(t *testing.T) {
	withSpare(t, members("abc"), func(t *testing.T, s sparing) {
		answer(s.ahead("c", following(5, 7, 4, 8, 9, 10, 11, 12, 13, 14, 15)), true, nil)
		for step, test := range []struct {
			pause   time.Duration
			request *raft.AppendEntriesRequest
			want    time.Duration
		}{
			{0, following(5, 7, 4, 8), 0}, // the first of all
			{0, following(5, 8, 5, 9), spareEvery},
			{0, following(5, 9, 5, 10), spareEvery}, // from when that was sent, not from when it was asked for
			{6 * time.Millisecond, following(5, 10, 5), 0},
			{2 * time.Millisecond, following(5, 10, 5, 11), 2 * time.Millisecond}, // no entries, no sending
			{spareEvery - 1, following(5, 11, 5, 12), 1},
			{spareEvery, following(5, 12, 5, 13), 0},
			{time.Hour, following(5, 13, 5, 14), 0},
			{0, following(5, 14, 5, 15), spareEvery},
		} {
			time.Sleep(test.pause)
			if took := s.send(test.request); took != test.want {
				t.Errorf("step %d: it was sent after %v, want %v", step, took, test.want)
			}
		}
	})
}

// A follower that is far behind is not kept from catching up: there is more to come behind
// a request that is as large as it may be.
func TestAFollowerThatIsFarBehindIsNotSpared(t *testing.T) {
	withSpare(t, members("abc"), func(t *testing.T, s sparing) {
		const full = 10
		last := uint64(7 + full*appendEntriesMax + 1)
		answer(s.ahead("c", following(5, last-1, 5, last)), true, nil)
		s.send(following(5, 6, 4, 7))
		for next := uint64(8); next < last; next += appendEntriesMax {
			if took := s.send(following(5, next-1, 5, entriesFrom(next, appendEntriesMax)...)); took != 0 {
				t.Errorf("the entries behind %d were sent after %v", next-1, took)
			}
		}
		if took := s.send(following(5, 7, 5, entriesFrom(8, appendEntriesMax-1)...)); took != spareEvery {
			t.Errorf("almost as many as there may be were sent after %v, want %v", took, spareEvery)
		}
	})
}

// entriesFrom returns so many indexes.
func entriesFrom(first uint64, n int) (entries []uint64) {
	for index := range uint64(n) {
		entries = append(entries, first+index)
	}
	return entries
}

// A follower that was spared and to which the next entries were sent ahead is not waited
// for, and the other, which was sent them ahead until then, is.
func TestTheSpareFollowerBecomesTheQuickest(t *testing.T) {
	withSpare(t, members("abc"), func(t *testing.T, s sparing) {
		s.send(following(5, 7, 4, 8))
		answer(s.ahead("c", following(5, 8, 5, 9, 10)), true, nil)
		if took := s.send(following(5, 8, 5, 9)); took != spareEvery {
			t.Errorf("it was sent after %v", took)
		}
		answer(s.ahead("b", following(5, 9, 5, 10)), true, nil)
		began, before := time.Now(), s.count()
		if err := s.sender.AppendEntries("b", "b", asked(following(5, 9, 5, 10)), &raft.AppendEntriesResponse{}); err != nil {
			t.Error(err)
		}
		if took, sent := time.Since(began), s.count()-before; took != 0 || sent != 0 {
			t.Errorf("what was there already took %v and was sent %d times", took, sent)
		}
		// What another has does not hold it up where it was sent nothing ahead any more.
		if took := s.send(following(5, 10, 5, 11)); took != 0 {
			t.Errorf("what nobody has was sent after %v", took)
		}
	})
}

// What is waited for does not keep a heartbeat, nor anything for another follower.
func TestHeartbeatsGoOutWhileAFollowerIsSpared(t *testing.T) {
	withSpare(t, members("abc"), func(t *testing.T, s sparing) {
		s.send(following(5, 7, 4, 8))
		s.ahead("c", following(5, 8, 5, 9))
		ended := make(chan error, 1)
		go func() {
			ended <- s.sender.AppendEntries("b", "b", asked(following(5, 8, 5, 9)), &raft.AppendEntriesResponse{})
		}()
		time.Sleep(time.Millisecond)
		if took := s.send(following(5, 0, 0)); took != 0 || len(ended) != 0 {
			t.Errorf("a heartbeat took %v, and %d entries went before it", took, len(ended))
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A follower that is removed and added again has two of raft's routines for a while, and
// one whose leader is elected again. This is for the race detector.
func TestRoutinesOfOneFollowerAreSpared(t *testing.T) {
	for _, spared := range []bool{true, false} {
		withSpare(t, members("abc"), func(t *testing.T, s sparing) {
			want := time.Duration(0)
			if spared {
				answer(s.ahead("c", following(5, 7, 4, 8)), true, nil)
				want = spareEvery
				s.send(following(5, 6, 4, 7))
			}
			began := time.Now()
			ended := make(chan error, 8)
			for range cap(ended) {
				go func() {
					ended <- s.sender.AppendEntries("b", "b", asked(following(5, 7, 4, 8)), &raft.AppendEntriesResponse{})
				}()
			}
			for range cap(ended) {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(began); took != want {
				t.Errorf("they took %v, want %v", took, want)
			}
		})
	}
}

// Close does not wait for the end of the wait.
func TestCloseWhileAFollowerIsSpared(t *testing.T) {
	for _, answered := range []bool{true, false} {
		withSpare(t, members("abc"), func(t *testing.T, s sparing) {
			s.send(following(5, 7, 4, 8))
			run := s.ahead("c", following(5, 8, 5, 9))
			if answered {
				answer(run, true, nil)
			}
			ended := make(chan error, 1)
			go func() {
				ended <- s.sender.AppendEntries("b", "b", asked(following(5, 8, 5, 9)), &raft.AppendEntriesResponse{})
			}()
			time.Sleep(time.Millisecond)
			if before := s.count(); before != 1 || len(ended) != 0 {
				t.Errorf("%d were sent and %d have ended before", before, len(ended))
			}
			closed := time.Now()
			if err := s.sender.Close(); err != nil {
				t.Error(err)
			}
			<-ended // with or without an error: the connections close a little later
			if took := time.Since(closed); took != 0 {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}

// spare admits two keys one after the other, and returns the follower that has both, and
// the one that is waiting with the second.
func (c *heldCluster) spare(g *Group, key int) (quickest, spare string) {
	c.t.Helper()
	time.Sleep(time.Second)
	c.admit(g, key, key+1)
	synctest.Wait() // both have it, and nothing is on its way to either
	c.admit(g, key+1, key+2)
	synctest.Wait()
	_, _, last := g.Indexes()
	with, without := c.withEntry(g, last)
	if len(with) != 1 || len(without) != 1 {
		c.t.Fatalf("%v have the entry, and %v have not; one should have it", with, without)
	}
	if _, without := c.withEntry(g, last-1); len(without) != 0 {
		c.t.Fatalf("%v have not been sent the first after a pause", without)
	}
	return with[0], without[0]
}

// heldEach checks that keys are taken by the attempts that reserve makes.
func (c *heldCluster) heldEach(g *Group, from, to int) {
	c.t.Helper()
	for key := from; key < to; key++ {
		c.heldBy(g, key, true)
	}
}

// Where entries come thick, one follower gets each by itself and the other several at once;
// none comes late, and no proposer waits for that.
func TestTheSpareFollowerIsSentSeveralAtOnce(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		const first, keys, every = 300, 30, time.Millisecond // all of three digits
		quickest, spare := c.spare(g, 10)
		time.Sleep(time.Second)
		c.messages.of(first / 100) // what all of them begin with
		for key := first; key < first+keys; key++ {
			began := time.Now()
			c.admit(g, key, key+1)
			if took := time.Since(began); took != 0 {
				t.Errorf("key %d took %v", key, took)
			}
			synctest.Wait()
			_, _, last := g.Indexes()
			// What waits was put together before the wait, so it is up to two of them.
			if behind := last - c.groups[spare].raft.LastIndex(); behind > uint64(2*spareEvery/every) {
				t.Errorf("%s is %d entries behind", spare, behind)
			}
			time.Sleep(every)
		}
		time.Sleep(2 * spareEvery)
		synctest.Wait()
		_, _, last := g.Indexes()
		if with, without := c.withEntry(g, last); len(with) != 2 {
			t.Errorf("%v have not got the last entry", without)
		}
		c.messages.mu.Lock()
		one, other := c.messages.to[raft.ServerAddress(quickest)], c.messages.to[raft.ServerAddress(spare)]
		c.messages.mu.Unlock()
		if most := keys*int(every)/int(spareEvery) + 2; one != keys || other > most {
			t.Errorf("%d entries went in %d and %d messages, want %d and at most %d", keys, one, other, keys, most)
		}
		c.agree()
	})
}

// The quickest follower dies, in one way or another: the spare one is there for the next
// entry, within what it is spared, and in the end nothing that was acknowledged is lost,
// even where all that is left are it and the one that died.
func TestTheQuickestFollowerDies(t *testing.T) {
	for _, test := range []struct {
		name string
		die  func(c *heldCluster, name string) (letGo func())
	}{
		{"it is cut off", func(c *heldCluster, name string) func() {
			c.network.isolate(raft.ServerAddress(name), true)
			return func() { c.network.isolate(raft.ServerAddress(name), false) }
		}},
		{"it hangs", func(c *heldCluster, name string) func() { return c.logs[name].holdAppends() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
				quickest, spare := c.spare(g, 10)
				letGo := test.die(c, quickest)
				defer letGo()
				for key := 12; key < 20; key++ {
					began := time.Now()
					c.admit(g, key, key+1)
					// The message that waits, and the next, which has it.
					most := time.Duration(0)
					if key == 12 {
						most = 2 * spareEvery
					}
					if took := time.Since(began); took > most {
						t.Errorf("key %d took %v, want %v at most", key, took, most)
					}
					time.Sleep(time.Millisecond)
				}

				// Then the leader dies, too, and the one that was spared is all that has
				// the latest entries.
				letGo()
				c.network.isolate(g.transport.LocalAddr(), true)
				delete(c.groups, string(g.cfg.Self))
				next := c.leader()
				if leads := string(next.cfg.Self); leads != spare {
					t.Errorf("%s leads", leads)
				}
				c.heldEach(next, 10, 20)
				c.network.isolate(g.transport.LocalAddr(), false)
				c.groups[string(g.cfg.Self)] = g
				c.admit(next, 30, 35)
				c.agree()
			})
		})
	}
}

// The leader dies, or only loses the others, while the spare follower has yet to be sent
// what was acknowledged: the other one leads, and has it.
func TestTheLeaderDiesWhileAFollowerIsSpared(t *testing.T) {
	for _, crashes := range []bool{true, false} {
		t.Run(fmt.Sprint("crashes ", crashes), func(t *testing.T) {
			crashed := t.TempDir()
			inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
				self, at := string(g.cfg.Self), g.transport.LocalAddr()
				quickest, _ := c.spare(g, 10)
				if crashes {
					c.crash(self, crashed)
				}
				c.network.isolate(at, true)
				if crashes {
					c.stop(self)
				} else {
					delete(c.groups, self)
				}
				next := c.leader()
				if leads := string(next.cfg.Self); leads != quickest {
					t.Errorf("%s leads, which has less than %s", leads, quickest)
				}
				c.heldEach(next, 10, 12)
				c.admit(next, 20, 25)
				c.network.isolate(at, false)
				if crashes {
					if err := replaceTree(filepath.Join(crashed, self), filepath.Join(c.base, self)); err != nil {
						t.Fatal(err)
					}
					c.start(self)
				} else {
					c.groups[self] = g
				}
				c.agree()
				c.holds(c.leader(), 5)
			})
		})
	}
}

// The spare follower takes the leadership over while it has yet to be sent the latest.
func TestLeadershipGoesToTheSpareFollower(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		_, spare := c.spare(g, 10)
		began := time.Now()
		if err := g.TransferLeadership(raft.ServerID(spare)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*spareEvery {
			t.Errorf("it took %v", took)
		}
		next := c.leader()
		if leads := string(next.cfg.Self); leads != spare {
			t.Errorf("%s leads", leads)
		}
		c.heldEach(next, 10, 12)
		// It sends ahead, and spares, like the one before.
		c.spare(next, 20)
		c.agree()
	})
}

// A leader is closed while a follower is spared.
func TestALeaderIsClosedWhileAFollowerIsSpared(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		self := string(g.cfg.Self)
		c.spare(g, 10)
		began := time.Now()
		c.stop(self)
		if took := time.Since(began); took >= spareEvery {
			t.Errorf("it took %v", took)
		}
		c.heldEach(c.leader(), 10, 12)
		c.start(self)
		c.agree()
	})
}

// The routine of a follower that was removed still waits when the follower is added again
// and has a new one.
func TestAFollowerIsRemovedAndAddedWhileItIsSpared(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		for i := range 5 {
			time.Sleep(time.Second)
			c.admit(g, 10+2*i, 11+2*i)
			synctest.Wait()
			c.admit(g, 11+2*i, 12+2*i)
			synctest.Wait()
			_, _, last := g.Indexes()
			_, spare := c.withEntry(g, last)
			if len(spare) != 1 {
				t.Fatalf("%v are without it", spare)
			}
			if err := g.RemoveServer(raft.ServerID(spare[0]), time.Second); err != nil {
				t.Fatal(err)
			}
			if err := g.AddVoter(raft.ServerID(spare[0]), raft.ServerAddress(spare[0]), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		c.agree()
	})
}

// A leader that has no vote, as it removes itself, is no part of the majority.
func TestALeaderWithoutAVoteSparesNobody(t *testing.T) {
	for _, names := range []string{"bc", "bc-a", "bcd"} {
		withSpare(t, members(names), func(t *testing.T, s sparing) {
			s.send(following(5, 7, 4, 8))
			answer(s.ahead("c", following(5, 8, 5, 9)), true, nil)
			if took := s.send(following(5, 8, 5, 9)); took != 0 {
				t.Errorf("%s: it was sent after %v", names, took)
			}
		})
	}
}
