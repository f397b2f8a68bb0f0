package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Whose key it is, and for what.
func TestKeys(t *testing.T) {
	t.Parallel()
	s := start(t)
	expect := func(c call, status int, code string) answered {
		t.Helper()
		got := s.send(c)
		if got.status != status || got.Code != code {
			t.Errorf("%s %s: %d %s, want %d %q", c.method, c.path, got.status, got.body, status, code)
		}
		return got
	}
	one := expect(lease("Req-A", 60), http.StatusCreated, "").ID
	two := expect(lease("req-a", 60), http.StatusCreated, "").ID
	if one == two {
		t.Error("two keys made one worker")
	}

	// The same key names another thing on another path, and for another account.
	for _, id := range []string{one, two} {
		expect(reboot(id, "same"), http.StatusOK, "")
		expect(reboot(id, "same"), http.StatusOK, "")
		if m := s.only(id); m.Boots != 2 {
			t.Errorf("%s was booted %d times", id, m.Boots)
		}
	}
	theirs := lease("Req-A", 60)
	theirs.token = "other-token"
	if got := expect(theirs, http.StatusCreated, ""); got.ID == one {
		t.Error("an account was given another one's worker")
	}
	theirs = remove(one, "not-mine")
	theirs.token = "other-token"
	expect(theirs, http.StatusNotFound, "NO_SUCH_WORKER")
	theirs.token = "nobody's"
	expect(theirs, http.StatusUnauthorized, "UNAUTHENTICATED")

	// What was answered is answered again, whatever became of the worker.
	first := expect(lease("Req-A", 60), http.StatusCreated, "")
	expect(remove(one, "k"), http.StatusNoContent, "")
	if got := expect(lease("Req-A", 60), http.StatusCreated, ""); !got.replayed || got.body != first.body {
		t.Errorf("the replay is %s, and was %s", got.body, first.body)
	}
	if got := expect(remove(one, "k"), http.StatusNoContent, ""); !got.replayed {
		t.Error("a deletion was carried out again")
	}
	expect(remove(one, "another"), http.StatusNoContent, "") // it is gone, as was asked
	expect(reboot(one, "another"), http.StatusGone, "WORKER_ENDED")

	// Bugs of callers.
	expect(lease("Req-A", 61), http.StatusUnprocessableEntity, "IDEMPOTENCY_KEY_REUSED")
	expect(lease("", 60), http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
	expect(lease("too-long", 86401), http.StatusBadRequest, "BAD_ORDER")
	expect(lease("too-short", 0), http.StatusBadRequest, "BAD_ORDER")
	expect(call{method: http.MethodPost, path: "/v1/workers", key: "text", body: "a small one"}, http.StatusBadRequest, "BAD_ORDER")
	expect(remove("nothing", "nothing"), http.StatusNotFound, "NO_SUCH_WORKER")
	if running := s.running(); running != 2 { // two, and the other account's
		t.Errorf("%d machines run", running)
	}
}

// The steps test stands still where calls are. This one kills wherever the broker happens
// to be, between two calls and in the middle of its own file too, with all three operations
// under way.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	s := start(t)
	const rounds, each = 8, 4
	var doomed [each]string
	target := s.send(lease("target", 3600)).ID
	for i := range each {
		doomed[i] = s.send(lease(fmt.Sprint("doomed-", i), 3600)).ID
	}
	for round := range rounds {
		calls := []call{}
		for i := range each {
			key := fmt.Sprintf("round-%d-%d", round, i)
			calls = append(calls, lease(key, 3600), reboot(target, key), remove(doomed[i], key))
		}
		answers := make([]answered, len(calls))
		var all sync.WaitGroup
		for i, c := range calls {
			all.Go(func() {
				var err error
				if answers[i], err = s.persist(c); err != nil {
					t.Error(err)
				}
			})
		}
		after := rand.N(60 * time.Millisecond)
		timer := time.NewTimer(after)
		<-timer.C
		s.must(s.broker.Kill())
		s.startBroker()
		all.Wait()
		for i := range each {
			created, rebooted, deleted := answers[3*i], answers[3*i+1], answers[3*i+2]
			if created.status != http.StatusCreated || rebooted.status != http.StatusOK || deleted.status != http.StatusNoContent {
				t.Fatalf("round %d, killed after %v: %+v, %+v, %+v", round, after, created, rebooted, deleted)
			}
			if m := s.only(doomed[i]); m.State != "terminated" {
				t.Errorf("round %d, killed after %v: the machine of a deleted worker is %s", round, after, m.State)
			}
			doomed[i] = created.ID
			if m := s.only(created.ID); m.State != "running" {
				t.Errorf("round %d, killed after %v: the machine of a new worker is %s", round, after, m.State)
			}
		}
		if m := s.only(target); m.Boots != 1+each*(round+1) {
			t.Errorf("round %d, killed after %v: %d boots, not %d", round, after, m.Boots, 1+each*(round+1))
		}
		if leased := len(s.leased()); leased != 1+each || s.running() != 1+each {
			t.Errorf("round %d, killed after %v: %d workers, %d machines, not %d", round, after, leased, s.running(), 1+each)
		}
	}
}

// Many callers send each request several times at once while processes are killed and the
// hypervisor fails. Every key is one worker, and everybody is told of the same one.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := start(t, "--hypervisor-try", "1s")
	const keys, callers = 24, 3
	for _, kind := range []string{"error", "cut"} {
		s.fault("create", "before", kind, 3, 0)
		s.fault("create", "after", kind, 3, 0)
	}
	var (
		mu       sync.Mutex
		bodies   [keys][]string
		answers  atomic.Int64
		everyone sync.WaitGroup
	)
	for caller := range callers {
		everyone.Go(func() {
			var mine sync.WaitGroup
			for k := range keys {
				mine.Go(func() {
					got, err := s.persist(lease(fmt.Sprint("storm-", k), 3600))
					if err != nil || got.status != http.StatusCreated {
						t.Errorf("caller %d, key %d: %d %s %v", caller, k, got.status, got.body, err)
					}
					answers.Add(1)
					mu.Lock()
					defer mu.Unlock()
					bodies[k] = append(bodies[k], got.body)
				})
				if k%4 == 3 {
					mine.Wait()
				}
			}
			mine.Wait()
		})
	}
	kills := 0
	for next := int64(keys * callers / 8); next < keys*callers; next += keys * callers / 6 {
		s.eventually("some have their answer", func() bool { return answers.Load() >= next || t.Failed() })
		s.must(s.broker.Kill())
		if kills++; kills%2 == 0 {
			s.must(s.coordinator.Kill())
			s.startCoordinator()
		}
		s.startBroker()
	}
	everyone.Wait()
	for k, told := range bodies {
		for _, body := range told {
			if body != told[0] {
				t.Errorf("key %d: one was told %s, and another %s", k, told[0], body)
			}
		}
	}
	all, err := s.machines()
	if err != nil || len(all) != keys || s.running() != keys || len(s.leased()) != keys {
		t.Errorf("%d keys made %d machines and %d workers (%v), with %d kills", keys, len(all), len(s.leased()), err, kills)
	}
	t.Logf("%d answers, %d kills", answers.Load(), kills)
}
