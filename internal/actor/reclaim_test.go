package actor

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/alarm"
)

// slowEntries is a group in which every entry takes a while.
type slowEntries struct {
	Group
	takes time.Duration
}

func (g *slowEntries) Propose(entry []byte, within time.Duration) raft.ApplyFuture {
	return late{g.Group.Propose(entry, within), g.takes}
}

// brief is the request for a key whose record is over a second after it was committed.
func brief(name string) Request {
	request := reserve(name, time.Second)
	command, _ := request.Command.(admission.Reserve)
	command.Retention = time.Second
	request.Command = command
	return request
}

// load has callers reserve one new key after the other and commit it, until the returned
// function is called.
func (s *testShard) load(callers int) (end func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprint("k", i, "-", n)
				reply := s.mustSubmit(brief(name))
				s.mustSubmit(commit(name, reply.Answer.Token, "done"))
			}
		})
	}
	return func() {
		cancel()
		calling.Wait()
	}
}

// stayBounded fails the test where what is over piles up.
func (s *testShard) stayBounded() {
	s.t.Helper()
	time.Sleep(4 * reclaimLate)
	synctest.Wait()
	if records, longest := s.group.Store().Overdue(); longest > reclaimLate+time.Second {
		s.t.Errorf("%d or more records are overdue, the first for %v", records, longest)
	}
}

// Where callers never pause, what is over goes as fast as new things come: without that
// memory and disk would fill with what nobody asks for any more.
func TestReclaimsKeepUpWithWhatIsAdmitted(t *testing.T) {
	slow := &slowEntries{takes: 100 * time.Millisecond}
	inBubble(t, func(c *Config) { slow.Group, c.Group = c.Group, slow }, func(t *testing.T, s *testShard) {
		defer s.load(alarm.ReclaimMax)()
		s.stayBounded()
	})
}

// Where entries are always full, the next one is ready when one has ended, and there is
// never room for one that nobody has asked for.
func TestReclaimsAreNotHeldUpByFullEntries(t *testing.T) {
	slow := &slowEntries{takes: 10 * time.Millisecond}
	small := func(c *Config) { slow.Group, c.Group, c.ProposalsMax, c.EntryCommandsMax = c.Group, slow, 1, 4 }
	inBubble(t, small, func(t *testing.T, s *testShard) {
		defer s.load(12)()
		s.stayBounded()
	})
}
