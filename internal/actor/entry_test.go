package actor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// entries is a group that notes what is proposed, and whose entries take as long as a
// test says. What is held is in no log.
type entries struct {
	Group
	mu       sync.Mutex
	proposed [][]string    // the keys of each entry's commands; none for one without
	takes    time.Duration // for one with commands
	hold     chan struct{} // not nil: what is proposed from now on waits for it
	holdBare bool          // entries without commands wait as well
	deposed  bool
	transfer func() error // of leadership
}

func (g *entries) Propose(entry []byte, within time.Duration) raft.ApplyFuture {
	decoded, err := raftfsm.DecodeEntry(entry)
	if err != nil {
		panic(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	future := &slow{propose: func() raft.ApplyFuture { return g.Group.Propose(entry, within) }}
	switch bare := len(decoded.Commands) == 0; {
	case decoded.LeaderStart:
		return future
	case !bare:
		future.hold, future.takes = g.hold, g.takes
	case g.holdBare:
		future.hold = g.hold
	}
	keys := []string{}
	for _, command := range decoded.Commands {
		keys = append(keys, command.On().Key)
	}
	g.proposed = append(g.proposed, keys)
	return future
}

func (g *entries) IsLeader() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.deposed && g.Group.IsLeader()
}

func (g *entries) TransferLeadership(to raft.ServerID) error {
	g.mu.Lock()
	transfer := g.transfer
	g.mu.Unlock()
	if transfer != nil {
		return transfer()
	}
	return g.Group.TransferLeadership(to)
}

// holding holds what is proposed until the returned function lets go of what that was.
// Later entries are not held.
func (g *entries) holding(bare bool, propose func()) (letGo func()) {
	hold := make(chan struct{})
	set := func(hold chan struct{}) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.hold, g.holdBare = hold, bare
	}
	set(hold)
	propose()
	synctest.Wait()
	set(nil)
	return func() { close(hold) }
}

// since returns the entries with commands that were proposed after the first n of all.
func (g *entries) since(n int) (keys [][]string) {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, entry := range g.proposed[n:] {
		if len(entry) > 0 {
			keys = append(keys, entry)
		}
	}
	return keys
}

func (g *entries) count() int {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.proposed)
}

func (g *entries) depose(deposed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deposed = deposed
}

// slow is the future of an entry that reaches the group late.
type slow struct {
	raft.ApplyFuture
	propose func() raft.ApplyFuture
	hold    chan struct{}
	takes   time.Duration
}

func (s *slow) Error() error {
	if s.hold != nil {
		<-s.hold
	}
	time.Sleep(s.takes)
	s.ApplyFuture = s.propose()
	return s.ApplyFuture.Error()
}

// withEntries runs a test in a bubble against a shard whose entries are watched.
func withEntries(t *testing.T, adjust func(*Config), test func(t *testing.T, s *testShard, g *entries)) {
	t.Helper()
	g := &entries{}
	watched := func(c *Config) {
		g.Group, c.Group = c.Group, g
		if adjust != nil {
			adjust(c)
		}
	}
	inBubble(t, watched, func(t *testing.T, s *testShard) { test(t, s, g) })
}

// patient has entries wait for long, and callers too: what happens earlier happens for
// another reason.
func patient(c *Config) { c.LingerMax, c.ProposalWithin = 10*time.Second, time.Hour }

// known reports whether the shard has a record of the key: whether anything about it
// was applied.
func (s *testShard) known(name string) (known bool) {
	s.t.Helper()
	err := s.group.Store().View(func(tx *store.Tx) error {
		view, err := tx.Admission(key(name))
		known = view.Record != nil
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return known
}

func (w *waiter) granted(t *testing.T) {
	t.Helper()
	if w.err != nil || w.reply.Answer.Outcome != admission.OutcomeGranted {
		t.Errorf("got %v, %v, want a grant", w.reply.Answer.Outcome, w.err)
	}
}

func TestOneCallerWaitsForNobody(t *testing.T) {
	for _, takes := range []time.Duration{0, 3 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
				g.takes = takes
				before := g.count()
				for i := range 10 {
					request := reserve(fmt.Sprint("k", i), time.Hour)
					s.mustSubmit(request)
					if took := time.Since(request.Received); took != takes {
						t.Errorf("call %d took %v, its entry %v", i, took, takes)
					}
					time.Sleep(time.Duration(i) * time.Millisecond)
				}
				if n := len(g.since(before)); n != 10 {
					t.Errorf("10 calls made %d entries", n)
				}
			})
		})
	}
}

// Callers that come back each time they are answered share all but the first entries: those
// whose entry has ended join those who wait for the next.
func TestManyCallersShareEntries(t *testing.T) {
	const calls, takes = 10, 3 * time.Millisecond
	for _, callers := range []int{2, 3, 16} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
				g.takes = takes
				before := g.count()
				var done sync.WaitGroup
				start := time.Now()
				for caller := range callers {
					done.Go(func() {
						for call := range calls {
							if _, err := s.Submit(t.Context(), reserve(fmt.Sprint("k", caller, "/", call), time.Hour)); err != nil {
								t.Error(err)
							}
						}
					})
				}
				done.Wait()
				took, all := time.Since(start), g.since(before)
				commands := 0
				for _, entry := range all {
					commands += len(entry)
				}
				if commands != callers*calls {
					t.Errorf("%d commands were proposed, want %d", commands, callers*calls)
				}
				if len(all) > calls+2 {
					t.Errorf("%d callers with %d calls each made %d entries", callers, calls, len(all))
				}
				// At the end those who are left wait once for those who have done.
				if took > (calls+2+companyWait)*takes {
					t.Errorf("it took %v, with entries that take %v", took, takes)
				}
			})
		})
	}
}

// Those who were expected and do not come back are not waited for longer than companyWait times
// as long as their entry took, and not longer than LingerMax.
func TestThoseWhoDoNotComeBackAreNotWaitedFor(t *testing.T) {
	for _, takes := range []time.Duration{4 * time.Millisecond, time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
				g.takes = takes
				one := s.wait(t.Context(), "one", 0)
				var crowd []*waiter
				for i := range 10 {
					crowd = append(crowd, s.wait(t.Context(), fmt.Sprint("crowd", i), 0))
				}
				<-one.done
				for _, w := range crowd {
					<-w.done
					w.granted(t)
				}
				request := reserve("alone", time.Hour)
				s.mustSubmit(request)
				if took, most := time.Since(request.Received), takes+min(companyWait*takes, s.cfg.LingerMax); took > most {
					t.Errorf("the one that is left took %v, at most it should be %v", took, most)
				}
				request = reserve("alone again", time.Hour)
				s.mustSubmit(request)
				if took := time.Since(request.Received); took != takes {
					t.Errorf("and %v once nobody else is expected", took)
				}
			})
		})
	}
}

func TestAnEntryDoesNotWaitForLongerThanLingerMax(t *testing.T) {
	for _, linger := range []time.Duration{0, 10 * time.Millisecond, 3 * time.Second} {
		t.Run(linger.String(), func(t *testing.T) {
			withEntries(t, func(c *Config) { c.LingerMax = linger }, func(t *testing.T, s *testShard, g *entries) {
				var stuck *waiter
				letGo := g.holding(false, func() { stuck = s.wait(t.Context(), "stuck", 0) })
				before := g.count()
				first := s.wait(t.Context(), "first", 0)
				time.Sleep(linger / 2)
				second := s.wait(t.Context(), "second", 0)
				if linger > 0 && (first.isDone() || second.isDone()) {
					t.Error("an entry does not wait for the one before it")
				}
				<-first.done
				<-second.done
				first.granted(t)
				second.granted(t)
				if first.after != linger || second.after != linger-linger/2 {
					t.Errorf("answered after %v and %v, want %v and %v", first.after, second.after, linger, linger-linger/2)
				}
				if all := g.since(before); linger > 0 && len(all) != 1 {
					t.Errorf("proposed were %v", all)
				}
				if stuck.isDone() {
					t.Errorf("the first entry has ended: %v", stuck.err)
				}
				letGo()
				<-stuck.done
				stuck.granted(t)
			})
		})
	}
}

func TestAnEntryFollowsTheOneBeforeIt(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		before := g.count()
		var first *waiter
		letGo := g.holding(false, func() { first = s.wait(t.Context(), "first", 0) })
		var others []*waiter
		for i := range 5 {
			others = append(others, s.wait(t.Context(), fmt.Sprint("other", i), 0))
			time.Sleep(time.Millisecond)
		}
		if all := g.since(before); len(all) != 1 {
			t.Fatalf("proposed while the first is in flight: %v", all)
		}
		letGo()
		want := [][]string{{"first"}, {"other0", "other1", "other2", "other3", "other4"}}
		for _, w := range append(others, first) {
			<-w.done
			w.granted(t)
		}
		if all := g.since(before); fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("proposed were %v, want %v", all, want)
		}
		if others[0].after > time.Second {
			t.Errorf("it took %v", others[0].after)
		}
	})
}

// Whoever needs no entry is answered while one is in flight, and while one waits.
func TestCallsThatNeedNoEntryDoNotWaitForOne(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("pending", time.Hour)
		done := commit("committed", s.grant("committed", time.Hour), "done")
		s.mustSubmit(done)
		again := reserve("pending", time.Hour)
		pending, committed := key("pending"), key("committed")

		var inFlight *waiter
		letGo := g.holding(false, func() { inFlight = s.wait(t.Context(), "in flight", 0) })
		waits := s.wait(t.Context(), "waits", 0)
		before, start := g.count(), time.Now()
		for name, request := range map[string]Request{
			"a duplicate":               again,
			"a duplicate of what is":    reserve("committed", time.Hour),
			"a repeated Commit":         done,
			"a Get":                     {Get: &pending},
			"a Get with body":           {Get: &committed, Body: true},
			"a Get of what is not":      {Get: ptr(key("unknown"))},
			"a question who leads":      {},
			"a stranger's Release":      strangers("pending", token),
			"a Release of what is done": strangers("committed", token),
		} {
			request.Received = time.Now()
			if _, err := s.Submit(t.Context(), request); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(start); took != 0 {
				t.Fatalf("%s took %v", name, took)
			}
		}
		if inFlight.isDone() || waits.isDone() || g.count() != before {
			t.Error("an entry has ended or was proposed meanwhile")
		}
		letGo()
		for _, w := range []*waiter{inFlight, waits} {
			<-w.done
			w.granted(t)
		}
	})
}

// strangers is a Release that is refused: its token is another attempt's.
func strangers(name string, token admission.Token) Request {
	token.Attempt[0] ^= 1
	token.Fence += 1000
	return release(name, token)
}

// A look at what lies behind a deadline that the log has not seen goes through the log,
// and waits like any call that does.
func TestALookThatNeedsTheLogWaitsInTheOpenEntry(t *testing.T) {
	withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
		s.grant("k", time.Second)
		// What writes the deadline down is in flight.
		letGo := g.holding(true, func() { time.Sleep(time.Second + 5*time.Millisecond) })
		before := g.count()
		request := Request{Get: ptr(key("k")), Received: time.Now()}
		reply := s.mustSubmit(request)
		if took := time.Since(request.Received); took != s.cfg.LingerMax {
			t.Errorf("it took %v, want %v", took, s.cfg.LingerMax)
		}
		if reply.Record == nil || reply.Record.State != admission.StateLapsed {
			t.Errorf("the record is %+v", reply.Record)
		}
		if n := g.count() - before; n != 1 {
			t.Errorf("%d entries were proposed", n)
		}
		letGo()
	})
}

func TestCommandsCloseAnEntry(t *testing.T) {
	most := func(c *Config) {
		patient(c)
		c.EntryCommandsMax = 3
	}
	withEntries(t, most, func(t *testing.T, s *testShard, g *entries) {
		before := g.count()
		var first *waiter
		letGo := g.holding(false, func() { first = s.wait(t.Context(), "first", 0) })
		var others []*waiter
		for i := range 7 {
			others = append(others, s.wait(t.Context(), fmt.Sprint(i), 0))
			if i == 1 || i == 4 {
				if all := g.since(before); len(all) != 1+i/3 {
					t.Errorf("after %d calls %v are proposed", i+1, all)
				}
			}
		}
		for _, w := range others[:6] {
			if !w.isDone() {
				t.Fatal("a full entry waits")
			}
			w.granted(t)
		}
		if others[6].isDone() {
			t.Error("an entry that is not full does not wait")
		}
		letGo()
		<-first.done
		<-others[6].done
		want := [][]string{{"first"}, {"0", "1", "2"}, {"3", "4", "5"}, {"6"}}
		if all := g.since(before); fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("proposed were %v, want %v", all, want)
		}
	})
}

func TestBytesCloseAnEntry(t *testing.T) {
	of := func(name string, token admission.Token, bytes int) Request {
		return commit(name, token, string(make([]byte, bytes)))
	}
	const bytesMax = 4000
	most := func(c *Config) {
		patient(c)
		c.EntryBytesMax = bytesMax
	}
	withEntries(t, most, func(t *testing.T, s *testShard, g *entries) {
		var tokens []admission.Token
		for i := range 7 {
			tokens = append(tokens, s.grant(fmt.Sprint(i), time.Hour))
		}
		before := g.count()
		var first *waiter
		letGo := g.holding(false, func() { first = s.wait(t.Context(), "first", 0) })
		// Two fit. The third does not, and what is larger than an entry goes by itself.
		var ended []chan error
		for i, bytes := range []int{1500, 1500, 1500, 9000, 1000, 1000, 1000} {
			end := make(chan error, 1)
			ended = append(ended, end)
			go func() {
				_, err := s.Submit(t.Context(), of(fmt.Sprint(i), tokens[i], bytes))
				end <- err
			}()
			synctest.Wait()
			if all := g.since(before); i == 3 && len(all) != 4 {
				t.Errorf("one that fills an entry by itself waits: proposed were %v", all)
			}
		}
		want := [][]string{{"first"}, {"0", "1"}, {"2"}, {"3"}}
		if all := g.since(before); fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("proposed were %v, want %v", all, want)
		}
		letGo()
		<-first.done
		for _, end := range ended {
			if err := <-end; err != nil {
				t.Error(err)
			}
		}
		want = append(want, []string{"4", "5", "6"})
		if all := g.since(before); fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("proposed were %v, want %v", all, want)
		}
	})
}

// Where as many entries are in flight as may be, the open one waits for longer, and the
// shard goes on answering what needs none.
func TestAnEntryWaitsForRoom(t *testing.T) {
	few := func(c *Config) { c.ProposalsMax, c.ProposalWithin = 2, time.Hour }
	withEntries(t, few, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("k", time.Hour)
		var first, second *waiter
		letGo := g.holding(false, func() {
			first = s.wait(t.Context(), "first", 0)
			second = s.wait(t.Context(), "second", 0)
			time.Sleep(s.cfg.LingerMax)
		})
		before := g.count()
		third := s.wait(t.Context(), "third", 0)
		time.Sleep(time.Minute)
		if n := g.count() - before; third.isDone() || n != 0 {
			t.Errorf("%d entries were proposed beside %d", n, s.cfg.ProposalsMax)
		}
		if outcome := s.mustSubmit(reserve("k", time.Hour)).Answer.Outcome; outcome != admission.OutcomePending {
			t.Errorf("a duplicate got %v", outcome)
		}
		letGo()
		for _, w := range []*waiter{first, second, third} {
			<-w.done
			w.granted(t)
		}
		s.mustSubmit(strangers("k", token))
	})
}

// A call whose caller has gone before its entry was closed is not in it.
func TestCallsWhoseCallersHaveGoneAreNotProposed(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		for _, stays := range []bool{true, false} {
			before := g.count()
			ctx, cancel := context.WithCancel(t.Context())
			name := func(who string) string { return fmt.Sprint(who, stays) }
			var first, stayed *waiter
			letGo := g.holding(false, func() { first = s.wait(t.Context(), name("first"), 0) })
			gone := []*waiter{s.wait(ctx, name("gone"), 0)}
			want := [][]string{{name("first")}}
			if stays {
				stayed = s.wait(t.Context(), name("stays"), 0)
				want = append(want, []string{name("stays")})
			}
			gone = append(gone, s.wait(ctx, name("gone too"), 0))
			cancel()
			for _, w := range gone {
				if !w.isDone() || !errors.Is(w.err, context.Canceled) {
					t.Errorf("the one that has gone got %v", w.err)
				}
			}
			letGo()
			<-first.done
			if stays {
				<-stayed.done
				stayed.granted(t)
			}
			if n := g.count() - before; n != len(want) {
				t.Errorf("%d entries were proposed, with commands or without, want %d", n, len(want))
			}
			time.Sleep(time.Minute)
			if all := g.since(before); fmt.Sprint(all) != fmt.Sprint(want) {
				t.Errorf("proposed were %v, want %v", all, want)
			}
			if s.known(name("gone")) || s.known(name("gone too")) {
				t.Error("what nobody waits for was applied")
			}
		}
	})
}

// Invariants 3 and 6: what was in the open entry is not applied, and is said not to be.
func TestTheOpenEntryIsEmptied(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(t *testing.T, s *testShard, g *entries)
		want error
	}{
		{"when leadership is lost", func(t *testing.T, s *testShard, g *entries) {
			g.depose(true)
			if err := s.do(t.Context(), s.reconsider); err != nil {
				t.Fatal(err)
			}
		}, ErrNoLeader},
		{"by Stop", func(t *testing.T, s *testShard, _ *entries) {
			go func() { _ = s.Stop(context.WithoutCancel(t.Context())) }()
		}, ErrShuttingDown},
		{"by a handover", func(t *testing.T, s *testShard, g *entries) {
			g.transfer = func() error {
				time.Sleep(time.Second)
				g.depose(true)
				return nil
			}
			if err := s.Handover(t.Context(), "another"); err != nil {
				t.Error(err)
			}
		}, ErrNoLeader},
	} {
		t.Run(test.name, func(t *testing.T) {
			withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
				s.grant("lapses", time.Minute)
				before := g.count()
				var inFlight *waiter
				letGo := g.holding(false, func() { inFlight = s.wait(t.Context(), "in flight", 0) })
				first := s.wait(t.Context(), "first", 0)
				second := s.wait(t.Context(), "second", 0)
				test.do(t, s, g)
				for _, w := range []*waiter{first, second} {
					if !w.isDone() || !errors.Is(w.err, test.want) {
						t.Errorf("a call of the open entry got %+v, %v, want %v", w.reply.Answer, w.err, test.want)
					}
				}
				if inFlight.isDone() {
					t.Errorf("what is in flight got %v before it has ended", inFlight.err)
				}
				letGo()
				<-inFlight.done
				if !errors.Is(inFlight.err, ErrOutcomeUnknown) {
					t.Errorf("what was in flight got %v", inFlight.err)
				}
				time.Sleep(time.Minute)
				if all := g.since(before); fmt.Sprint(all) != "[[in flight]]" || s.known("first") || s.known("second") {
					t.Errorf("proposed were %v; first is known: %t, second: %t", all, s.known("first"), s.known("second"))
				}

				// It leads again.
				g.depose(false)
				if err := s.do(t.Context(), s.reconsider); err != nil {
					if !errors.Is(err, test.want) {
						t.Error(err)
					}
					return
				}
				synctest.Wait()
				s.grant("first", time.Hour)
				if s.known("second") {
					t.Error("a call was applied after it had been refused")
				}
			})
		})
	}
}

// During a handover nothing is proposed; where it fails, what has waited goes on.
func TestAHandoverThatFailsKeepsTheOpenEntry(t *testing.T) {
	withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
		before := g.count()
		refused := errors.New("the other one is not up to date")
		g.transfer = func() error {
			time.Sleep(5 * time.Second)
			return refused
		}
		var inFlight *waiter
		letGo := g.holding(false, func() { inFlight = s.wait(t.Context(), "in flight", 0) })
		first := s.wait(t.Context(), "first", 0)
		handover := make(chan error, 1)
		go func() { handover <- s.Handover(t.Context(), "another") }()
		synctest.Wait()
		second := s.wait(t.Context(), "second", 0)
		time.Sleep(time.Second)
		letGo()
		<-inFlight.done
		inFlight.granted(t)
		time.Sleep(time.Second)
		if all := g.since(before); len(all) != 1 || first.isDone() || second.isDone() {
			t.Errorf("proposed during the handover were %v", all)
		}
		if err := <-handover; !errors.Is(err, refused) {
			t.Errorf("the handover: %v", err)
		}
		<-first.done
		<-second.done
		first.granted(t)
		second.granted(t)
	})
}

// A handover that is asked for while one is under way waits for that. Where the actor ends
// meanwhile, the one that was begun may be carried out yet, and the one that waited is not.
func TestAHandoverWaitsForAnother(t *testing.T) {
	withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
		refused, handed := errors.New("the other one declines"), 0
		g.transfer = func() error {
			time.Sleep(5 * time.Second)
			if handed++; handed < 3 {
				return refused
			}
			g.depose(true)
			return nil
		}
		began := time.Now()
		results := make(chan error, 20)
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		hand := func(ctx context.Context) {
			go func() { results <- s.Handover(ctx, "another") }()
			synctest.Wait()
		}
		hand(t.Context())
		hand(impatient) // is begun no more once it has gone
		hand(t.Context())
		hand(t.Context())
		hand(t.Context())
		for i, want := range []error{context.DeadlineExceeded, refused, refused} {
			if err := <-results; !errors.Is(err, want) {
				t.Errorf("handover %d: %v, want %v", i, err, want)
			}
		}
		if errs := errors.Join(<-results, <-results); errs == nil || errs.Error() != ErrNoLeader.Error() {
			t.Errorf("the one that was handed over, and the one after it: %v", errs)
		}
		if took := time.Since(began); took != 15*time.Second || handed != 3 {
			t.Errorf("handed over %d times in %v", handed, took)
		}
	})
	withEntries(t, nil, func(t *testing.T, s *testShard, g *entries) {
		g.transfer = func() error {
			time.Sleep(5 * time.Second)
			return nil
		}
		results := make(chan error, handoversMax+2)
		for range handoversMax + 2 {
			go func() { results <- s.Handover(t.Context(), "another") }()
			synctest.Wait()
		}
		if err := <-results; !errors.Is(err, ErrNoLeader) {
			t.Errorf("one more than may wait: %v", err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		unknown := 0
		for range handoversMax + 1 {
			switch err := <-results; {
			case errors.Is(err, ErrOutcomeUnknown):
				unknown++
			case !errors.Is(err, ErrShuttingDown):
				t.Error(err)
			}
		}
		if unknown != 1 {
			t.Errorf("%d handovers may have been carried out, and one was begun", unknown)
		}
		time.Sleep(time.Minute) // for the one that Raft goes on with
	})
}

// Invariant 5, where entries wait.
func TestWaitersKeepTheirOrderInTheOpenEntry(t *testing.T) {
	withEntries(t, func(c *Config) { c.ProposalWithin = time.Hour }, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("k", time.Hour)
		first := s.wait(t.Context(), "k", time.Hour)
		second := s.wait(t.Context(), "k", time.Hour)
		third := s.wait(t.Context(), "k", time.Hour)
		var stuck *waiter
		letGo := g.holding(false, func() { stuck = s.wait(t.Context(), "stuck", 0) })
		before := g.count()
		s.mustSubmit(release("k", token)) // it waits as well
		if first.isDone() || s.Waiters() != 2 {
			t.Errorf("%d calls are parked while the first waits in the open entry", s.Waiters())
		}
		// One that comes meanwhile stands behind it.
		late := s.wait(t.Context(), "k", 0)
		<-first.done
		first.granted(t)
		if !late.isDone() || late.err != nil || late.reply.Answer.Outcome != admission.OutcomePending {
			t.Errorf("the one that came late got %+v, %v", late.reply.Answer, late.err)
		}
		if second.isDone() || third.isDone() || s.Waiters() != 2 {
			t.Errorf("%d calls are parked behind the first", s.Waiters())
		}
		s.mustSubmit(release("k", first.reply.Answer.Token))
		<-second.done
		second.granted(t)
		if third.isDone() {
			t.Errorf("the third got %+v, %v before the second has ended", third.reply.Answer, third.err)
		}
		s.mustSubmit(release("k", second.reply.Answer.Token))
		<-third.done
		third.granted(t)
		want := [][]string{{"k"}, {"k", "k"}, {"k"}, {"k"}, {"k"}, {"k"}}
		if all := g.since(before); !slices.EqualFunc(all, want, slices.Equal) {
			t.Errorf("proposed were %v, want %v", all, want)
		}
		letGo()
		<-stuck.done
	})
}

// Invariant 5: an entry may say two things of one record; its waiters are looked at once.
func TestOneWaiterAtATimeHoweverOftenItsRecordChanges(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("k", time.Hour)
		first := s.wait(t.Context(), "k", time.Hour)
		second := s.wait(t.Context(), "k", time.Hour)
		before := g.count()
		var stuck *waiter
		letGo := g.holding(false, func() { stuck = s.wait(t.Context(), "stuck", 0) })
		ended := make(chan error, 2)
		for range 2 { // a Release and its retry
			go func() {
				_, err := s.Submit(t.Context(), release("k", token))
				ended <- err
			}()
		}
		letGo()
		<-ended
		<-ended
		<-stuck.done
		<-first.done
		first.granted(t)
		if second.isDone() || s.Waiters() != 1 {
			t.Errorf("%d parked, %v", s.Waiters(), second.isDone())
		}
		if proposed := g.since(before); len(proposed[len(proposed)-1]) != 1 {
			t.Errorf("the waiters are proposed together: %v", proposed)
		}
		s.mustSubmit(release("k", first.reply.Answer.Token))
		<-second.done
		second.granted(t)
	})
}

// A call that an entry finds pending is parked before what is behind it in the entry is
// looked at: that may be the end of what it waits for.
func TestWhoIsParkedByAnEntryIsWokenByTheSame(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("k", time.Second)
		letGo := g.holding(true, func() { s.wait(t.Context(), "another", 0) })
		before := g.count()
		time.Sleep(time.Second) // nothing is written down while an entry is held
		submit := func(request Request) {
			go func() {
				request.Received = time.Now()
				if reply, err := s.Submit(t.Context(), request); err != nil || reply.Answer.Refusal != admission.None {
					t.Errorf("%T: %v, %v", request.Command, reply.Answer.Refusal, err)
				}
			}()
			synctest.Wait()
		}
		submit(Request{Command: admission.Extend{Identity: key("k"), Token: token, PendingTTL: time.Hour, Span: 24 * time.Hour}})
		waits := s.wait(t.Context(), "k", time.Minute)
		submit(release("k", token))
		letGo()
		<-waits.done
		waits.granted(t)
		if waits.after > 2*time.Second {
			t.Errorf("granted after %v", waits.after)
		}
		if all := g.since(before); fmt.Sprint(all) != "[[k k k] [k]]" {
			t.Errorf("proposed were %v", all)
		}
	})
}

// Invariant 5: a waiter that goes away on its way into an entry leaves its turn to the next.
func TestAWaiterThatGoesAwayInTheOpenEntryIsNotWaitedFor(t *testing.T) {
	withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
		token := s.grant("k", time.Hour)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		first := s.wait(ctx, "k", time.Minute)
		second := s.wait(t.Context(), "k", time.Minute)
		var stuck *waiter
		letGo := g.holding(false, func() { stuck = s.wait(t.Context(), "stuck", 0) })
		s.mustSubmit(release("k", token))
		if first.isDone() || s.Waiters() != 1 {
			t.Fatalf("%d calls are parked while the first waits in the open entry", s.Waiters())
		}
		leave()
		<-first.done
		letGo()
		<-stuck.done
		free := time.Now()
		<-second.done
		second.granted(t)
		if took := time.Since(free); took > time.Second {
			t.Errorf("the next one was granted %v later", took)
		}
	})
}

// What waits in the open entry for the log's clock is of no record, or changes none: whoever
// asked for that may go away like everybody else.
func TestALookWhoseCallerHasGoneIsNotProposed(t *testing.T) {
	for name, request := range map[string]Request{
		"a look at a record":            {Get: ptr(key("k"))},
		"a question to the whole shard": {},
	} {
		t.Run(name, func(t *testing.T) {
			withEntries(t, patient, func(t *testing.T, s *testShard, g *entries) {
				s.grant("k", time.Second)
				letGo := g.holding(true, func() { s.wait(t.Context(), "another", 0) })
				time.Sleep(time.Second) // nothing is written down while an entry is held
				ctx, leave := context.WithCancel(t.Context())
				request.Received = time.Now()
				left := make(chan error)
				go func() {
					_, err := s.Submit(ctx, request)
					left <- err
				}()
				synctest.Wait()
				leave()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("who left got %v", err)
				}
				letGo()
				time.Sleep(time.Minute)
				s.grant("k", time.Minute)
			})
		})
	}
}
