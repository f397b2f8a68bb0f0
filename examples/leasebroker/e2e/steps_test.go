package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
)

// step is a moment in a request's life at which the test can stand still.
type step struct {
	name string
	// reach makes the next request stand still there. It returns a function that waits
	// until it does, one that lets it go on, and one that waits until the call that stood
	// still has done what it still does.
	reach func(s *stack) (reached, goOn, passed func())
}

// steps are all of them, in order, for an operation whose side effect is this call to the
// hypervisor. What the broker does by itself between two of them, its own file, lies
// between the kills at both.
func steps(effect string) []step {
	return []step{
		{"before it is admitted", coordinatorCall("reserve before")},
		{"when it is admitted, and does not know", coordinatorCall("reserve after")},
		{"before the side effect", hostCall(effect, "before")},
		{"after the side effect, without its reply", hostCall(effect, "after")},
		{"before it is recorded", coordinatorCall("commit before")},
		{"when it is recorded, and does not know", coordinatorCall("commit after")},
	}
}

func coordinatorCall(at string) func(*stack) (reached, goOn, passed func()) {
	return func(s *stack) (reached, goOn, passed func()) {
		g := s.between.hold(at)
		wait := func(what string, c <-chan struct{}) func() {
			return func() {
				s.t.Helper()
				s.eventually(what, func() bool {
					select {
					case <-c:
						return true
					default:
						return false
					}
				})
			}
		}
		return wait("held: "+at, g.arrived), func() { close(g.open) }, wait("passed: "+at, g.passed)
	}
}

func hostCall(call, point string) func(*stack) (reached, goOn, passed func()) {
	return func(s *stack) (reached, goOn, passed func()) {
		s.fault(call, point, "hold", 1, 0)
		var before int
		return func() {
				s.t.Helper()
				s.eventually("held: "+call+" "+point, func() bool {
					held, carried := s.faults()
					before = carried
					return held == 1
				})
			}, s.noFaults, func() {
				s.t.Helper()
				if point == "before" {
					s.eventually("passed: "+call, func() bool { _, carried := s.faults(); return carried > before })
				}
			}
	}
}

// fault is what happens at a step. cut closes the caller's connection.
type fault struct {
	name string
	late bool // what stood still goes on only when all is over
	do   func(s *stack, cut func())
}

var faults = []fault{
	{"the caller is cut off", false, func(_ *stack, cut func()) { cut() }},
	{"the broker is killed", false, func(s *stack, _ func()) { s.must(s.broker.Kill()) }},
	{"the coordinator is killed", false, func(s *stack, _ func()) { s.must(s.coordinator.Kill()) }},
	{"both are killed", false, func(s *stack, _ func()) {
		s.must(s.coordinator.Kill())
		s.must(s.broker.Kill())
	}},
	{"the broker is killed, and the call is late", true, func(s *stack, _ func()) { s.must(s.broker.Kill()) }},
}

// carriedOut is one request that is broken off at one step by one fault, and is then sent
// again until it is answered.
func (s *stack) carriedOut(t *testing.T, c call, at step, f fault) answered {
	t.Helper()
	reached, goOn, passed := at.reach(s)
	ctx, cut := context.WithCancel(t.Context())
	defer cut()
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = s.try(ctx, c) // whatever it is told: it sends it again
	}()
	reached()
	f.do(s, cut)
	if !f.late {
		goOn()
	}
	if !s.coordinator.Running() {
		s.startCoordinator()
	}
	if !s.broker.Running() {
		s.startBroker()
	}
	got := s.send(c)
	if f.late {
		goOn()
	}
	passed()
	cut()
	<-first
	again := s.send(c)
	if !again.replayed || again.status != got.status || again.body != got.body {
		t.Errorf("the answer was %d %s, and is replayed as %d %s (%v)", got.status, got.body, again.status, again.body, again.replayed)
	}
	return got
}

// each breaks an operation off at every step by every fault. A stack is shared by all of
// it: what one case leaves behind would show in the counts of the next.
func each(t *testing.T, effect string, run func(t *testing.T, s *stack, key string, broken func(call) answered)) {
	t.Parallel()
	s := start(t)
	n := 0
	for _, at := range steps(effect) {
		for _, f := range faults {
			n++
			key := fmt.Sprintf("%s-%d", effect, n)
			t.Run(at.name+", "+f.name, func(t *testing.T) {
				s.t = t
				run(t, s, key, func(c call) answered { return s.carriedOut(t, c, at, f) })
			})
			s.t = t
			if t.Failed() {
				return // what follows counts what this one has left
			}
		}
	}
}

// One lease is one worker: one machine, one place in the pool.
func TestCreateAtEveryStep(t *testing.T) {
	workers := 0
	each(t, "create", func(t *testing.T, s *stack, key string, broken func(call) answered) {
		got := broken(lease(key, 3600))
		workers++
		if got.status != http.StatusCreated || got.State != "active" {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if m := s.only(got.ID); m.State != "running" {
			t.Errorf("its machine is %s", m.State)
		}
		if all, err := s.machines(); err != nil || len(all) != workers {
			t.Errorf("%d machines were made for %d workers (%v)", len(all), workers, err)
		}
		if leased := s.leased(); len(leased) != workers {
			t.Errorf("%d workers are leased, not %d", len(leased), workers)
		}
	})
}

// One reboot is one boot.
func TestRebootAtEveryStep(t *testing.T) {
	var id string
	boots := 1
	each(t, "reboot", func(t *testing.T, s *stack, key string, broken func(call) answered) {
		if id == "" {
			id = s.send(lease("to-be-rebooted", 3600)).ID
		}
		got := broken(reboot(id, key))
		boots++
		if got.status != http.StatusOK || got.Boots != boots {
			t.Errorf("%d %s, want boots %d", got.status, got.body, boots)
		}
		if m := s.only(id); m.Boots != boots {
			t.Errorf("the machine was booted %d times, not %d", m.Boots, boots)
		}
	})
}

// One deletion ends one machine, and no other.
func TestDeleteAtEveryStep(t *testing.T) {
	var bystander string
	each(t, "terminate", func(t *testing.T, s *stack, key string, broken func(call) answered) {
		if bystander == "" {
			bystander = s.send(lease("bystander", 3600)).ID
		}
		id := s.send(lease("for-"+key, 3600)).ID
		if got := broken(remove(id, key)); got.status != http.StatusNoContent {
			t.Errorf("%d %s", got.status, got.body)
		}
		if m := s.only(id); m.State != "terminated" {
			t.Errorf("its machine is %s", m.State)
		}
		if leased := s.leased(); len(leased) != 1 || leased[0] != bystander || s.running() != 1 {
			t.Errorf("%v are leased and %d machines run; want %s alone", leased, s.running(), bystander)
		}
		if got := s.send(call{method: http.MethodGet, path: "/v1/workers/" + id}); got.State != "ended" {
			t.Errorf("the worker is %s", got.body)
		}
	})
}
