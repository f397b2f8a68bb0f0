package httpadmit_test

import (
	"compress/gzip"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// zipped is compression outside of the guard.
func zipped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		z := gzip.NewWriter(w)
		next.ServeHTTP(&zipWriter{ResponseWriter: w, z: z}, r)
		_ = z.Close()
	})
}

type zipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w *zipWriter) WriteHeader(status int) {
	if status >= 200 {
		w.Header().Del("Content-Length")
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *zipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

// Compression outside does not get into what is stored: each caller is answered as it
// asks.
func TestGzipOutside(t *testing.T) {
	text := strings.Repeat("plain ", 1000)
	server := listen(t, zipped(httpadmit.New(shared.start(), caller(me(t)))(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, text)
		}))))
	for i, encoding := range []string{"gzip", "gzip", "identity", "gzip"} {
		a := post(t, server, "k", "Accept-Encoding", encoding)
		body := a.body
		if encoding == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(body))
			if err != nil || a.header.Get("Content-Encoding") != "gzip" {
				t.Fatal(err, a.header)
			}
			plain, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			body = string(plain)
		} else if a.header.Get("Content-Encoding") != "" {
			t.Errorf("%d: %v", i, a.header)
		}
		if body != text || a.replayed() != (i > 0) || a.header.Get("Content-Type") != "text/plain" {
			t.Errorf("%d: %d bytes, %v", i, len(body), a.header)
		}
	}
}

// The same over HTTP/2: replays, trailers, and a response over the limit.
func TestHTTP2(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	handler := httpadmit.New(shared.start(), caller(me(t)), httpadmit.WithResponseLimit(1000))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("protocol %s", r.Proto)
			}
			w.WriteHeader(http.StatusSwitchingProtocols) // which HTTP/2 does not know
			w.Header().Set("Trailer", "X-Sum")
			if r.URL.Path == "/large" {
				_, _ = io.WriteString(w, large)
			} else {
				_, _ = io.WriteString(w, "small")
			}
			w.Header().Set("X-Sum", "42")
		}))
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}
	transport.TLSClientConfig.MinVersion = tls.VersionTLS13
	defer transport.CloseIdleConnections()
	ask := func(path string) answered {
		answer, err := transport.RoundTrip(request(t, "POST", server.URL+path, "{}", "Idempotency-Key", "k"))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answered{answer.StatusCode, answer.Header, answer.Trailer, string(body), err}
	}
	for i := range 2 {
		if a := ask("/small"); a.body != "small" || a.trailer.Get("X-Sum") != "42" || a.replayed() != (i > 0) {
			t.Errorf("%+v", a)
		}
	}
	if a := ask("/large"); a.body != large || a.trailer.Get("X-Sum") != "42" || a.cut != nil {
		t.Errorf("%d bytes, %v, %v", len(a.body), a.trailer, a.cut)
	}
	wantCode(t, ask("/large"), httpadmit.CodeResponseNotStored, 410)
}

// Handlers that end right when their time does: the caller gets one answer, whole, and
// no writer is used by two at once (the race detector looks).
func TestHandlersThatEndWithTheirTime(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(10 * time.Millisecond)
		defer timer.Stop()
		<-timer.C
		w.Header().Set("X-Mine", "yes")
		w.WriteHeader(http.StatusEarlyHints)
		for range 20 {
			_, _ = io.WriteString(w, "0123456789")
		}
	}, httpadmit.WithHandlerTimeout(10*time.Millisecond), httpadmit.WithResponseLimit(100))
	var together sync.WaitGroup
	for i := range 4 {
		together.Go(func() {
			for j := range 10 {
				key := string(rune('a'+i)) + string(rune('a'+j))
				a, err := try(request(t, "POST", server.URL, "{}", "Idempotency-Key", key))
				whole := a.status == 200 && len(a.body) == 200
				if err != nil || a.cut != nil || !whole && a.code() != string(httpadmit.CodeHandlerTimeout) {
					t.Errorf("%d, %d bytes, %v", a.status, len(a.body), err)
				}
			}
		})
	}
	together.Wait()
}
