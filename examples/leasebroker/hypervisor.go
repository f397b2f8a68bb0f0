package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// tries is how often a call to the hypervisor is made, with the same token: what was
	// lost is mostly found again at once.
	tries = 3
	// pauseFirst is the longest pause before the second try; it doubles before the next.
	pauseFirst = 100 * time.Millisecond
	// answerMost is how much of an answer is read, in bytes: a listing of 10,000 machines
	// has two million.
	answerMost = 8 << 20
)

// tokenHeader carries the derived sub-key of a call. The hypervisor makes one machine for a
// token, however often it is asked, as long as it remembers the token: at least as long as
// callers may come back, which is the pending TTL and the retention, 24 h.
//
// A downstream that knows Idempotency-Key takes it there; middleware/httpadmit/outgoing
// sends it. Here every try is made by hand, because what one of them may have done decides
// what the last one says. (And net/http sends requests that have that header again by
// itself, which is one delivery more than we know of.)
const tokenHeader = "Client-Token"

// machine is what the hypervisor tells of a machine.
type machine struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
	State   string `json:"state"`
	Boots   int    `json:"boots"`
}

func (m machine) running() bool { return m.State == "running" }

// refusedError is a call that did nothing, and of which no delivery will do anything.
// Every other error of a call means that it may have been carried out, or may be yet.
type refusedError struct {
	Status int // the hypervisor's; 0: it was not reached
	Reason string
}

func (e *refusedError) Error() string { return "the hypervisor did not do it: " + e.Reason }

// hypervisor is what machines are made at. It may be used by several goroutines.
type hypervisor struct {
	base    string
	tryMost time.Duration
	http    *http.Client
}

func newHypervisor(base string, tryMost time.Duration) *hypervisor {
	return &hypervisor{base: base, tryMost: tryMost, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute},
		// A token goes to nobody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (h *hypervisor) close() { h.http.CloseIdleConnections() }

// create makes a machine, or returns the one that was made with the token.
func (h *hypervisor) create(ctx context.Context, token, name, flavor string) (machine, error) {
	var m machine
	err := h.call(ctx, http.MethodPost, "/machines", token, map[string]string{"name": name, "flavor": flavor}, &m)
	return m, err
}

// reboot reboots a machine once for a token.
func (h *hypervisor) reboot(ctx context.Context, token, id string) (machine, error) {
	var m machine
	err := h.call(ctx, http.MethodPost, "/machines/"+url.PathEscape(id)+"/reboot", token, nil, &m)
	return m, err
}

// terminate ends a machine. One that is gone is fine.
func (h *hypervisor) terminate(ctx context.Context, token, id string) error {
	var m machine
	err := h.call(ctx, http.MethodPost, "/machines/"+url.PathEscape(id)+"/terminate", token, nil, &m)
	var refused *refusedError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// running returns the machines that run.
func (h *hypervisor) running(ctx context.Context) ([]machine, error) {
	var found struct{ Machines []machine }
	err := h.call(ctx, http.MethodGet, "/machines?state=running", "", nil, &found)
	return found.Machines, err
}

// call makes a call until it is answered, at most tries times.
func (h *hypervisor) call(ctx context.Context, method, path, token string, body, into any) error {
	var open error // of an earlier try that may have been carried out, or may be yet
	for try := range tries {
		err := h.try(ctx, method, path, token, body, into)
		var refused *refusedError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &refused):
			open = err
		case refused.Status == 0:
			// Not reached: this try has changed nothing.
		case open != nil:
			// This try was refused, but an earlier one may still be on its way, and come to
			// another answer.
			return fmt.Errorf("%s; and an earlier try is open: %w", refused.Reason, open)
		default:
			return err
		}
		if try == tries-1 || !pause(ctx, pauseFirst<<try) {
			if open != nil {
				return fmt.Errorf("the hypervisor gave no answer that counts: %w", open)
			}
			return err
		}
	}
	panic("unreachable: the last try returns")
}

// try makes a call once.
func (h *hypervisor) try(ctx context.Context, method, path, token string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, h.tryMost)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(text))
	if err != nil {
		return &refusedError{Reason: "the call cannot be made"}
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set(tokenHeader, token)
	}
	response, err := h.http.Do(request)
	var failed *net.OpError
	switch {
	case errors.As(err, &failed) && failed.Op == "dial":
		return &refusedError{Reason: "it cannot be reached"} // there was nobody to send it to
	case err != nil:
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerMost))
	switch {
	case err != nil:
		return err
	case response.StatusCode >= 400 && response.StatusCode < 500:
		var failure struct{ Error string }
		_ = json.Unmarshal(answer, &failure) // a refusal without words is one too
		return &refusedError{Status: response.StatusCode, Reason: failure.Error}
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answered %s", response.Status)
	}
	return json.Unmarshal(answer, into)
}

// pause waits for half of a time up to all of it, and reports whether the context let it.
func pause(ctx context.Context, most time.Duration) bool {
	timer := time.NewTimer(most/2 + rand.N(most/2)) //nolint:gosec // jitter is no secret
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
