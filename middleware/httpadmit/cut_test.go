package httpadmit_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// old sends a keyed request as a caller of the protocol does, which may know no chunks.
func old(t *testing.T, server *httptest.Server, protocol, key string) (answered, error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST /v1/orders %s\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 2\r\n\r\n{}", protocol, key); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answered{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answered{answer.StatusCode, answer.Header, answer.Trailer, string(body), err}, nil
}

// An answer that ends with its connection looks whole wherever it is cut. So it goes out only if
// it is whole and recorded: one that is over the limit is not there for its first caller either.
func TestAnswersThatEndWithTheirConnection(t *testing.T) {
	large := strings.Repeat(`{"id":1}`, 20_000)
	headers := func(names ...string) func(http.Header) {
		return func(h http.Header) {
			for i := 0; i < len(names); i += 2 {
				h.Set(names[i], names[i+1])
			}
		}
	}
	length := strconv.Itoa(len(large))
	for name, c := range map[string]struct {
		protocol string
		set      func(http.Header)
		body     string
		visible  bool // a cut is, or there is none
	}{
		"small":                         {"HTTP/1.0", headers(), "small", true},
		"its length":                    {"HTTP/1.0", headers("Content-Length", length), large, true},
		"its length, twice":             {"HTTP/1.0", headers("Content-Length", length, "Transfer-Encoding", "identity"), large, true},
		"no length":                     {"HTTP/1.0", headers(), large, false},
		"no length that is one":         {"HTTP/1.0", headers("Content-Length", "-1"), large, false},
		"chunks that it does not know":  {"HTTP/1.0", headers("Transfer-Encoding", "chunked"), large, false},
		"a length that is not sent":     {"HTTP/1.0", headers("Content-Length", length, "Transfer-Encoding", "chunked"), large, false},
		"chunks":                        {"HTTP/1.1", headers(), large, true},
		"chunks, by name":               {"HTTP/1.1", headers("Transfer-Encoding", "chunked"), large, true},
		"no chunks":                     {"HTTP/1.1", headers("Transfer-Encoding", "identity"), large, false},
		"no chunks, and its length":     {"HTTP/1.1", headers("Content-Length", length, "Transfer-Encoding", "identity"), large, true},
		"chunks in place of its length": {"HTTP/1.1", headers("Content-Length", length, "Transfer-Encoding", "chunked"), large, true},
	} {
		key := strings.NewReplacer(" ", "-", ",", "").Replace(name)
		var runs atomic.Int64
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			c.set(w.Header())
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, c.body)
			_ = http.NewResponseController(w).Flush()
		}, httpadmit.WithResponseLimit(1000), httpadmit.WithNamespace(c.protocol[5:]))
		first, err := old(t, server, c.protocol, key)
		again, againErr := old(t, server, c.protocol, key)
		if err != nil || againErr != nil || runs.Load() != 1 {
			t.Fatalf("%s: %v, %v, %d runs", name, err, againErr, runs.Load())
		}
		if c.visible {
			if first.status != 201 || first.body != c.body || first.cut != nil {
				t.Errorf("%s: %d, %d bytes, %v", name, first.status, len(first.body), first.cut)
			}
		} else {
			wantCode(t, first, httpadmit.CodeResponseNotStored, 410)
			if !strings.Contains(first.body, `"executed":true,"executed_status":201`) {
				t.Errorf("%s: %s", name, first.body)
			}
		}
		if c.body == large {
			wantCode(t, again, httpadmit.CodeResponseNotStored, 410)
		}
		server.Close()

		// It could not be recorded: what came is an answer of the middleware, or is seen to be cut.
		broken := own(t, client.WithCallTimeout(time.Second), client.WithSettleTimeout(2*time.Second))
		guard := httpadmit.New(broken.client, caller("a"), httpadmit.WithResponseLimit(1000), httpadmit.WithSettleWait(100*time.Millisecond))
		server = listen(t, guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = broken.node.Stop(context.Background())
			c.set(w.Header())
			_, _ = io.WriteString(w, c.body)
		})))
		if a, err := old(t, server, c.protocol, "k"); err == nil && a.cut == nil && a.code() != string(httpadmit.CodeUnavailable) {
			t.Errorf("%s: it is not recorded, and whoever reads it takes it for whole: %d, %d bytes", name, a.status, len(a.body))
		}
		server.Close()
		_ = broken.client.Close()
	}
}

// cutting is a listener whose connections break once so many bytes have been written to them.
type cutting struct {
	net.Listener
	after int
}

func (l cutting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &cutConn{conn, l.after}, err
}

type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p[:min(len(p), c.left)])
	if c.left -= n; n < len(p) && err == nil {
		err = io.ErrShortWrite
		_ = c.Close()
	}
	return n, err
}

// One that is kept has a length, whatever its caller knows: where its connection breaks, or its
// server ends, on the way out, that is seen. So has a replay.
func TestAnAnswerThatIsCutOnItsWayOut(t *testing.T) {
	for name, c := range map[string]struct{ protocol, coding string }{
		"HTTP/1.0":                {"HTTP/1.0", ""},
		"HTTP/1.0, chunks":        {"HTTP/1.0", "chunked"},
		"HTTP/1.1":                {"HTTP/1.1", ""},
		"HTTP/1.1, but no chunks": {"HTTP/1.1", "identity"},
	} {
		var runs atomic.Int64
		server := httptest.NewUnstartedServer(httpadmit.New(shared.start(), caller(me(t)), httpadmit.WithNamespace(c.protocol[5:]+c.coding))(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				if c.coding != "" {
					w.Header().Set("Transfer-Encoding", c.coding)
				}
				_, _ = io.WriteString(w, strings.Repeat(`{"id":1}`, 10_000))
			})))
		server.Listener = cutting{server.Listener, 5000}
		server.Start()
		for _, which := range []string{"first", "replayed"} {
			a, err := old(t, server, c.protocol, "k")
			if err != nil || a.cut == nil || len(a.body) == 0 || a.replayed() != (which == "replayed") {
				t.Errorf("%s, %s: %d bytes that look whole (%v), %v", name, which, len(a.body), a.cut, err)
			}
		}
		if runs.Load() != 1 {
			t.Errorf("%s: %d runs", name, runs.Load())
		}
		server.Close()
	}
}

// One that is not stored either is not answered at all: half of it would be a lie, and so would
// it be that the request must not be sent again.
func TestNothingIsLeftOfAnAnswerThatEndsWithItsConnection(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(http.ResponseWriter, *http.Request)
		want client.State
	}{
		"failed": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, client.StateReleased},
		"unsure": {func(_ http.ResponseWriter, r *http.Request) { httpadmit.MarkUncertain(r.Context()) }, client.StatePending},
		"panics": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			panic(http.ErrAbortHandler)
		}, client.StateReleased},
	} {
		truncated := false
		server := serve(t, func(w http.ResponseWriter, r *http.Request) {
			c.end(w, r)
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
		}, httpadmit.WithResponseLimit(1000), httpadmit.WithClassifier(func(o httpadmit.Outcome) httpadmit.Verdict {
			truncated = o.Truncated && len(o.Body) == 1000
			return httpadmit.Default
		}))
		a, err := old(t, server, "HTTP/1.0", name)
		server.Close() // waits for the handler
		if err == nil || truncated != (name == "failed") {
			t.Errorf("%s: answered %d with %d bytes; the classifier was told that it is a part: %v", name, a.status, len(a.body), truncated)
		}
		if got := state(t, shared.start(), name); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
