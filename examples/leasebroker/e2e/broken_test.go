package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A hypervisor that fails, hangs and loses its replies. What goes wrong once is put right
// within the request; what goes wrong at every try is put right by the caller's retries,
// once the reservation has lapsed.
func TestHypervisorFails(t *testing.T) {
	t.Parallel()
	s := start(t, "--hypervisor-try", "400ms")
	worker := s.send(lease("worker", 3600)).ID
	boots, running, n := 1, 1, 0
	for _, times := range []int{1, 3} {
		for _, how := range []struct {
			point, kind string
			slow        time.Duration
		}{
			{"before", "error", 0},
			{"before", "cut", 0},
			{"before", "slow", time.Second},
			{"after", "error", 0},
			{"after", "cut", 0},
			{"after", "slow", time.Second},
		} {
			t.Run(fmt.Sprintf("%s %s, %d times", how.kind, how.point, times), func(t *testing.T) {
				s.t = t
				n++
				key := fmt.Sprint("k", n)
				s.fault("create", how.point, how.kind, times, how.slow)
				created := s.send(lease(key, 3600))
				if running++; created.status != http.StatusCreated || s.only(created.ID).State != "running" || s.running() != running {
					t.Fatalf("created: %d %s; %d machines run, not %d", created.status, created.body, s.running(), running)
				}
				s.fault("reboot", how.point, how.kind, times, how.slow)
				rebooted := s.send(reboot(worker, key))
				if boots++; rebooted.status != http.StatusOK || s.only(worker).Boots != boots {
					t.Fatalf("rebooted: %d %s; %+v, not %d boots", rebooted.status, rebooted.body, s.only(worker), boots)
				}
				s.fault("terminate", how.point, how.kind, times, how.slow)
				deleted := s.send(remove(created.ID, key))
				if running--; deleted.status != http.StatusNoContent || s.only(created.ID).State != "terminated" || s.running() != running {
					t.Fatalf("deleted: %d %s; %d machines run, not %d", deleted.status, deleted.body, s.running(), running)
				}
			})
			s.t = t
		}
	}
}

// Who is refused for certain has its key back at once: here nothing ever lapses.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := start(t, "--capacity", "2", "--pending-ttl", "1h")
	once := func(c call, status int, code string) {
		t.Helper()
		if got := s.admitted(c); got.status != status || got.Code != code {
			t.Fatalf("%s %s: %d %s, want %d %s", c.method, c.path, got.status, got.body, status, code)
		}
	}
	s.fault("create", "before", "refuse", 1, 0)
	once(lease("refused", 60), http.StatusServiceUnavailable, "NO_MACHINE")
	if leased := s.leased(); len(leased) != 0 {
		t.Fatalf("a refused worker has kept its place: %v", leased)
	}
	first := s.send(lease("refused", 60))
	if first.status != http.StatusCreated {
		t.Fatalf("%d %s", first.status, first.body)
	}

	odd := call{method: http.MethodPost, path: "/v1/workers", key: "odd", body: `{"flavor":"gigantic","lease_seconds":60}`}
	once(odd, http.StatusUnprocessableEntity, "ORDER_REFUSED")
	if again := s.send(odd); !again.replayed {
		t.Errorf("what the hypervisor will never do is asked for again: %s", again.body)
	}

	// Six want the one place that is left.
	var (
		mu   sync.Mutex
		full []string
		made []string
		all  sync.WaitGroup
	)
	for i := range 6 {
		all.Go(func() {
			key := fmt.Sprint("contender-", i)
			got := s.admitted(lease(key, 60))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case got.status == http.StatusCreated:
				made = append(made, got.ID)
			case got.Code == "POOL_FULL":
				full = append(full, key)
			default:
				t.Errorf("%s: %d %s", key, got.status, got.body)
			}
		})
	}
	all.Wait()
	if len(made) != 1 || len(full) != 5 || s.running() != 2 {
		t.Fatalf("%d were made, %d refused, %d machines run", len(made), len(full), s.running())
	}
	s.send(remove(made[0], "make-room"))
	if got := s.send(lease(full[0], 60)); got.status != http.StatusCreated || s.running() != 2 {
		t.Errorf("the place that became free: %d %s, %d machines run", got.status, got.body, s.running())
	}
}

// A refusal is worth nothing while an earlier call may still be on its way: the place
// stays taken and the key stays closed until that is over.
func TestRefusedAfterSilence(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.fault("create", "before", "cut", 1, 0)
	s.fault("create", "before", "refuse", 2, 0)
	for attempt := range 2 { // the second one knows that the first ended in silence
		got := s.admitted(lease("k", 60))
		if got.Code != "OUTCOME_UNKNOWN" {
			t.Fatalf("attempt %d: %d %s", attempt+1, got.status, got.body)
		}
		if leased := s.leased(); len(leased) != 1 {
			t.Fatalf("attempt %d: the place was given back: %v", attempt+1, leased)
		}
	}
	if got := s.send(lease("k", 60)); got.status != http.StatusCreated || s.only(got.ID).State != "running" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// While the coordinator is away nothing is done.
func TestCoordinatorAway(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.must(s.coordinator.Kill())
	got, err := s.try(t.Context(), lease("k", 60))
	if err != nil || got.status != http.StatusServiceUnavailable || got.Code != "IDEMPOTENCY_UNAVAILABLE" {
		t.Errorf("%d %s %v", got.status, got.body, err)
	}
	if _, carried := s.faults(); carried != 0 {
		t.Errorf("the hypervisor was called %d times", carried)
	}
	if leased := s.leased(); len(leased) != 0 {
		t.Errorf("%v are leased", leased)
	}
	s.startCoordinator()
	if got := s.send(lease("k", 60)); got.status != http.StatusCreated || s.running() != 1 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A broker that is told to stop finishes what it has begun.
func TestStop(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.fault("create", "after", "hold", 1, 0)
	told := make(chan answered, 1)
	go func() {
		got, _ := s.try(context.WithoutCancel(t.Context()), lease("k", 60))
		told <- got
	}()
	s.eventually("the machine is being made", func() bool { held, _ := s.faults(); return held == 1 })
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := s.broker.Stop()
		ended <- end{code, err}
	}()
	s.must(s.broker.Said("stopping", patience))
	s.noFaults()
	got := <-told
	if e := <-ended; e.code != 0 || e.err != nil || got.status != http.StatusCreated {
		t.Errorf("it ended with %d %v, and its last answer was %d %s", e.code, e.err, got.status, got.body)
	}
	s.startBroker()
	if again := s.send(lease("k", 60)); !again.replayed || again.body != got.body {
		t.Errorf("%d %s", again.status, again.body)
	}
}
