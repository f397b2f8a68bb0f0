package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripted answers each call with the next word: a status, or "cut" for none.
type scripted struct {
	mu     sync.Mutex
	script []string
	tokens map[string]int
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	word := "500"
	if len(s.script) > 0 {
		word, s.script = s.script[0], s.script[1:]
	}
	s.tokens[r.Header.Get("Client-Token")]++
	s.mu.Unlock()
	switch word {
	case "cut":
		panic(http.ErrAbortHandler)
	case "hang":
		<-r.Context().Done()
	case "half":
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
	case "garbage":
		_, _ = io.WriteString(w, "<html>")
	case "200":
		_, _ = io.WriteString(w, `{"id":"m-1","state":"running"}`)
	case "302":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	default:
		var status int
		_, _ = fmt.Sscan(word, &status)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":"no"}`)
	}
}

// What a call comes to, by what its tries come to. Only who is told "refused" may act as
// if nothing had happened.
func TestHypervisorCall(t *testing.T) {
	for script, want := range map[string]string{
		"200":         "done",
		"409":         "refused",
		"422":         "refused",
		"500 200":     "done",
		"cut 200":     "done",
		"hang 200":    "done",
		"half 200":    "done",
		"302 200":     "done",
		"garbage 200": "done",
		"500 cut 200": "done",
		"500 409":     "unknown",
		"cut 409":     "unknown",
		"hang 422":    "unknown",
		"500 500 500": "unknown",
		"cut cut cut": "unknown",
		"cut 500 404": "unknown",
	} {
		t.Run(script, func(t *testing.T) {
			s := &scripted{script: strings.Fields(script), tokens: make(map[string]int)}
			server := httptest.NewUnstartedServer(s)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.Start()
			defer server.Close()
			within := 10 * time.Second
			if strings.Contains(script, "hang") {
				within = time.Second
			}
			h := newHypervisor(server.URL, within)
			defer h.close()
			_, err := h.create(t.Context(), "the-token", "w", "small")
			if got := kind(err); got != want {
				t.Errorf("%s (%v), want %s", got, err, want)
			}
			server.Close() // and every call has been answered
			if len(s.tokens) != 1 || s.tokens["the-token"] == 0 {
				t.Errorf("the tries had the tokens %v", s.tokens)
			}
		})
	}
}

func kind(err error) string {
	var refused *refusedError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &refused):
		return "refused"
	}
	return "unknown"
}

// A hypervisor that is not there was asked for nothing, unless it was there before.
func TestHypervisorAway(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		_ = server.Listener.Close() // nobody gets in any more
		panic(http.ErrAbortHandler)
	})
	server.Start()
	defer server.Close()
	h := newHypervisor(server.URL, 5*time.Second)
	defer h.close()
	if _, err := h.reboot(t.Context(), "t", "m-1"); kind(err) != "unknown" {
		t.Errorf("it went away after it was asked: %s (%v)", kind(err), err)
	}
	if _, err := h.reboot(t.Context(), "t", "m-1"); kind(err) != "refused" {
		t.Errorf("it was not there: %s (%v)", kind(err), err)
	}
}

// A call ends with its context, and says that it does not know.
func TestHypervisorContext(t *testing.T) {
	s := &scripted{script: []string{"hang", "hang", "hang"}, tokens: make(map[string]int)}
	server := httptest.NewServer(s)
	defer server.Close()
	h := newHypervisor(server.URL, time.Minute)
	defer h.close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.reboot(ctx, "t", "m-1"); kind(err) != "unknown" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s (%v)", kind(err), err)
	}
}

// To end what is not there is fine.
func TestHypervisorTerminate(t *testing.T) {
	for status, want := range map[string]string{"200": "done", "404": "done", "409": "refused"} {
		server := httptest.NewServer(&scripted{script: []string{status}, tokens: make(map[string]int)})
		h := newHypervisor(server.URL, 5*time.Second)
		if err := h.terminate(t.Context(), "t", "m-1"); kind(err) != want {
			t.Errorf("%s: %v", status, err)
		}
		h.close()
		server.Close()
	}
}
