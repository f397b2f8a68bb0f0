package raftfsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// heldLog is a log whose appends can be held up: before anything, or, on a leader, when
// the entries have been sent ahead and are not written.
type heldLog struct {
	durableLog

	mu      sync.Mutex
	append  chan struct{} // not nil: appends wait for it
	written chan struct{} // not nil: what was sent ahead waits for it before it is written
	fails   error         // what the write then fails with
}

// holdAppends and holdWrites begin to hold up, until the returned function is called.
func (l *heldLog) holdAppends() (letGo func()) {
	hold := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.append = hold
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.append = nil
		close(hold)
	})
}

func (l *heldLog) holdWrites() (letGo func()) {
	hold := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = hold
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.written = nil
		close(hold)
	})
}

func (l *heldLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails = err
}

// failedWrite is how a write fails in the middle of an append.
type failedWrite struct{ error }

func (l *heldLog) StoreLogs(logs []*raft.Log) (err error) {
	l.mu.Lock()
	hold := l.append
	l.mu.Unlock()
	if hold != nil {
		<-hold
	}
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case failedWrite:
			err = failed.error
		default:
			panic(failed)
		}
	}()
	return l.durableLog.StoreLogs(logs)
}

// sent is called between the sending and the writing.
func (l *heldLog) sent() {
	l.mu.Lock()
	hold := l.written
	l.mu.Unlock()
	if hold != nil {
		<-hold
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails != nil {
		panic(failedWrite{l.fails})
	}
}

// messages counts those that carry something.
type messages struct {
	mu     sync.Mutex
	marker []byte
	to     map[raft.ServerAddress]int
}

// of counts from now on the messages that carry a key.
func (m *messages) of(key int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marker, m.to = []byte(identity(key).Key), make(map[raft.ServerAddress]int)
}

func (m *messages) sent() (total int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.to {
		total += n
	}
	return total
}

type countedLayer struct {
	raft.StreamLayer
	messages *messages
}

func (l countedLayer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := l.StreamLayer.Dial(to, timeout)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, to, l.messages}, nil
}

type countedConn struct {
	net.Conn
	to       raft.ServerAddress
	messages *messages
}

// Write writes one message: it is smaller than the transport's buffer.
func (c countedConn) Write(b []byte) (int, error) {
	c.messages.mu.Lock()
	if len(c.messages.marker) > 0 && bytes.Contains(b, c.messages.marker) {
		c.messages.to[c.to]++
	}
	c.messages.mu.Unlock()
	return c.Conn.Write(b)
}

// heldCluster is a cluster of three on logs that can be held up.
type heldCluster struct {
	*cluster
	logs     map[string]*heldLog
	messages messages
}

// inHeldCluster runs a test against three replicas that are up to date with their leader.
func inHeldCluster(t *testing.T, test func(t *testing.T, c *heldCluster, leader *Group)) {
	t.Helper()
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := &heldCluster{cluster: newCluster(t, base, "a", "b", "c"), logs: make(map[string]*heldLog)}
		c.start("a", "b", "c")
		defer c.stopAll()
		g := c.leader()
		c.admit(g, 0, 5)
		c.agree()
		synctest.Wait()
		test(t, c, g)
	})
}

func (c *heldCluster) start(names ...string) {
	c.t.Helper()
	for _, name := range names {
		held := &heldLog{}
		cfg := c.config(name)
		cfg.Layer = countedLayer{cfg.Layer, &c.messages}
		if name == string(c.voters.Servers[0].ID) {
			cfg.Bootstrap = c.voters
		}
		cfg.openLog = func(dir string, options raftlog.Options) (durableLog, error) {
			ahead := options.Ahead
			options.Ahead = func(before store.Position, entries []*raft.Log) {
				ahead(before, entries)
				held.sent()
			}
			log, err := openLog(dir, options)
			held.durableLog = log
			return held, err
		}
		group, err := Open(cfg)
		if err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
		c.groups[name], c.logs[name] = group, held
	}
}

func (c *heldCluster) log(g *Group) *heldLog { return c.logs[string(g.cfg.Self)] }

// proposal is an entry on its way, with one Reserve.
type proposal struct {
	ended chan struct{}
	err   error
}

func (c *heldCluster) propose(g *Group, key int) *proposal {
	c.t.Helper()
	encoded, err := (&Entry{Term: g.Term(), Commands: commands(reserve(key))}).Encode()
	if err != nil {
		c.t.Fatal(err)
	}
	p, future := &proposal{ended: make(chan struct{})}, g.Propose(encoded, time.Second)
	go func() {
		defer close(p.ended)
		p.err = future.Error()
	}()
	synctest.Wait()
	return p
}

// hasEnded reports whether the proposer has been told anything.
func (p *proposal) hasEnded() bool {
	synctest.Wait()
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// outcome waits for what the proposer is told.
func (p *proposal) outcome() error {
	<-p.ended
	return p.err
}

// withEntry returns the followers whose log reaches an index, and those whose does not.
func (c *heldCluster) withEntry(leader *Group, index uint64) (with, without []string) {
	c.t.Helper()
	for _, name := range c.others(leader) {
		last, err := c.groups[name].log.LastIndex()
		if err != nil {
			c.t.Fatal(err)
		}
		if last >= index {
			with = append(with, name)
		} else {
			without = append(without, name)
		}
	}
	return with, without
}

// heldBy checks whose a key is: that of the attempt that reserve makes, or nobody's.
func (c *heldCluster) heldBy(g *Group, key int, taken bool) {
	c.t.Helper()
	again := reserve(key)
	if !taken {
		again.Attempt = attempt(key + 1_000_000)
	}
	result, err := propose(c.t, g, Entry{Term: g.Term(), Commands: commands(again)})
	if err != nil || result.Answers[0].Outcome != admission.OutcomeGranted || result.Answers[0].Repeated != taken {
		c.t.Errorf("key %d, which is taken: %t: %+v, %v", key, taken, result, err)
	}
}

// The followers hear of an entry while the leader writes it; nobody else hears of it before
// the leader has written it.
func TestNothingIsAcknowledgedBeforeTheLeadersOwnWrite(t *testing.T) {
	for _, held := range []time.Duration{0, 100 * time.Millisecond, 5 * time.Second} {
		t.Run(held.String(), func(t *testing.T) {
			inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
				const key = 4242
				applied, commit, last := g.Indexes()
				c.messages.of(key)
				letGo := c.log(g).holdWrites()
				defer letGo()
				p := c.propose(g, key)

				check := func(when string) {
					t.Helper()
					if with, without := c.withEntry(g, last+1); len(with) != 1 || len(without) != 1 {
						t.Errorf("%s: %v have the entry, and %v have not; one should have it", when, with, without)
					}
					if p.hasEnded() {
						t.Errorf("%s: the proposal was answered: %v", when, p.err)
					}
					if a, b, c := g.Indexes(); a != applied || b != commit || c != last {
						t.Errorf("%s: the leader has applied %d, committed %d and written %d; it had %d, %d and %d", when, a, b, c, applied, commit, last)
					}
					for _, name := range c.others(g) {
						if a, b, _ := c.groups[name].Indexes(); a > applied || b > commit {
							t.Errorf("%s: %s has applied %d and committed %d", when, name, a, b)
						}
					}
				}
				check("at once")
				time.Sleep(held)
				check("later")
				if !g.IsLeader() {
					t.Error("it does not lead any more")
				}
				letGo()
				if err := p.outcome(); err != nil {
					t.Fatalf("the proposal: %v", err)
				}
				c.agree()
				// Raft's own request finds the answer, unless it has asked for something
				// else meanwhile.
				if n := c.messages.sent(); n < 2 || n > 3 || held < g.cfg.Timing.Commit && n != 2 {
					t.Errorf("the entry was sent %d times to two followers", n)
				}
				c.heldBy(g, key, true)
				c.admit(g, 5, 10)
				c.agree()
			})
		})
	}
}

// The leader dies in between: the others have the entry or have not, all of them the same.
func TestALeaderThatDiesAfterItHasSentAhead(t *testing.T) {
	const key = 4242
	broken := errors.New("input/output error")
	for _, test := range []struct {
		name     string
		hears    bool // of the new leader, before it dies
		survives bool // the follower that has the entry
	}{
		{"and the follower goes on", false, true},
		{"of a failed write", true, true},
		{"and the follower with it", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			crashed := t.TempDir()
			inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
				self := string(g.cfg.Self)
				fatal := make(chan error, 1)
				c.groups[self].log.fatal = func(err error) { fatal <- err }
				_, _, last := g.Indexes()
				letGo := c.log(g).holdWrites()
				defer letGo()
				p := c.propose(g, key)
				with, without := c.withEntry(g, last+1)
				if len(with) != 1 {
					t.Fatalf("%v have the entry", with)
				}

				c.crash(self, crashed)
				if !test.hears {
					c.network.isolate(g.transport.LocalAddr(), true)
				}
				if !test.survives {
					c.stop(with[0])
				}
				c.log(g).fail(broken)
				letGo()
				if err := p.outcome(); Classify(err) != Unknown {
					t.Errorf("the proposal: %v", err)
				}
				if err := <-fatal; !errors.Is(err, broken) {
					t.Errorf("fatal: %v", err)
				}
				c.stop(self)
				c.network.isolate(g.transport.LocalAddr(), false)

				if test.survives {
					next := c.leader()
					if leads := string(next.cfg.Self); leads != with[0] {
						t.Errorf("%s leads, which has less than %s", leads, with[0])
					}
					c.heldBy(next, key, true)
				}
				if err := replaceTree(filepath.Join(crashed, self), filepath.Join(c.base, self)); err != nil {
					t.Fatal(err)
				}
				c.start(self)
				if !test.survives {
					next := c.leader()
					c.heldBy(next, key, false)
					c.admit(next, 5, 10)
					c.start(with[0])
				}
				c.agree()
				next := c.leader()
				c.holds(next, 5)
				c.admit(next, 20, 25)
				c.agree()
				if len(without) != 1 {
					t.Errorf("%v did not have the entry", without)
				}
			})
		})
	}
}

// A follower counts once it has synced, however early it was sent to.
func TestAFollowerThatHasNotSyncedDoesNotCount(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		others := c.others(g)
		c.network.isolate(raft.ServerAddress(others[1]), true)
		c.admit(g, 5, 8)
		synctest.Wait()
		applied, commit, last := g.Indexes()
		letGo := c.logs[others[0]].holdAppends()
		defer letGo()
		p := c.propose(g, 4242)
		for _, after := range []time.Duration{0, time.Second, 4 * time.Second} {
			time.Sleep(after)
			if p.hasEnded() {
				t.Errorf("answered: %v", p.err)
			}
			if a, b, c := g.Indexes(); a != applied || b != commit || c != last+1 {
				t.Errorf("applied %d, committed %d, written %d; it had %d, %d and %d", a, b, c, applied, commit, last)
			}
		}
		letGo()
		if err := p.outcome(); err != nil {
			t.Errorf("the proposal: %v", err)
		}
		c.network.isolate(raft.ServerAddress(others[1]), false)
		c.agree()
		c.heldBy(g, 4242, true)
	})
}

// Leadership is lost while the leader writes what it has sent ahead, or has tried to.
func TestLeadershipIsLostAfterSendingAhead(t *testing.T) {
	const key = 4242
	for _, arrives := range []bool{true, false} {
		t.Run(fmt.Sprint("arrives ", arrives), func(t *testing.T) {
			inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
				self, at := string(g.cfg.Self), g.transport.LocalAddr()
				_, _, last := g.Indexes()
				term := g.Term()
				letGo := c.log(g).holdWrites()
				defer letGo()
				if !arrives {
					c.network.isolate(at, true)
				}
				p := c.propose(g, key)
				if with, _ := c.withEntry(g, last+1); len(with) > 0 != arrives {
					t.Fatalf("%v have the entry", with)
				}
				c.network.isolate(at, true)
				delete(c.groups, self)
				next := c.leader()
				c.heldBy(next, key, arrives)
				c.admit(next, 5, 10)
				if p.hasEnded() {
					t.Errorf("answered while it writes: %v", p.err)
				}
				letGo() // a few seconds later
				if err := p.outcome(); Classify(err) != Unknown {
					t.Errorf("the proposal: %v", err)
				}
				c.network.isolate(at, false)
				c.groups[self] = g
				c.agree()
				var entry raft.Log
				if err := g.log.GetLog(last+1, &entry); err != nil || (entry.Term == term) != arrives {
					t.Errorf("entry %d of the old leader is of term %d, it was of term %d: %v", last+1, entry.Term, term, err)
				}

				// It leads again, and finds nothing of the past on its lines.
				if err := c.leader().TransferLeadership(g.cfg.Self); err != nil {
					t.Fatal(err)
				}
				if c.leader() != g {
					t.Fatal("another one leads")
				}
				c.messages.of(77)
				c.admit(g, 77, 78)
				c.agree()
				if n := c.messages.sent(); n != 2 {
					t.Errorf("an entry was sent %d times to two followers", n)
				}
			})
		})
	}
}

// Close ends what is on its way, and nothing is sent afterwards.
func TestCloseWithSomethingSentAhead(t *testing.T) {
	const key = 4242
	t.Run("that a follower does not answer", func(t *testing.T) {
		inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
			others := c.others(g)
			one, other := c.logs[others[0]].holdAppends(), c.logs[others[1]].holdAppends()
			letGo := func() { one(); other() }
			defer letGo()
			c.messages.of(key)
			p := c.propose(g, key)
			if c.messages.sent() == 0 || p.hasEnded() {
				t.Errorf("sent %d times, answered: %t", c.messages.sent(), p.hasEnded())
			}
			began := time.Now()
			c.stop(string(g.cfg.Self))
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v", took)
			}
			letGo()
			next := c.leader()
			c.heldBy(next, key, true) // at least one of the others had it in its hands
			c.start(string(g.cfg.Self))
			c.agree()
		})
	})
	t.Run("while the leader writes", func(t *testing.T) {
		inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
			self := string(g.cfg.Self)
			letGo := c.log(g).holdWrites()
			defer letGo()
			_ = c.propose(g, key)
			closed := make(chan error, 1)
			go func() { closed <- g.Close(context.Background()) }()
			time.Sleep(time.Second)
			if len(closed) > 0 {
				t.Error("closed while the log is in use")
			}
			letGo()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			delete(c.groups, self)
			c.heldBy(c.leader(), key, true)
			c.start(self)
			c.agree()
		})
	})
	t.Run("that comes too late", func(t *testing.T) {
		inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
			self := string(g.cfg.Self)
			_, _, last := g.Indexes()
			letGo := c.log(g).holdAppends()
			defer letGo()
			_ = c.propose(g, key)
			closed := make(chan error, 1)
			go func() { closed <- g.Close(context.Background()) }()
			synctest.Wait()
			letGo()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if with, _ := c.withEntry(g, last+1); len(with) > 0 {
				t.Errorf("%v have an entry that was written after the transport was closed", with)
			}
			delete(c.groups, self)
			c.start(self)
			c.leader()
			c.agree()
		})
	})
}

// A change of the group's members is sent ahead like any entry, be it to the member that
// it is about.
func TestChangesOfMembersAreSentAhead(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		for round, name := range c.others(g) {
			for _, change := range []func() error{
				func() error { return g.RemoveServer(raft.ServerID(name), time.Second) },
				func() error { return g.AddVoter(raft.ServerID(name), raft.ServerAddress(name), time.Second) },
			} {
				letGo, changed := c.log(g).holdWrites(), make(chan error, 1)
				go func() { changed <- change() }()
				time.Sleep(50 * time.Millisecond)
				if len(changed) > 0 {
					t.Error("changed before the leader has written it")
				}
				letGo()
				if err := <-changed; err != nil {
					t.Fatal(err)
				}
				from := 10 + 10*round + len(g.Followers())
				c.admit(g, from, from+1)
			}
		}
		if !g.IsLeader() || len(g.Followers()) != 2 {
			t.Errorf("leads: %t, with followers %v", g.IsLeader(), g.Followers())
		}
		c.agree()
	})
}

// Many at once, for the race detector.
func TestEntriesAreSentAheadByMany(t *testing.T) {
	inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
		const callers, calls = 8, 12
		var done sync.WaitGroup
		for caller := range callers {
			done.Go(func() {
				for call := range calls {
					key := 100 + caller*calls + call
					if result, err := propose(t, g, Entry{Term: g.Term(), Commands: commands(reserve(key))}); err != nil || result.Stale {
						t.Errorf("key %d: %+v, %v", key, result, err)
						return
					}
				}
			})
		}
		done.Wait()
		c.agree()
		for key := range callers * calls {
			c.heldBy(g, 100+key, true)
		}
		c.agree()
	})
}

// Whatever befalls leaders that have sent ahead, what was acknowledged is there in the end,
// and the replicas agree.
func TestWhatWasAcknowledgedSurvivesSendingAhead(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			crashed := t.TempDir()
			inHeldCluster(t, func(t *testing.T, c *heldCluster, _ *Group) {
				random := rand.New(rand.NewPCG(seed, 0))
				under := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) }
				var all []*proposal
				first := 1000
				for round := range 12 {
					g := c.leader()
					self, at := string(g.cfg.Self), g.transport.LocalAddr()
					other := c.others(g)[random.IntN(2)]
					letLeader, letOther := c.log(g).holdWrites(), c.logs[other].holdAppends()
					defer letLeader()
					defer letOther()
					if random.IntN(2) == 0 {
						letOther()
					}
					for range 1 + random.IntN(3) {
						all = append(all, c.propose(g, first+len(all)))
						time.Sleep(under(20 * time.Millisecond))
					}
					switch random.IntN(4) {
					case 0: // its disk is slow
						time.Sleep(under(time.Second))
					case 1: // it is cut off, and comes back
						c.network.isolate(at, true)
						letOther()
						time.Sleep(under(4 * time.Second))
						letLeader()
						time.Sleep(under(2 * time.Second))
						c.network.isolate(at, false)
					case 2: // a follower is cut off, and comes back
						c.network.isolate(raft.ServerAddress(other), true)
						time.Sleep(under(time.Second))
						letLeader()
						time.Sleep(under(time.Second))
						c.network.isolate(raft.ServerAddress(other), false)
					case 3: // it crashes, and comes back with what it has written
						to := filepath.Join(crashed, fmt.Sprint(round))
						c.crash(self, to)
						c.network.isolate(at, true)
						letOther()
						letLeader()
						time.Sleep(3 * time.Second) // it gives up its proposals, which raft does not when it is closed
						c.stop(self)
						time.Sleep(under(time.Second))
						c.network.isolate(at, false)
						if err := replaceTree(filepath.Join(to, self), filepath.Join(c.base, self)); err != nil {
							t.Fatal(err)
						}
						c.start(self)
					}
					letLeader()
					letOther()
				}
				next := c.leader()
				acknowledged := 0
				for i, p := range all {
					if p.hasEnded() && p.err == nil {
						acknowledged++
						c.heldBy(next, first+i, true)
					}
				}
				c.agree()
				if acknowledged == 0 || acknowledged == len(all) {
					t.Errorf("%d of %d proposals were acknowledged, which shows little", acknowledged, len(all))
				}
				t.Logf("%d of %d proposals were acknowledged", acknowledged, len(all))
			})
		})
	}
}

// Close must not wait on the foreruns while new ones are begun.
func TestCloseWhileEntriesAreSentAhead(t *testing.T) {
	for range 12 {
		inHeldCluster(t, func(t *testing.T, c *heldCluster, g *Group) {
			self := string(g.cfg.Self)
			letGo := c.log(g).holdAppends()
			defer letGo()
			_ = c.propose(g, 4242)
			closed := make(chan error, 1)
			// One forerun is on its way and Close waits for it; then another is begun.
			blocked := make(chan struct{})
			g.transport.out.foreruns.Go(func() { <-blocked })
			go func() { closed <- g.Close(context.Background()) }()
			synctest.Wait()
			go close(blocked)
			letGo()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			delete(c.groups, self)
		})
	}
}
