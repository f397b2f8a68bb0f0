package actor

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// overloadsOf is how often something was full.
func overloadsOf(a *Actor, cause string) uint64 {
	return a.Counts().Overloaded[slices.Index(OverloadCauses(), cause)]
}

func TestCountsOfEntries(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		before := s.Counts()
		token := s.grant("k", time.Minute)
		s.mustSubmit(reserve("k", time.Minute)) // refused without an entry
		s.mustSubmit(commit("k", token, "x"))
		if n := s.Counts(); n.Entries != before.Entries+2 || n.Commands != before.Commands+2 || n.Failed != 0 {
			t.Errorf("%+v, before %+v", n, before)
		}
		s.fates.decree(fate{err: raft.ErrLeadershipLost}, fate{err: raft.ErrEnqueueTimeout})
		for _, want := range []error{ErrOutcomeUnknown, ErrLogBehind} {
			if _, err := s.Submit(t.Context(), reserve("l", time.Minute)); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		synctest.Wait() // an entry is counted once its calls have been told
		if n := s.Counts(); n.Failed != 2 || overloadsOf(s.Actor, "log") != 1 {
			t.Errorf("%+v", n)
		}
	})
}

// Each refusal for want of room is counted once, under what was full.
func TestCountsOfWhatWasFull(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.WaitersMax, c.WaitersPerKeyMax = 2, 1
		c.MailboxCommandsMax, c.EntryCommandsMax, c.ProposalsMax = 1, 1, 1
	}, func(t *testing.T, s *testShard) {
		s.grant("k", time.Minute)
		s.grant("l", time.Minute)
		s.grant("m", time.Minute)
		waiters := []*waiter{s.wait(t.Context(), "k", time.Second), s.wait(t.Context(), "l", time.Second)}
		if w := s.wait(t.Context(), "k", time.Second); !errors.Is(w.err, ErrKeyWaitersFull) {
			t.Errorf("got %v", w.err)
		}
		if w := s.wait(t.Context(), "m", time.Second); !errors.Is(w.err, ErrWaitersFull) {
			t.Errorf("got %v", w.err)
		}
		for _, w := range waiters {
			<-w.done
		}

		stuck := make(chan struct{})
		s.fates.decree(fate{hangs: stuck, err: raft.ErrLeadershipLost})
		var calls []*waiter
		for _, name := range []string{"in flight", "in the open entry", "in the mailbox"} {
			calls = append(calls, s.wait(t.Context(), name, 0))
		}
		if w := s.wait(t.Context(), "too many", 0); !w.isDone() || !errors.Is(w.err, ErrMailboxFull) {
			t.Errorf("got %v", w.err)
		}
		close(stuck)
		for _, w := range calls {
			<-w.done
		}
		for _, cause := range OverloadCauses() {
			want := uint64(1)
			if cause == "log" || cause == "state" || cause == "answers" {
				want = 0
			}
			if got := overloadsOf(s.Actor, cause); got != want {
				t.Errorf("%s: %d, want %d", cause, got, want)
			}
		}
	})
}
