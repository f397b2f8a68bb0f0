package httpadmit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	shared.stop()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// coordinator is one node on loopback with a client of it.
type coordinator struct {
	once   sync.Once
	node   *node.Node
	dir    string
	client *client.Client
}

// shared is the coordinator of all tests that do not break theirs.
var shared coordinator

func (c *coordinator) start(options ...client.DialOption) *client.Client {
	c.once.Do(func() {
		dir, err := os.MkdirTemp("", "httpadmit")
		if err != nil {
			panic(err)
		}
		cfg := node.Default()
		cfg.DataDir, cfg.Listen, cfg.Shards = dir, "127.0.0.1:0", 1
		if c.node, err = node.Start(context.Background(), cfg); err != nil {
			panic(err)
		}
		c.dir = dir
		if c.client, err = client.Dial([]string{c.node.Address().String()}, options...); err != nil {
			panic(err)
		}
	})
	return c.client
}

func (c *coordinator) stop() {
	if c.node != nil {
		_ = c.client.Close()
		_ = c.node.Stop(context.Background())
		_ = os.RemoveAll(c.dir)
	}
}

// own starts a coordinator that the test may break.
func own(t *testing.T, options ...client.DialOption) *coordinator {
	t.Helper()
	c := &coordinator{}
	c.start(options...)
	t.Cleanup(c.stop)
	return c
}

// caller is whom the tests' requests run as.
func caller(name string) httpadmit.Option {
	return httpadmit.WithPrincipal(func(*http.Request) string { return name })
}

// names are the principals of tests that run; each run of a test has one of its own, so
// that keys of an earlier one do not count.
var names struct {
	sync.Mutex
	of   map[testing.TB]string
	last int
}

// fresh returns a principal that nobody has used.
func fresh() string {
	names.Lock()
	defer names.Unlock()
	names.last++
	return fmt.Sprintf("caller-%d", names.last)
}

// me is the principal of a test.
func me(t testing.TB) string {
	names.Lock()
	name, ok := names.of[t]
	names.Unlock()
	if ok {
		return name
	}
	name = fresh()
	names.Lock()
	defer names.Unlock()
	if names.of == nil {
		names.of = map[testing.TB]string{}
	}
	names.of[t] = name
	return name
}

// patient lets a slow machine answer: what is refused for that would be another test.
func patient() httpadmit.Option { return httpadmit.WithReserveTimeout(time.Minute) }

// serve guards a handler, on a server of its own, with the test's principal.
func serve(t *testing.T, handler http.HandlerFunc, options ...httpadmit.Option) *httptest.Server {
	t.Helper()
	all := append([]httpadmit.Option{caller(me(t)), patient()}, options...)
	return listen(t, httpadmit.New(shared.start(), all...)(handler))
}

func listen(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of panics, and of handlers that write two statuses
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// answered is a whole answer.
type answered struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	cut     error // the body ended before its end
}

func (a answered) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a answered) code() string {
	_, rest, _ := strings.Cut(a.body, `"code":"`)
	code, _, _ := strings.Cut(rest, `"`)
	return code
}

func request(t *testing.T, method, url, body string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// send sends a request that must be answered. It does not follow redirects.
func send(t *testing.T, r *http.Request) answered {
	t.Helper()
	a, err := try(r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func try(r *http.Request) (answered, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return answered{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answered{answer.StatusCode, answer.Header, answer.Trailer, string(body), err}, nil
}

// post sends a keyed request.
func post(t *testing.T, server *httptest.Server, key string, header ...string) answered {
	t.Helper()
	return send(t, request(t, http.MethodPost, server.URL+"/v1/orders", "{}",
		append([]string{"Idempotency-Key", `"` + key + `"`}, header...)...))
}

// wantCode checks an answer of the middleware itself.
func wantCode(t *testing.T, a answered, code httpadmit.Code, status int) {
	t.Helper()
	if a.code() != string(code) || a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%d %v %s, want %d %s as a problem", a.status, a.header, a.body, status, code)
	}
	if link := a.header.Get("Link"); !strings.Contains(link, "#"+string(code)+">") {
		t.Errorf("the answer links to %q", link)
	}
}

// eventually waits for what happens behind the scenes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it did not come to this: %s", what)
		}
	}
}
