package actor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/alarm"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRefusedDuplicatesLeaveNoEntry(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		token := s.grant("k", time.Minute)
		before := s.lastIndex()
		for range 100 {
			if got := s.mustSubmit(reserve("k", time.Minute)).Answer.Outcome; got != admission.OutcomePending {
				t.Fatalf("outcome %v, want pending", got)
			}
		}
		if s.lastIndex() != before {
			t.Errorf("refused duplicates wrote %d entries", s.lastIndex()-before)
		}
		s.mustSubmit(commit("k", token, "done"))
		before = s.lastIndex()
		for range 100 {
			answer := s.mustSubmit(reserve("k", time.Minute)).Answer
			if answer.Outcome != admission.OutcomeCommitted || string(answer.Response.Stored) != "done" {
				t.Fatalf("%v with %q, want the committed response", answer.Outcome, answer.Response.Stored)
			}
		}
		if got := s.mustSubmit(commit("k", token, "done")).Answer; !got.Repeated {
			t.Error("the same commit again is not repeated")
		}
		if s.lastIndex() != before {
			t.Errorf("replays wrote %d entries", s.lastIndex()-before)
		}
	})
}

func TestARetriedReserveGetsItsOwnGrant(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		request := reserve("k", time.Minute)
		first := s.mustSubmit(request)
		time.Sleep(10 * time.Second)
		again := s.mustSubmit(request)
		if !again.Answer.Repeated || again.Answer.Token != first.Answer.Token {
			t.Errorf("got %+v, want the grant %v again", again.Answer, first.Answer.Token)
		}
		if again.Remaining >= first.Remaining {
			t.Errorf("%v remain, and %v remained ten seconds ago", again.Remaining, first.Remaining)
		}
	})
}

// Invariant 5.
func TestWaitersAreServedInOrder(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		token := s.grant("k", time.Minute)
		first := s.wait(t.Context(), "k", 30*time.Second)
		second := s.wait(t.Context(), "k", 30*time.Second)
		third := s.wait(t.Context(), "k", 30*time.Second)
		before := s.lastIndex()
		time.Sleep(time.Second)
		if s.Waiters() != 3 || s.lastIndex() != before {
			t.Fatalf("%d waiters and %d entries, want 3 and none", s.Waiters(), s.lastIndex()-before)
		}
		s.mustSubmit(release("k", token))
		if !first.isDone() || second.isDone() || third.isDone() {
			t.Fatal("a release must admit the first waiter and nobody else")
		}
		if first.reply.Answer.Outcome != admission.OutcomeGranted || first.reply.Answer.Previous.End != admission.EndedReleased {
			t.Fatalf("the first waiter got %+v, %v", first.reply.Answer, first.err)
		}
		if first.reply.Waited < time.Second {
			t.Errorf("waited %v, want a second at least", first.reply.Waited)
		}
		s.mustSubmit(commit("k", first.reply.Answer.Token, "shared"))
		if !second.isDone() || !third.isDone() {
			t.Fatal("a commit must answer every waiter")
		}
		for _, w := range []*waiter{second, third} {
			if w.reply.Answer.Outcome != admission.OutcomeCommitted || string(w.reply.Answer.Response.Stored) != "shared" {
				t.Errorf("a waiter got %+v, %v", w.reply.Answer, w.err)
			}
		}
		if s.Waiters() != 0 {
			t.Errorf("%d waiters are left", s.Waiters())
		}
	})
}

func TestAWaiterTakesOverAtTheDeadline(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		s.grant("k", 5*time.Second)
		start := time.Now()
		w := s.wait(t.Context(), "k", 30*time.Second)
		<-w.done
		if w.err != nil || w.reply.Answer.Previous.End != admission.EndedLapsed {
			t.Fatalf("got %+v, %v", w.reply.Answer, w.err)
		}
		// The clock of the group begins a little after the grant was asked for.
		if since := time.Since(start); since < 5*time.Second-time.Millisecond || since > 5*time.Second+100*time.Millisecond {
			t.Errorf("took over after %v, want 5s", since)
		}
	})
}

// The deadline has moved since the waiters came, and only the first of them has been told of
// that: whoever is first after it is told, too.
func TestTheNextWaiterTakesOverAtTheDeadline(t *testing.T) {
	for name, first := range map[string]time.Duration{"the first goes away": time.Hour, "the first's wait ends": 30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, s *testShard) {
				token := s.grant("k", 10*time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s.wait(ctx, "k", first)
				second := s.wait(t.Context(), "k", time.Hour)
				s.mustSubmit(Request{Command: admission.Extend{Identity: key("k"), Token: token, PendingTTL: time.Minute, Span: time.Hour}, Received: time.Now()})
				time.Sleep(40 * time.Second) // the first deadline has passed
				cancel()
				time.Sleep(21 * time.Second)
				if !second.isDone() || second.reply.Answer.Previous.End != admission.EndedLapsed {
					t.Errorf("after the deadline: %+v, %v", second.reply.Answer, second.err)
				}
			})
		})
	}
}

func TestAWaitEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		s.grant("k", time.Minute)
		w := s.wait(t.Context(), "k", 3*time.Second)
		<-w.done
		if w.err != nil || w.reply.Answer.Outcome != admission.OutcomePending || w.after != 3*time.Second {
			t.Errorf("got %v, %v after %v, want pending after 3s", w.reply.Answer.Outcome, w.err, w.after)
		}
	})
}

func TestAWaiterThatGoesAwayIsForgotten(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		token := s.grant("k", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		first := s.wait(ctx, "k", 30*time.Second)
		second := s.wait(t.Context(), "k", 30*time.Second)
		cancel()
		if !first.isDone() || !errors.Is(first.err, context.Canceled) || s.Waiters() != 1 {
			t.Fatalf("%d waiters after one has gone (%v), want 1", s.Waiters(), first.err)
		}
		s.mustSubmit(release("k", token))
		if !second.isDone() || second.reply.Answer.Outcome != admission.OutcomeGranted {
			t.Errorf("the one that stayed got %+v, %v", second.reply.Answer, second.err)
		}
	})
}

func saysMost(err error, most int) bool {
	full := (*FullError)(nil)
	return errors.As(err, &full) && full.Most == most
}

func TestFullIsANamedRefusal(t *testing.T) {
	t.Run("waiters of a key", func(t *testing.T) {
		inBubble(t, func(c *Config) { c.WaitersPerKeyMax = 2 }, func(t *testing.T, s *testShard) {
			token := s.grant("k", time.Minute)
			waiters := []*waiter{s.wait(t.Context(), "k", time.Minute), s.wait(t.Context(), "k", time.Minute)}
			if w := s.wait(t.Context(), "k", time.Minute); !w.isDone() || !errors.Is(w.err, ErrKeyWaitersFull) || !saysMost(w.err, 2) {
				t.Errorf("one over the limit got %v", w.err)
			}
			s.mustSubmit(commit("k", token, "x"))
			for _, w := range waiters {
				<-w.done
			}
		})
	})
	t.Run("waiters of the shard", func(t *testing.T) {
		inBubble(t, func(c *Config) { c.WaitersMax = 1 }, func(t *testing.T, s *testShard) {
			s.grant("k", time.Minute)
			s.grant("l", time.Minute)
			w := s.wait(t.Context(), "k", time.Second)
			if w := s.wait(t.Context(), "l", time.Minute); !w.isDone() || !errors.Is(w.err, ErrWaitersFull) || !saysMost(w.err, 1) {
				t.Errorf("one over the limit got %v", w.err)
			}
			<-w.done
		})
	})
	t.Run("mailbox", func(t *testing.T) {
		m := newMailbox(2, 100)
		m.open()
		for _, test := range []struct {
			bytes int64
			want  error
		}{{60, nil}, {41, ErrMailboxFull}, {40, nil}, {0, ErrMailboxFull}} {
			if err := m.put(newCall(Request{}, test.bytes)); !errors.Is(err, test.want) {
				t.Errorf("%d bytes: %v, want %v", test.bytes, err, test.want)
			}
		}
		if taken, fits := m.take(10, 1, 50); len(taken) != 0 || fits {
			t.Errorf("took %d calls that do not fit (%v)", len(taken), fits)
		}
		if taken, fits := m.take(10, 0, 50); len(taken) != 1 || fits {
			t.Errorf("took %d calls, want the one that is over the bytes by itself (%v)", len(taken), fits)
		}
		if calls, bytes := m.depth(); calls != 1 || bytes != 40 {
			t.Errorf("%d calls of %d bytes are left, want 1 of 40", calls, bytes)
		}
		taken, _ := m.take(10, 10, 50)
		if calls, bytes := m.depth(); len(taken) != 1 || calls != 0 || bytes != 0 {
			t.Errorf("took %d, %d of %d bytes are left", len(taken), calls, bytes)
		}
	})
}

// Invariant 3, for everything that may befall an entry.
func TestWhatBefallsAnEntry(t *testing.T) {
	for _, test := range []struct {
		name    string
		fate    fate
		want    error
		applied bool
	}{
		{"queue is full", fate{err: raft.ErrEnqueueTimeout}, ErrLogBehind, false},
		{"not the leader", fate{err: raft.ErrNotLeader}, ErrNoLeader, false},
		{"handing over", fate{err: raft.ErrLeadershipTransferInProgress}, ErrNoLeader, false},
		{"leadership lost, applied", fate{reaches: true, err: raft.ErrLeadershipLost}, ErrOutcomeUnknown, true},
		{"leadership lost, not applied", fate{err: raft.ErrLeadershipLost}, ErrOutcomeUnknown, false},
		{"shut down", fate{reaches: true, err: raft.ErrRaftShutdown}, ErrOutcomeUnknown, true},
		{"a disk error", fate{reaches: true, err: errors.New("input/output error")}, ErrOutcomeUnknown, true},
		{"no answer known", fate{reaches: true}, ErrOutcomeUnknown, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, s *testShard) {
				s.fates.decree(test.fate)
				request := reserve("k", time.Minute)
				if _, err := s.Submit(t.Context(), request); !errors.Is(err, test.want) {
					t.Fatalf("got %v, want %v", err, test.want)
				}
				// The retry is told the truth.
				retry := s.mustSubmit(request)
				if retry.Answer.Outcome != admission.OutcomeGranted || retry.Answer.Repeated != test.applied {
					t.Errorf("the retry got %+v", retry.Answer)
				}
			})
		})
	}
}

// While Raft refuses all entries at once, as it does for as long as a transfer of
// leadership hangs, the loop does not spin with those that nobody has asked for.
func TestATickThatIsRefusedIsNotProposedInALoop(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		const most = 10_000
		s.grant("k", 500*time.Millisecond)
		s.grant("l", time.Hour)
		s.fates.mu.Lock()
		for range most {
			s.fates.ticks = append(s.fates.ticks, raft.ErrLeadershipTransferInProgress)
		}
		s.fates.mu.Unlock()
		start := time.Now()
		time.Sleep(10 * time.Second)
		s.fates.mu.Lock()
		refused := most - len(s.fates.ticks)
		s.fates.ticks = nil
		s.fates.mu.Unlock()
		if refused == 0 || refused > int(10*time.Second/beginAgainAfter) {
			t.Errorf("%d entries were proposed in vain in %v", refused, time.Since(start))
		}
		synctest.Wait()
		time.Sleep(beginAgainAfter + time.Millisecond)
		if got := s.mustSubmit(Request{Get: ptr(key("k")), Received: time.Now()}).Record; got == nil || got.State != admission.StateLapsed {
			t.Errorf("%+v", got)
		}
		if logged := s.group.Store().Stats().Clock.Now; time.Duration(logged) < 10*time.Second {
			t.Errorf("the clock was not written down once it could be: %v", time.Duration(logged))
		}
	})
}

func TestAnEntryThatNeverEnds(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		stuck := make(chan struct{})
		s.fates.decree(fate{reaches: true, hangs: stuck, err: raft.ErrLeadershipLost})
		request := reserve("k", time.Minute)
		start := time.Now()
		if _, err := s.Submit(t.Context(), request); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
		if took := time.Since(start); took != s.cfg.ProposalWithin {
			t.Errorf("told after %v, want %v", took, s.cfg.ProposalWithin)
		}
		if !s.mustSubmit(request).Answer.Repeated {
			t.Error("the shard does not go on beside the entry that is stuck")
		}
		close(stuck)
	})
}

// A waiter whose own entry fails does not hold up the ones behind it.
func TestAFailedWaiterDoesNotBlockTheQueue(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		token := s.grant("k", time.Minute)
		first := s.wait(t.Context(), "k", 30*time.Second)
		second := s.wait(t.Context(), "k", 30*time.Second)
		s.mustSubmit(Request{Get: ptr(key("k")), Received: time.Now()})
		s.fates.decree(fate{reaches: true, err: nil}, fate{err: raft.ErrEnqueueTimeout})
		if _, err := s.Submit(t.Context(), release("k", token)); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("the release got %v", err)
		}
		if !first.isDone() || !errors.Is(first.err, ErrOverloaded) {
			t.Fatalf("the first waiter got %+v, %v", first.reply.Answer, first.err)
		}
		if !second.isDone() || second.reply.Answer.Outcome != admission.OutcomeGranted {
			t.Errorf("the second waiter got %+v, %v", second.reply.Answer, second.err)
		}
	})
}

func ptr[T any](v T) *T { return &v }

func TestWhatIsInvalidNeverReachesTheLog(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		before := s.lastIndex()
		for _, name := range []string{"", "\xff"} {
			if got := s.mustSubmit(reserve(name, time.Minute)).Answer.Refusal; got != admission.InvalidArgument {
				t.Errorf("key %q: refusal %q, want %q", name, got, admission.InvalidArgument)
			}
		}
		if s.lastIndex() != before {
			t.Error("an invalid command was proposed")
		}
	})
}

func TestWhatNobodyWantsIsNotGranted(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		request := reserve("k", time.Minute)
		request.WantedFor = time.Second
		time.Sleep(time.Second)
		if got := s.mustSubmit(request).Answer.Refusal; got != admission.DeadlineExceeded {
			t.Errorf("refusal %q, want %q", got, admission.DeadlineExceeded)
		}
	})
}

// What one caller has seen lapse is not pending to the next one, whoever leads then.
func TestALapseThatIsSeenIsInTheLog(t *testing.T) {
	inBubble(t, func(c *Config) { c.ProposalWithin = time.Hour }, func(t *testing.T, s *testShard) {
		s.grant("k", 5*time.Second)
		time.Sleep(5*time.Second - time.Millisecond)
		if got := s.mustSubmit(Request{Get: ptr(key("k")), Received: time.Now()}).Record.State; got != admission.StatePending {
			t.Fatalf("state %v before the deadline", got)
		}
		time.Sleep(2 * time.Millisecond)
		reply := s.mustSubmit(Request{Get: ptr(key("k")), Received: time.Now()})
		if reply.Record.State != admission.StateLapsed {
			t.Fatalf("state %v after the deadline", reply.Record.State)
		}
		if logged := s.logged(); logged < reply.Record.PendingDeadline {
			t.Errorf("the log's clock is %v, before the deadline %v that was seen to pass", logged, reply.Record.PendingDeadline)
		}
	})
}

// The drift between live and logged time stays within its bound through an idle hour,
// and ticks are few.
func TestTicks(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		s.grant("k", 24*time.Hour)
		before, start, begun := s.lastIndex(), time.Now(), s.logged()
		for range 50 * 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			live := begun.Add(time.Since(start))
			earliest, _ := s.earliest()
			bound := max(alarm.DriftMin, earliest.Sub(live)/alarm.DriftFraction)
			if drift := live.Sub(s.logged()); drift > bound+10*time.Millisecond {
				t.Fatalf("after %v the log's clock is %v behind, the bound is %v", time.Since(start), drift, bound)
			}
		}
		if wrote := s.lastIndex() - before; wrote > 10 {
			t.Errorf("%d ticks in 50 minutes with a day to go", wrote)
		}
	})
}

// A restart neither starts a window over nor ends it early.
func TestAWindowGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openShard(t, dir, nil)
		granted := time.Now()
		s.grant("k", time.Minute)
		time.Sleep(40 * time.Second)
		s.close()
		time.Sleep(time.Hour) // nobody leads
		stopped := time.Hour
		s = openShard(t, dir, nil)
		defer s.close()
		for {
			answer := s.mustSubmit(reserve("k", time.Minute)).Answer
			if answer.Outcome == admission.OutcomeGranted {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		lived := time.Since(granted) - stopped
		if lived < time.Minute {
			t.Errorf("lapsed after %v of a minute", lived)
		}
		// What is not counted: the drift, and the election.
		if late := lived - time.Minute; late > 5*time.Second {
			t.Errorf("lapsed %v late", late)
		}
	})
}

func TestDueRecordsAreReclaimedInBatches(t *testing.T) {
	// With so little to be gathered, a reclaim waits for the disk as well.
	inBubble(t, func(c *Config) { c.GatheredBytesMax = 512 << 10 }, func(t *testing.T, s *testShard) {
		const keys = 3 * alarm.ReclaimMax
		for i := range keys {
			request := reserve(fmt.Sprint("k", i), time.Second)
			command := request.Command.(admission.Reserve)
			command.Retention = time.Second
			request.Command = command
			s.mustSubmit(request)
		}
		time.Sleep(3*time.Second + admission.AttemptMemory)
		synctest.Wait()
		stats := s.group.Store().Stats()
		if stats.Records != [admission.States]uint64{} {
			t.Errorf("%v records are left by state", stats.Records)
		}
	})
}

// slowReclaims is a group in which every reclaim takes a while.
type slowReclaims struct {
	Group
	takes time.Duration
	at    []time.Time // when they were proposed
}

func (g *slowReclaims) Propose(entry []byte, within time.Duration) raft.ApplyFuture {
	future := g.Group.Propose(entry, within)
	if decoded, err := raftfsm.DecodeEntry(entry); err != nil || decoded.Reclaim == 0 {
		return future
	}
	g.at = append(g.at, time.Now())
	return late{future, g.takes}
}

type late struct {
	raft.ApplyFuture
	by time.Duration
}

func (l late) Error() error {
	time.Sleep(l.by)
	return l.ApplyFuture.Error()
}

func TestReclaimsLeaveRoom(t *testing.T) {
	slow := &slowReclaims{takes: 10 * time.Millisecond}
	slower := func(c *Config) { slow.Group, c.Group = c.Group, slow }
	inBubble(t, slower, func(t *testing.T, s *testShard) {
		for i := range 2*alarm.ReclaimMax + 1 {
			s.grant(fmt.Sprint("k", i), time.Second)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(slow.at) != 3 {
			t.Fatalf("there were %d reclaims, want 3", len(slow.at))
		}
		for i, at := range slow.at[1:] {
			if between := at.Sub(slow.at[i]); between != (1+reclaimRest)*slow.takes {
				t.Errorf("reclaim %d came %v after the one before, which took %v", i+2, between, slow.takes)
			}
		}
	})
}

// A reclaim may be put off for long, the clock of the log may not.
func TestAReclaimThatIsPutOffDoesNotHoldUpTheClock(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		lazy := store.Config{FlushInterval: 10 * time.Second}
		s := openShardOn(t, dir, lazy, func(c *Config) { c.GatheredBytesMax = 16 << 10 })
		defer s.close()
		for i := range 40 {
			s.grant(fmt.Sprint("k", i), time.Second)
		}
		start, begun := time.Now(), s.logged()
		for range 8 {
			time.Sleep(time.Second)
			synctest.Wait()
			live := begun.Add(time.Since(start))
			if drift := live.Sub(s.logged()); drift > alarm.DriftMin+10*time.Millisecond {
				t.Fatalf("after %v the log's clock is %v behind", time.Since(start), drift)
			}
		}
		if left := s.group.Store().Stats().Records[admission.StatePending]; left != 40 {
			t.Errorf("%d of 40 records are left as they were: nothing was put off", left)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if left := s.group.Store().Stats().Records[admission.StatePending]; left != 0 {
			t.Errorf("%d records were never reclaimed", left)
		}
	})
}

func TestStop(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		s.grant("k", time.Minute)
		w := s.wait(t.Context(), "k", time.Minute)
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !w.isDone() || !errors.Is(w.err, ErrShuttingDown) {
			t.Errorf("the waiter got %v", w.err)
		}
		if _, err := s.Submit(t.Context(), reserve("k", time.Minute)); !errors.Is(err, ErrShuttingDown) {
			t.Errorf("a call after Stop got %v", err)
		}
	})
}

func TestStopDoesNotWaitForever(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		stuck := make(chan struct{})
		s.fates.decree(fate{hangs: stuck, err: raft.ErrRaftShutdown})
		w := s.wait(t.Context(), "k", 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %v", err)
		}
		if !w.isDone() || !errors.Is(w.err, ErrOutcomeUnknown) {
			t.Errorf("the call got %v", w.err)
		}
		close(stuck)
	})
}

func TestHandoverWithNobodyToTakeOver(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		s.grant("k", time.Minute)
		time.Sleep(500 * time.Millisecond)
		if err := s.Handover(t.Context(), ""); err == nil {
			t.Error("a group of one was handed over")
		}
		var clock store.Clock
		if err := s.group.Store().View(func(tx *store.Tx) error { clock = tx.Clock(); return nil }); err != nil {
			t.Fatal(err)
		}
		if clock.Now.Sub(clock.Noted) < 500*time.Millisecond {
			t.Errorf("the clock was not written down before the handover: %+v", clock)
		}
		s.grant("l", time.Minute)
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := Default()
	good.Group, good.Store, good.Logger = &fates{}, &store.Store{}, slog.Default()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"Group":          func(c *Config) { c.Group = nil },
		"ProposalsMax":   func(c *Config) { c.ProposalsMax = 0 },
		"WaitersMax":     func(c *Config) { c.WaitersMax = -1 },
		"ProposalWithin": func(c *Config) { c.ProposalWithin = 0 },
	} {
		bad := good
		spoil(&bad)
		if _, err := Start(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
