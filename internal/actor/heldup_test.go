package actor

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
)

// heldUp is a group whose queue holds the loop up with the next entry, and that is asked for
// confirmations.
type heldUp struct {
	Group
	mu        sync.Mutex
	holds     time.Duration
	confirmed func(since time.Time) bool // nil: as the group says
}

func (g *heldUp) Propose(entry []byte, within time.Duration) raft.ApplyFuture {
	g.mu.Lock()
	holds := g.holds
	g.holds = 0
	g.mu.Unlock()
	time.Sleep(holds)
	return g.Group.Propose(entry, within)
}

func (g *heldUp) Confirmed(term uint64, since time.Time) bool {
	g.mu.Lock()
	confirmed := g.confirmed
	g.mu.Unlock()
	if confirmed != nil {
		return confirmed(since)
	}
	return g.Group.Confirmed(term, since)
}

// holdUp has the loop held up for so long from now on, by the entry of another caller.
func (g *heldUp) holdUp(s *testShard, holds time.Duration, confirmed func(since time.Time) bool) {
	g.mu.Lock()
	g.holds, g.confirmed = holds, confirmed
	g.mu.Unlock()
	s.wait(s.t.Context(), "another", 0)
}

// inHeldBubble is inBubble with a loop that can be held up. An entry takes as long to be
// enqueued as Raft's main loop takes to write the one before it.
func inHeldBubble(t *testing.T, test func(t *testing.T, s *testShard, g *heldUp)) {
	t.Helper()
	g := &heldUp{}
	inBubble(t, func(c *Config) { g.Group, c.Group = c.Group, g }, func(t *testing.T, s *testShard) { test(t, s, g) })
}

// A leader that was deposed while its loop was held up must not answer what it is asked
// after that by what its followers had said before.
func TestACallIsNotConfirmedByWhatWasSentBeforeIt(t *testing.T) {
	inHeldBubble(t, func(t *testing.T, s *testShard, g *heldUp) {
		s.grant("k", time.Minute)
		acknowledged := time.Now().Add(100 * time.Millisecond)
		g.holdUp(s, time.Second, acknowledged.After)
		time.Sleep(500 * time.Millisecond)
		if reply, err := s.Submit(t.Context(), Request{Get: ptr(key("k")), Received: time.Now()}); !errors.Is(err, ErrNoLeader) {
			t.Errorf("got %+v, %v, want no answer: nothing was confirmed since the call", reply, err)
		}
	})
}

// What an owner reckons by must end at the deadline, however late the loop comes to its call.
func TestACallThatComesWhileTheLoopIsHeldUp(t *testing.T) {
	inHeldBubble(t, func(t *testing.T, s *testShard, g *heldUp) {
		request := reserve("k", time.Minute)
		granted := time.Now()
		s.mustSubmit(request)
		g.holdUp(s, time.Second, nil)
		time.Sleep(500 * time.Millisecond)
		request.Received = time.Now()
		reply := s.mustSubmit(request)
		if !reply.Answer.Repeated || reply.Waited != 500*time.Millisecond {
			t.Errorf("repeated %v, waited %v, want 500ms", reply.Answer.Repeated, reply.Waited)
		}
		if ends := request.Received.Add(reply.Waited + reply.Remaining); ends.After(granted.Add(time.Minute)) {
			t.Errorf("it ends %v after the deadline", ends.Sub(granted.Add(time.Minute)))
		}
	})
}

// Live time never is behind the clock of the log: what one caller has seen lapse is not
// pending to the next.
func TestACallIsDecidedAtItsOwnTime(t *testing.T) {
	inHeldBubble(t, func(t *testing.T, s *testShard, g *heldUp) {
		s.grant("k", time.Second)
		time.Sleep(500 * time.Millisecond)
		g.holdUp(s, time.Second, nil)
		time.Sleep(750 * time.Millisecond)
		reply := s.mustSubmit(Request{Get: ptr(key("k")), Received: time.Now()})
		synctest.Wait()
		if reply.Record == nil || reply.Record.State != admission.StateLapsed {
			t.Errorf("the record is %+v, want one that has lapsed", reply.Record)
		}
	})
}
