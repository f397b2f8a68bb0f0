package e2e

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"
)

// abandon sends a request once, kills the broker while the hypervisor holds the call, and
// does not come back for it. It returns the workers that there were then, but one.
func (s *stack) abandon(c call, effect, point string, goOn bool, but string) []string {
	s.t.Helper()
	s.fault(effect, point, "hold", 1, 0)
	ctx, cut := context.WithCancel(s.t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = s.try(ctx, c) // nobody hears the answer
	}()
	s.eventually("the call is held", func() bool { held, _ := s.faults(); return held == 1 })
	others := slices.DeleteFunc(s.leased(), func(id string) bool { return id == but })
	s.must(s.broker.Kill())
	cut()
	<-first
	if goOn {
		s.noFaults()
	}
	s.startBroker()
	return others
}

// What nobody comes back for is taken back, and stays so.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := start(t, "--create-within", "3s", "--sweep-every", "100ms")
	ends := func(what, id string) {
		t.Helper()
		s.eventually(what, func() bool {
			got, err := s.try(t.Context(), call{method: http.MethodGet, path: "/v1/workers/" + id})
			return err == nil && got.State == "ended"
		})
	}
	keeps := s.send(lease("keeps", 3600)).ID

	// A lease that is over.
	over := s.send(lease("over", 1)).ID
	ends("its lease is over", over)
	if m := s.only(over); m.State != "terminated" {
		t.Errorf("the machine of a lease that is over is %s", m.State)
	}
	if got := s.send(reboot(over, "too-late")); got.status != http.StatusGone || s.only(over).Boots != 1 {
		t.Errorf("it was rebooted: %d %s", got.status, got.body)
	}

	// A machine that was made for somebody who did not come back.
	others := s.abandon(lease("made", 3600), "create", "after", true, keeps)
	if len(others) != 1 {
		t.Fatalf("the workers are %v, and %s", others, keeps)
	}
	made := others[0]
	ends("what was made is taken back", made)
	if m := s.only(made); m.State != "terminated" {
		t.Errorf("the machine that nobody came back for is %s", m.State)
	}
	late := s.send(lease("made", 3600))
	if late.status != http.StatusGone || late.Code != "WORKER_ENDED" {
		t.Errorf("who comes back after that is told %d %s", late.status, late.body)
	}
	if again := s.send(lease("made", 3600)); !again.replayed || s.running() != 1 {
		t.Errorf("and then %d %s, while %d machines run", again.status, again.body, s.running())
	}

	// A machine that is made after its worker has been taken back.
	others = s.abandon(lease("late", 3600), "create", "before", false, keeps)
	if len(others) != 1 {
		t.Fatalf("the workers are %v, and %s", others, keeps)
	}
	unmade := others[0]
	ends("what was not made is taken back", unmade)
	if found := s.of(unmade); len(found) != 0 {
		t.Fatalf("it has machines: %+v", found)
	}
	s.noFaults() // the call goes on, and makes one
	s.eventually("the late machine is found and terminated", func() bool {
		found := s.of(unmade)
		return len(found) == 1 && found[0].State == "terminated"
	})

	// A deletion that was begun, and is finished without its caller.
	doomed := s.send(lease("doomed", 3600)).ID
	s.abandon(remove(doomed, "doomed"), "terminate", "before", false, keeps)
	ends("the deletion is finished", doomed)
	if m := s.only(doomed); m.State != "terminated" {
		t.Errorf("the machine of a worker that was to be deleted is %s", m.State)
	}
	s.noFaults()
	if got := s.send(remove(doomed, "doomed")); got.status != http.StatusNoContent {
		t.Errorf("its caller comes back and is told %d %s", got.status, got.body)
	}

	if m := s.only(keeps); m.State != "running" || s.running() != 1 {
		t.Errorf("the worker that is leased has a machine that is %s; %d run", m.State, s.running())
	}
}

// A machine that the broker does not know is somebody else's, or was made for a pool that
// is lost. It is told of, and left alone.
func TestStranger(t *testing.T) {
	t.Parallel()
	s := start(t, "--sweep-every", "100ms")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.hostURL+"/machines", body(`{"name":"stranger","flavor":"small"}`))
	s.must(err)
	request.Header.Set("Client-Token", "somebody else's")
	response, err := s.http.Do(request)
	s.must(err)
	response.Body.Close()
	s.must(s.broker.Said("no worker ever had", patience))
	over := s.send(lease("over", 1)).ID
	s.eventually("a sweep has ended another one", func() bool { return s.only(over).State == "terminated" })
	if m := s.only("stranger"); m.State != "running" {
		t.Errorf("the stranger is %s", m.State)
	}
}

// Two brokers never share a pool.
func TestSecondBroker(t *testing.T) {
	t.Parallel()
	s := start(t)
	arguments := append(s.broker.Arguments(), "--listen", "127.0.0.1:0")
	second := newBroker(t, arguments...)
	s.must(second.Start())
	code, err := second.Wait(30 * time.Second)
	if err != nil || code != 1 {
		t.Errorf("the second one ended with %d %v", code, err)
	}
	s.must(second.Said("does another broker use it?", patience))
}
