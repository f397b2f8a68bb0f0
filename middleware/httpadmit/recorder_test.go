package httpadmit_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// behaviours are the ways in which handlers write a response.
var behaviours = []struct {
	name  string
	write func(w http.ResponseWriter, r *http.Request, status int, body string)
}{
	{"one write", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}},
	{"no status", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		if status != http.StatusOK {
			w.WriteHeader(status)
		}
		_, _ = w.Write([]byte(body))
	}},
	{"many writes", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		for part := range slices.Chunk([]byte(body), 700) {
			_, _ = w.Write(part)
		}
	}},
	{"io.Copy", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = io.Copy(w, strings.NewReader(body))
	}},
	{"ReaderFrom", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(body))
	}},
	{"Content-Length", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		if status != http.StatusNoContent && status != http.StatusNotModified {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		if _, err := io.WriteString(w, "more"); err == nil {
			panic("more than was declared was taken")
		}
	}},
	{"Content-Type, and none", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.Header()["Content-Type"] = nil
		w.Header().Add("X-Twice", "1")
		w.Header().Add("X-Twice", "2")
		w.WriteHeader(status)
		w.Header().Set("X-Late", "is not sent")
		w.WriteHeader(http.StatusTeapot) // is ignored
		_, _ = io.WriteString(w, body)
	}},
	{"1xx before", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}},
	{"trailers", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.Header().Set("Trailer", "X-Sum, X-Unset")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		w.Header().Set("X-Sum", "42")
	}},
	{"trailers, announced by prefix", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	}},
	{"flush", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
	}},
	{"ResponseController", func(w http.ResponseWriter, r *http.Request, status int, body string) {
		_, _ = io.Copy(io.Discard, r.Body) // or net/http itself panics, after EnableFullDuplex
		c := http.NewResponseController(w)
		for _, err := range []error{
			c.SetReadDeadline(time.Now().Add(time.Minute)), c.SetWriteDeadline(time.Now().Add(time.Minute)), c.EnableFullDuplex(),
		} {
			if err != nil {
				panic(err)
			}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}},
	{"gzip inside", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Vary", "Accept-Encoding")
		w.WriteHeader(status)
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, body)
		_ = z.Close()
	}},
	{"ServeContent", func(w http.ResponseWriter, r *http.Request, status int, body string) {
		if status != http.StatusOK {
			w.WriteHeader(status) // as a handler that serves its own error page
		}
		http.ServeContent(w, r, "page.json", time.Unix(1e9, 0), strings.NewReader(body))
	}},
}

// What a handler writes reaches its caller as it would without the guard, and later ones
// get the same; what is not stored runs again.
func TestEveryStatusBodyAndWayOfWriting(t *testing.T) {
	statuses := []struct {
		status int
		stored bool
	}{
		{200, true}, {201, true}, {202, true}, {204, true}, {206, true}, {301, true}, {303, true}, {304, true}, {307, true},
		{400, true}, {401, true}, {403, true}, {404, true}, {410, true}, {412, true}, {422, true},
		{408, false}, {409, false}, {425, false}, {429, false}, {500, false}, {502, false}, {503, false}, {504, false}, {599, false},
	}
	bodies := []string{"", `{"order":42}`, "<html>" + strings.Repeat("x", 5000), strings.Repeat("\x00\xff", 40_000)}

	var runs atomic.Int64
	handler := func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		query := r.URL.Query()
		b, _ := strconv.Atoi(query.Get("behaviour"))
		status, _ := strconv.Atoi(query.Get("status"))
		body, _ := strconv.Atoi(query.Get("body"))
		behaviours[b].write(w, r, status, bodies[body])
	}
	outside := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
			w.Header().Set("Vary", "Origin")
			next.ServeHTTP(w, r)
		})
	}
	guarded := listen(t, outside(httpadmit.New(shared.start(), caller(me(t)))(http.HandlerFunc(handler))))
	plain := listen(t, outside(http.HandlerFunc(handler)))

	for b, behaviour := range behaviours {
		t.Run(behaviour.name, func(t *testing.T) {
			for _, row := range statuses {
				for body := range bodies {
					// Every status with a short body, and every body with one status.
					if body != 1 && row.status != 200 && row.status != 500 {
						continue
					}
					path := fmt.Sprintf("/v1/orders?behaviour=%d&status=%d&body=%d", b, row.status, body)
					name := fmt.Sprintf("%d, body %d", row.status, body)
					ask := func(base, id string) (answered, []int) {
						r := request(t, http.MethodPost, base+path, "{}", "Idempotency-Key", fmt.Sprintf("%d-%d-%d", b, row.status, body),
							"X-Request-Id", id, "Accept-Encoding", "identity")
						var early []int
						r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
							Got1xxResponse: func(status int, _ textproto.MIMEHeader) error { early = append(early, status); return nil },
						}))
						return send(t, r), early
					}
					want, wantEarly := ask(plain.URL, "first")
					before := runs.Load()
					first, early := ask(guarded.URL, "first")
					same(t, name+": the first answer", first, want)
					if !slices.Equal(early, wantEarly) {
						t.Errorf("%s: informational answers %v, want %v", name, early, wantEarly)
					}
					again, early := ask(guarded.URL, "second")
					if ran := runs.Load() - before; ran != 1 && row.stored || ran != 2 && !row.stored {
						t.Fatalf("%s: the handler ran %d times", name, ran)
					}
					want.header.Set("X-Request-Id", "second")
					if row.stored {
						if !again.replayed() || len(early) > 0 {
							t.Errorf("%s: it is not marked as a replay (%v), or has informational answers %v", name, again.header, early)
						}
						again.header.Del("Idempotent-Replayed")
					}
					same(t, name+": the second answer", again, want)
				}
			}
		})
	}
}

// same compares two answers, but for the way in which the length of a body is told and
// the date.
func same(t *testing.T, what string, got, want answered) {
	t.Helper()
	clean := func(h http.Header) http.Header {
		h = maps.Clone(h)
		delete(h, "Date")
		delete(h, "Content-Length")
		delete(h, "Trailer") // of a response that has no body
		return h
	}
	if got.status != want.status || got.body != want.body || got.cut != nil {
		t.Fatalf("%s: %d with %d bytes (%v), want %d with %d", what, got.status, len(got.body), got.cut, want.status, len(want.body))
	}
	if g, w := clean(got.header), clean(want.header); !maps.EqualFunc(g, w, slices.Equal) {
		t.Errorf("%s: header %v, want %v", what, g, w)
	}
	// A response with a length has no trailers; one that is kept back has none yet.
	for name, values := range want.trailer {
		if len(values) > 0 && !slices.Equal(got.trailer[name], values) {
			t.Errorf("%s: trailer %v, want %v", what, got.trailer, want.trailer)
		}
	}
}
