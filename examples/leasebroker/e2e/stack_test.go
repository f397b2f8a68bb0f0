package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

const (
	patience  = 2 * time.Minute       // the longest that a test waits for what must come
	pollEvery = 20 * time.Millisecond // between two looks, and between two tries of a caller
)

// stack is one of everything.
type stack struct {
	t           *testing.T
	coordinator *process.Node
	cluster     *process.Cluster
	between     *between
	hypervisor  *process.Node
	broker      *process.Node
	brokerURL   string
	hostURL     string
	http        *http.Client
}

// start starts a stack with further arguments for the broker.
func start(t *testing.T, more ...string) *stack {
	t.Helper()
	s := &stack{t: t, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(s.http.CloseIdleConnections)
	s.cluster = process.Start(t, programs, 1)
	s.coordinator = s.cluster.Nodes[0]
	s.between = startBetween(t, s.coordinator.Conn())

	host, address := process.FreeAddress(t), process.FreeAddress(t)
	s.hostURL, s.brokerURL = "http://"+host, "http://"+address
	s.hypervisor = process.NewProgram(t, hypervisor, "--listen", host, "--capacity", "1000")
	s.must(s.hypervisor.Start())
	s.eventually("the hypervisor answers", func() bool { _, err := s.machines(); return err == nil })

	s.broker = newBroker(t, append([]string{
		"--listen", address, "--coordinator", s.between.address, "--hypervisor", s.hostURL,
		"--state", filepath.Join(t.TempDir(), "pool.db"), "--capacity", "1000",
		"--accounts", "acme=acme-token,other=other-token", "--pending-ttl", "1s",
	}, more...)...)
	s.startBroker()
	return s
}

func newBroker(t *testing.T, arguments ...string) *process.Node {
	t.Helper()
	return process.NewProgram(t, broker, arguments...)
}

func body(text string) io.Reader { return strings.NewReader(text) }

func (s *stack) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) startBroker() {
	s.t.Helper()
	s.must(s.broker.Start())
	s.eventually("the broker answers", func() bool {
		if !s.broker.Running() {
			s.t.Fatalf("the broker has ended:\n%s", s.broker.Output())
		}
		got, err := s.try(s.t.Context(), call{method: http.MethodGet, path: "/v1/workers"})
		return err == nil && got.status == http.StatusOK
	})
}

func (s *stack) startCoordinator() {
	s.t.Helper()
	s.must(s.coordinator.Start())
	s.must(s.coordinator.Serving(patience))
}

// eventually waits until something is so.
func (s *stack) eventually(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !is(); s.pause() {
		if time.Now().After(deadline) {
			s.t.Fatalf("after %v it is not so: %s", patience, what)
		}
	}
}

func (s *stack) pause() {
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	<-timer.C
}

// call is one request of a caller of the broker, which is sent again until it is answered.
type call struct {
	method, path, body, key string
	token                   string // acme's where it is empty
}

func lease(key string, seconds int) call {
	return call{method: http.MethodPost, path: "/v1/workers", key: key, body: fmt.Sprintf(`{"flavor":"small","lease_seconds":%d}`, seconds)}
}

func reboot(id, key string) call {
	return call{method: http.MethodPost, path: "/v1/workers/" + id + "/reboot", key: key}
}

func remove(id, key string) call {
	return call{method: http.MethodDelete, path: "/v1/workers/" + id, key: key}
}

// answered is a whole answer.
type answered struct {
	status   int
	replayed bool
	body     string
	ID       string `json:"id"`
	State    string `json:"state"`
	Code     string `json:"code"`
	Boots    int    `json:"boots"`
}

// try sends a request once.
func (s *stack) try(ctx context.Context, c call) (answered, error) {
	ctx, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, c.method, s.brokerURL+c.path, strings.NewReader(c.body))
	if err != nil {
		return answered{}, err
	}
	if c.token == "" {
		c.token = "acme-token"
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	if c.key != "" {
		request.Header.Set("Idempotency-Key", `"`+c.key+`"`)
	}
	response, err := s.http.Do(request)
	if err != nil {
		return answered{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answered{}, err
	}
	got := answered{status: response.StatusCode, replayed: response.Header.Get("Idempotent-Replayed") == "true", body: string(body)}
	if len(body) > 0 {
		err = json.Unmarshal(body, &got)
	}
	return got, err
}

// final reports whether a caller is done with this answer.
func (a answered) final() bool { return a.status < 500 && a.status != http.StatusConflict }

// send is a caller as it is to be: it sends the same request until the answer is final.
func (s *stack) send(c call) answered {
	s.t.Helper()
	got, err := s.persist(c)
	s.must(err)
	return got
}

// admitted sends a request until the coordinator has let it through, and returns what came
// of it then, be it final or not.
func (s *stack) admitted(c call) answered {
	s.t.Helper()
	var got answered
	s.eventually(c.method+" "+c.path+" is let through", func() bool {
		var err error
		got, err = s.try(s.t.Context(), c)
		return err == nil && got.Code != "IDEMPOTENCY_IN_FLIGHT" && got.Code != "IDEMPOTENCY_UNAVAILABLE"
	})
	return got
}

func (s *stack) persist(c call) (answered, error) {
	deadline := time.Now().Add(patience)
	for {
		got, err := s.try(s.t.Context(), c)
		if err == nil && got.final() {
			return got, nil
		}
		if time.Now().After(deadline) {
			return got, fmt.Errorf("%s %s is not answered after %v: %d %s %w", c.method, c.path, patience, got.status, got.body, err)
		}
		s.pause()
	}
}

// machine is one machine of the hypervisor.
type machine struct {
	ID, Name, State string
	Boots           int
}

func (s *stack) machines() ([]machine, error) {
	var all struct{ Machines []machine }
	err := s.host(http.MethodGet, "/machines", nil, &all)
	return all.Machines, err
}

// of returns the machines that were ever made for a worker.
func (s *stack) of(id string) []machine {
	s.t.Helper()
	all, err := s.machines()
	s.must(err)
	var found []machine
	for _, m := range all {
		if m.Name == id {
			found = append(found, m)
		}
	}
	return found
}

// only returns the one machine that was ever made for a worker.
func (s *stack) only(id string) machine {
	s.t.Helper()
	found := s.of(id)
	if len(found) != 1 {
		s.t.Fatalf("worker %s has %d machines: %+v", id, len(found), found)
	}
	return found[0]
}

// running returns how many machines run.
func (s *stack) running() int {
	s.t.Helper()
	all, err := s.machines()
	s.must(err)
	n := 0
	for _, m := range all {
		if m.State == "running" {
			n++
		}
	}
	return n
}

// leased returns the ids of acme's workers that have not ended.
func (s *stack) leased() []string {
	s.t.Helper()
	got := s.send(call{method: http.MethodGet, path: "/v1/workers"})
	var all struct{ Workers []struct{ ID string } }
	s.must(json.Unmarshal([]byte(got.body), &all))
	ids := []string{}
	for _, w := range all.Workers {
		ids = append(ids, w.ID)
	}
	return ids
}

// fault tells the hypervisor how calls to come go wrong.
func (s *stack) fault(call, point, kind string, times int, slow time.Duration) {
	s.t.Helper()
	s.must(s.host(http.MethodPost, "/faults", map[string]any{
		"call": call, "point": point, "kind": kind, "times": times, "milliseconds": slow.Milliseconds(),
	}, nil))
}

func (s *stack) noFaults() {
	s.t.Helper()
	s.must(s.host(http.MethodDelete, "/faults", nil, nil))
}

// faults returns how many calls the hypervisor holds, and how many it has carried out or
// refused.
func (s *stack) faults() (held, carried int) {
	s.t.Helper()
	var now struct{ Held, Carried int }
	s.must(s.host(http.MethodGet, "/faults", nil, &now))
	return now.Held, now.Carried
}

func (s *stack) host(method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.hostURL+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s %w", method, path, response.Status, answer, err)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
