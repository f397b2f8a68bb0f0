package outgoing_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/middleware/httpadmit/outgoing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers with the given statuses, one after the other, and remembers what came.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	keys   []string
	bodies []string
}

func serve(t *testing.T, answers ...func(http.ResponseWriter, *http.Request)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.keys = append(s.keys, strings.Join(r.Header["Idempotency-Key"], "; "))
		s.bodies = append(s.bodies, string(body))
		n := len(s.keys)
		s.mu.Unlock()
		answers[min(n, len(answers))-1](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func status(status int, header ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, http.StatusText(status))
	}
}

func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// caller is an http.Client that keys.
func caller(t *testing.T, options ...outgoing.Option) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: outgoing.New(base, append([]outgoing.Option{outgoing.WithBackoff(time.Millisecond)}, options...)...)}
}

// send sends a request and returns the status of its answer, 0 for none.
func send(t *testing.T, c *http.Client, method, url, body string, change ...func(*http.Request)) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(r)
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != http.StatusText(answer.StatusCode) {
		t.Errorf("the answer is not whole: %q, %v", text, err)
	}
	return answer.StatusCode
}

// wantTries checks that as many tries came, all with the same key and body.
func (s *server) wantTries(t *testing.T, tries int, body string) string {
	t.Helper()
	if len(s.keys) != tries {
		t.Fatalf("%d tries, want %d", len(s.keys), tries)
	}
	for i := range s.keys {
		if s.keys[i] != s.keys[0] || s.bodies[i] != body {
			t.Errorf("try %d: key %s, body %q; want %s, %q", i, s.keys[i], s.bodies[i], s.keys[0], body)
		}
	}
	return s.keys[0]
}

func TestOneKeyOverAllTries(t *testing.T) {
	s := serve(t, cut, status(503), status(409, "Retry-After", "0"), status(201))
	if got := send(t, caller(t), "POST", s.URL, "body"); got != 201 {
		t.Errorf("%d", got)
	}
	if key := s.wantTries(t, 4, "body"); len(key) != 38 || key[0] != '"' || key[15] != '4' {
		t.Errorf("key %s is not a UUID in quotes", key)
	}
	if got := send(t, caller(t), "POST", s.URL, "body"); got != 201 || s.keys[4] == s.keys[0] {
		t.Errorf("%d: two requests have one key: %v", got, s.keys)
	}
}

// What is given to the caller as it is.
func TestNotRetried(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"done": status(200), "a fault of the request": status(422), "a fault of theirs": status(500),
		"a conflict": status(409), "a long wait": status(503, "Retry-After", "3600"),
		"a date far away": status(429, "Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)),
	} {
		s := serve(t, answer)
		if got := send(t, caller(t), "PATCH", s.URL, "x"); got == 0 || len(s.keys) != 1 {
			t.Errorf("%s: %d, %d tries", name, got, len(s.keys))
		}
	}
	s := serve(t, status(503))
	if got := send(t, caller(t, outgoing.WithTries(2)), "POST", s.URL, "x"); got != 503 || len(s.keys) != 2 {
		t.Errorf("the last answer: %d, %d tries", got, len(s.keys))
	}
	s = serve(t, status(503))
	if got := send(t, caller(t), "POST", s.URL, "x", func(r *http.Request) { r.GetBody = nil }); got != 503 || len(s.keys) != 1 {
		t.Errorf("a body that cannot be read again: %d, %d tries", got, len(s.keys))
	}
	s = serve(t, status(503))
	if got := send(t, caller(t), "GET", s.URL, ""); got != 503 || len(s.keys) != 1 || s.keys[0] != "" {
		t.Errorf("a GET: %d, %q", got, s.keys)
	}
}

// Where a key comes from, and that the caller's request stays as it is.
func TestKeys(t *testing.T) {
	fixed := outgoing.WithKeyFunc(func(r *http.Request) string { return "order 42" })
	for _, c := range []struct {
		name    string
		options []outgoing.Option
		change  func(*http.Request)
		want    string
	}{
		{"the header", []outgoing.Option{fixed}, func(r *http.Request) { r.Header.Set("Idempotency-Key", "bare") }, "bare"},
		{"the header over the context", nil, func(r *http.Request) {
			*r = *r.WithContext(outgoing.ContextWithKey(r.Context(), "ctx"))
			r.Header.Set("Idempotency-Key", "own")
		}, "own"},
		{"the header, as it is spelt", []outgoing.Option{fixed}, func(r *http.Request) { r.Header["idempotency-key"] = []string{"small"} }, "small"},
		{"the context", []outgoing.Option{fixed}, func(r *http.Request) {
			*r = *r.WithContext(outgoing.ContextWithKey(r.Context(), `a "b"`))
		}, `"a \"b\""`},
		{"the function", []outgoing.Option{fixed}, func(*http.Request) {}, `"order 42"`},
	} {
		s := serve(t, status(503), status(200))
		var request *http.Request
		if got := send(t, caller(t, c.options...), "POST", s.URL, "x", c.change, func(r *http.Request) { request = r }); got != 200 {
			t.Errorf("%s: %d", c.name, got)
		}
		if key := s.wantTries(t, 2, "x"); key != c.want {
			t.Errorf("%s: key %s, want %s", c.name, key, c.want)
		}
		if !strings.HasPrefix(c.name, "the header") && request.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s: the caller's request was changed", c.name)
		}
	}
	s := serve(t, status(200))
	if got := send(t, caller(t, outgoing.WithKeyFunc(func(*http.Request) string { return "naïve" })), "POST", s.URL, "x"); got != 0 || len(s.keys) != 0 {
		t.Errorf("a key that is no header: %d", got)
	}
}

// A key that cannot be sent fails the request before anything is sent. An empty one is a
// mistake, and not a wish for a random one: a retry would get through with another.
func TestKeyThatCannotBeSent(t *testing.T) {
	s := serve(t, status(200))
	for _, key := range []string{"", strings.Repeat("k", 256), "käse", "a\n", "\xff"} {
		r, err := http.NewRequestWithContext(outgoing.ContextWithKey(t.Context(), key), "POST", s.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := caller(t).Do(r)
		if err == nil {
			answer.Body.Close()
			t.Errorf("%q was sent", key)
		} else if !strings.Contains(err.Error(), "nothing was sent") || key != "" && strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if len(s.keys) != 0 {
		t.Errorf("sent %q", s.keys)
	}
}

// Retries that are made outside keep the key of their context.
func TestRetriesOutside(t *testing.T) {
	s := serve(t, status(500), status(500), status(200))
	ctx := outgoing.ContextWithNewKey(t.Context())
	c := caller(t, outgoing.WithTries(1))
	for range 3 {
		send(t, c, "POST", s.URL, "x", func(r *http.Request) { *r = *r.WithContext(ctx) })
	}
	s.wantTries(t, 3, "x")
}

// A redirect that repeats the request keeps its key.
func TestRedirects(t *testing.T) {
	s := serve(t, status(307, "Location", "/there"), status(308, "Location", "/further"), status(201))
	if got := send(t, caller(t), "POST", s.URL, "x"); got != 201 {
		t.Errorf("%d", got)
	}
	s.wantTries(t, 3, "x")
}

// A caller that goes away is told so, at once; one with a deadline gets the last answer.
func TestGone(t *testing.T) {
	s := serve(t, status(503, "Retry-After", "5"))
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader("x"))
	begun := time.Now()
	time.AfterFunc(50*time.Millisecond, cancel)
	answer, err := caller(t).Do(r)
	if err == nil {
		answer.Body.Close()
	}
	if !errors.Is(err, context.Canceled) || time.Since(begun) > 4*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if got := send(t, caller(t), "POST", s.URL, "x", func(r *http.Request) { *r = *r.WithContext(ctx) }); got != 503 {
		t.Errorf("with a deadline before the retry: %d", got)
	}
}

func TestAnOptionThatIsNil(t *testing.T) {
	defer func() {
		if said := recover(); said != "outgoing: option 2 of New is nil" {
			t.Errorf("%v", said)
		}
	}()
	outgoing.New(nil, outgoing.WithTries(1), nil)
}
