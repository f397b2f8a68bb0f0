package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSettings(t *testing.T) {
	for arguments, want := range map[string]string{
		"--accounts acme=x":                          "",
		"":                                           "--accounts must be account=token",
		"--accounts acme=":                           "--accounts must be account=token",
		"--accounts =x":                              "--accounts must be account=token",
		"--accounts acme=x,beta":                     "--accounts must be account=token",
		"--accounts acme=x more":                     `there is no argument "more"`,
		"--accounts acme=x --capacity 0":             "--capacity is 0",
		"--accounts acme=x --capacity 1001":          "--capacity is 1001",
		"--accounts acme=x --hypervisor localhost":   "--hypervisor is",
		"--accounts acme=x --pending-ttl 99ms":       "--pending-ttl is 99ms",
		"--accounts acme=x --create-within 0s":       "must be more than 0",
		"--accounts acme=x --sweep-every -1s":        "must be more than 0",
		"--accounts acme=x --hypervisor-try 0s":      "must be more than 0",
		"--accounts acme=x --no-such-thing":          "no-such-thing",
		"--accounts acme=x --coordinator 10.0.0.1:1": "",
	} {
		t.Setenv("LEASEBROKER_ACCOUNTS", "")
		_, err := parse(strings.Fields(arguments), io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", arguments, err, want)
		}
	}
}

// said is what a process has logged, as it comes.
type said struct {
	mu    sync.Mutex
	text  string
	lines chan string
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	select {
	case s.lines <- s.text:
	default:
	}
	return len(p), nil
}

// It starts without a coordinator and a hypervisor, knows its callers, and stops without
// leaving anything behind.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &said{lines: make(chan string, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"--listen", "127.0.0.1:0", "--coordinator", "127.0.0.1:1", "--hypervisor", "http://127.0.0.1:1",
			"--state", filepath.Join(t.TempDir(), "pool.db"), "--accounts", "acme=secret", "--sweep-every", "10ms",
		}, out)
	}()
	address := ""
	for address == "" {
		select {
		case text := <-out.lines:
			if found := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(text); found != nil {
				address = found[1]
			}
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		}
	}
	for token, want := range map[string]int{"secret": http.StatusOK, "secre": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v1/workers", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("token %q: %s", token, response.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not stop")
	}
	if err := run(t.Context(), []string{"--accounts", "acme=x", "--state", t.TempDir()}, io.Discard); err == nil {
		t.Error("a directory was taken for the state")
	}
}

// More requests than there are places for are told to come back.
func TestAtMost(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	handler := atMost(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-leave
	}))
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/workers", nil)
	var first sync.WaitGroup
	first.Go(func() { handler.ServeHTTP(httptest.NewRecorder(), request) })
	<-arrived
	second := httptest.NewRecorder()
	handler.ServeHTTP(second, request)
	if second.Code != http.StatusServiceUnavailable || !strings.Contains(second.Body.String(), "BUSY") || second.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s", second.Code, second.Body)
	}
	close(leave)
	first.Wait()
}

// An operation that somebody forgot to guard does not run.
func TestUnguarded(t *testing.T) {
	b := &broker{log: slog.New(slog.DiscardHandler)}
	handler := b.routes(func(next http.Handler) http.Handler { return next })
	defer func() {
		if recover() == nil {
			t.Error("it ran")
		}
	}()
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/workers", strings.NewReader("{}")))
}
