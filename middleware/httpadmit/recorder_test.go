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
	"sync"
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
	{"nothing", func(w http.ResponseWriter, _ *http.Request, status int, _ string) {
		if status != http.StatusOK {
			w.WriteHeader(status)
		}
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
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		if _, err := io.WriteString(w, "more"); err == nil {
			panic("more than was declared was taken")
		}
	}},
	{"headers of all kinds", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		h := w.Header()
		h["x-lower-case"] = []string{"as it is"}
		h["X-Many"] = []string{"b", "a", "b", ""}
		h["X-None"] = []string{}
		h["X-Spaces"] = []string{"  around\tand within  "}
		h["X-Lines"] = []string{"one\r\nX-Smuggled: two"}
		h["X-Ends"] = []string{"one\n", "\rtwo", "\n"}
		h["X-Euro"] = []string{"\u20ac \u65e5\u672c"}
		h["X-Long"] = []string{strings.Repeat("l", 9000)}
		h["Not A Name"] = []string{"is not sent"}
		h[""] = []string{"nor is this"}
		h["X-\u20ac"] = []string{"nor this"}
		h["Cache-Control"] = []string{"no-store"}
		h["Etag"] = []string{`"v1"`}
		h["Location"] = []string{"/v1/orders/42?a=b"}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		h["X-Many"][0] = "changed when it was too late"
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
	{"statuses when it is too late", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		for _, late := range []int{0, -1, 42, 1000, http.StatusEarlyHints, http.StatusSwitchingProtocols, status, 500} {
			w.WriteHeader(late)
		}
	}},
	{"Flush before a status", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		if status != http.StatusOK {
			w.WriteHeader(status)
		}
		w.Header().Set("X-Early", "is sent where there is no status yet")
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		w.Header().Set("X-Late", "is not sent")
		w.WriteHeader(0)
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
	{"flush within the body", func(w http.ResponseWriter, _ *http.Request, status int, body string) {
		w.WriteHeader(status)
		first := min(3, len(body)) // a type would be found in the whole, and not in this
		_, _ = io.WriteString(w, body[:first])
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, body[first:])
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

// bodies are those that handlers write: none, a small one, one that net/http buffers in part,
// and one that it does not.
var bodies = []string{"", `{"order":42}`, "<html>" + strings.Repeat("x", 5000), strings.Repeat("\x00\xff", 40_000)}

// The whole table, every status with every body and every way of writing it: what a handler
// writes reaches its caller as it would without the guard, and later ones get the same; what is
// not stored runs again.
func TestEveryStatusBodyAndWayOfWriting(t *testing.T) {
	statuses := []struct {
		status int
		stored bool
	}{
		{200, true}, {201, true}, {202, true}, {204, true}, {205, true}, {206, true}, {301, true}, {303, true}, {304, true}, {307, true},
		{400, true}, {401, true}, {403, true}, {404, true}, {410, true}, {412, true}, {422, true}, {451, true},
		{408, false}, {409, false}, {425, false}, {429, false}, {500, false}, {502, false}, {503, false}, {504, false}, {599, false},
	}
	table := newTable(t)
	for b, behaviour := range behaviours {
		t.Run(behaviour.name, func(t *testing.T) {
			// Many at a time: the coordinator records them together.
			var rows sync.WaitGroup
			defer rows.Wait()
			for _, row := range statuses {
				rows.Go(func() {
					for body := range bodies {
						table.row(t, http.MethodPost, b, row.status, body, row.stored)
					}
				})
			}
		})
	}
}

// The same for HEAD, whose answers have no body, whatever their handler writes.
func TestEveryWayOfWritingForHEAD(t *testing.T) {
	table := newTable(t)
	for b, behaviour := range behaviours {
		t.Run(behaviour.name, func(t *testing.T) {
			var rows sync.WaitGroup
			defer rows.Wait()
			for _, status := range []int{200, 204, 304, 404} {
				rows.Go(func() {
					for body := range bodies {
						table.row(t, http.MethodHead, b, status, body, true)
					}
				})
			}
		})
	}
}

// A trailer has the value that its name has when the handler returns, and that alone, whatever the
// header had before, kept back or over the limit.
func TestTrailersAreThoseAtTheEnd(t *testing.T) {
	body := strings.Repeat("x", 5000)
	for name, after := range map[string]func(http.Header){
		"changed":   func(h http.Header) { h.Set("X-Sum", "after") },
		"unchanged": func(http.Header) {},
		"deleted":   func(h http.Header) { h.Del("X-Sum") },
	} {
		handler := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Unset")
			w.Header().Set("X-Sum", "before")
			_, _ = io.WriteString(w, body)
			after(w.Header())
		}
		want := post(t, listen(t, http.HandlerFunc(handler)), "")
		for _, limit := range []int{10_000, 100} {
			server := serve(t, handler, httpadmit.WithResponseLimit(limit), httpadmit.WithNamespace(fmt.Sprint(limit)))
			same(t, fmt.Sprintf("%s, limit %d", name, limit), post(t, server, name), want)
			if limit > len(body) {
				again := post(t, server, name)
				again.header.Del("Idempotent-Replayed")
				same(t, name+", replayed", again, want)
			}
		}
	}
}

// What a handler is told of its calls is what net/http tells it.
func TestCallsAreAnsweredAsByNetHTTP(t *testing.T) {
	type script func(w http.ResponseWriter, say func(...any))
	declared := func(w http.ResponseWriter, length string) { w.Header().Set("Content-Length", length) }
	write := func(w io.Writer, say func(...any), text string) {
		n, err := io.WriteString(w, text)
		say(n, err)
	}
	for name, do := range map[string]script{
		"an odd status": func(w http.ResponseWriter, say func(...any)) {
			defer func() { say(recover() != nil) }()
			w.WriteHeader(42)
		},
		"an odd status after nothing but a 1xx": func(w http.ResponseWriter, say func(...any)) {
			defer func() { say(recover() != nil) }()
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(0)
		},
		"no body with a 204": func(w http.ResponseWriter, say func(...any)) {
			w.WriteHeader(http.StatusNoContent)
			write(w, say, "")
			write(w, say, "body")
			n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("body"))
			say(n, err)
		},
		"no body with a 304, whatever its length": func(w http.ResponseWriter, say func(...any)) {
			declared(w, "4")
			w.WriteHeader(http.StatusNotModified)
			write(w, say, "body")
		},
		"nothing to read": func(w http.ResponseWriter, say func(...any)) {
			n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader(""))
			say(n, err)
			w.WriteHeader(http.StatusNoContent) // there is no status yet
			write(w, say, "body")
		},
		"more than declared": func(w http.ResponseWriter, say func(...any)) {
			declared(w, "4")
			write(w, say, "body")
			write(w, say, "more")
			write(w, say, "")
		},
		"more than declared, and then less": func(w http.ResponseWriter, say func(...any)) {
			declared(w, "4")
			write(w, say, "b")
			write(w, say, "too much")
			write(w, say, "ody")
		},
		"more than declared, from a reader": func(w http.ResponseWriter, say func(...any)) {
			declared(w, "4")
			n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("too much"))
			say(n, err)
			write(w, say, "body")
		},
		"a length below zero": func(w http.ResponseWriter, say func(...any)) {
			declared(w, "-1")
			write(w, say, "body")
		},
		"a length when it is too late": func(w http.ResponseWriter, say func(...any)) {
			w.WriteHeader(http.StatusOK)
			declared(w, "1")
			write(w, say, "body")
		},
	} {
		var said, want []string
		saying := func(to *[]string) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				do(w, func(what ...any) { *to = append(*to, fmt.Sprint(what...)) })
			}
		}
		bare, guarded := listen(t, saying(&want)), serve(t, saying(&said))
		plain, plainErr := try(request(t, "POST", bare.URL, "{}"))
		first, err := try(request(t, "POST", guarded.URL, "{}", "Idempotency-Key", strconv.Quote(name)))
		bare.Close() // waits for the handler
		guarded.Close()
		if !slices.Equal(said, want) {
			t.Errorf("%s: told %q, want %q", name, said, want)
		}
		if (err == nil) != (plainErr == nil) || (first.cut == nil) != (plain.cut == nil) || first.status != plain.status || first.body != plain.body {
			t.Errorf("%s: answered %+v, %v, want %+v, %v", name, first, err, plain, plainErr)
		}
	}
}

// table is one handler with the guard and without it, which behaves as it is told.
type table struct {
	guarded, plain string
	runs           sync.Map // by path: *atomic.Int64
}

func newTable(t *testing.T) *table {
	all := &table{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := all.runs.LoadOrStore(r.RequestURI, &atomic.Int64{})
		n.(*atomic.Int64).Add(1)
		query := r.URL.Query()
		b, _ := strconv.Atoi(query.Get("behaviour"))
		status, _ := strconv.Atoi(query.Get("status"))
		body, _ := strconv.Atoi(query.Get("body"))
		behaviours[b].write(w, r, status, bodies[body])
	})
	outside := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
			w.Header().Set("Vary", "Origin")
			next.ServeHTTP(w, r)
		})
	}
	guard := httpadmit.New(shared.start(), caller(me(t)), patient(), httpadmit.WithMethods(http.MethodPost, http.MethodHead))
	all.guarded, all.plain = listen(t, outside(guard(handler))).URL, listen(t, outside(handler)).URL
	return all
}

// row sends a request without the guard, and twice with it.
func (all *table) row(t *testing.T, method string, behaviour, status, body int, stored bool) {
	t.Helper()
	path := fmt.Sprintf("/v1/orders?behaviour=%d&status=%d&body=%d&guarded=", behaviour, status, body)
	name := fmt.Sprintf("%s: %d, body %d", method, status, body)
	ask := func(base, guarded, id string) (answered, []int) {
		r := request(t, method, base+path+guarded, "{}", "Idempotency-Key", fmt.Sprintf("%d-%d-%d", behaviour, status, body),
			"X-Request-Id", id, "Accept-Encoding", "identity")
		var early []int
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(status int, _ textproto.MIMEHeader) error { early = append(early, status); return nil },
		}))
		a, err := try(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return a, early
	}
	want, wantEarly := ask(all.plain, "no", "first")
	if want.header == nil {
		return
	}
	first, early := ask(all.guarded, "yes", "first")
	same(t, name+": the first answer", first, want)
	if !slices.Equal(early, wantEarly) {
		t.Errorf("%s: informational answers %v, want %v", name, early, wantEarly)
	}
	again, early := ask(all.guarded, "yes", "second")
	n, ran := all.runs.Load(path + "yes")
	if ran {
		ran = n.(*atomic.Int64).Load() == map[bool]int64{true: 1, false: 2}[stored]
	}
	if !ran {
		t.Errorf("%s: the handler did not run as often as it should", name)
		return
	}
	want.header.Set("X-Request-Id", "second")
	if stored {
		if !again.replayed() || len(early) > 0 {
			t.Errorf("%s: it is not marked as a replay (%v), or has informational answers %v", name, again.header, early)
		}
		again.header.Del("Idempotent-Replayed")
	}
	same(t, name+": the second answer", again, want)
}

// same compares two answers, but for the date, and for the length of a body where it is told
// of one that would have been sent in chunks.
func same(t *testing.T, what string, got, want answered) {
	t.Helper()
	clean := func(h http.Header) http.Header {
		h = maps.Clone(h)
		delete(h, "Date")
		if want.header["Content-Length"] == nil {
			delete(h, "Content-Length")
		}
		delete(h, "Trailer") // of a response that has no body
		return h
	}
	if got.status != want.status || got.body != want.body || got.cut != nil {
		t.Errorf("%s: %d with %d bytes (%v), want %d with %d", what, got.status, len(got.body), got.cut, want.status, len(want.body))
		return
	}
	if g, w := clean(got.header), clean(want.header); !maps.EqualFunc(g, w, slices.Equal) {
		t.Errorf("%s: header %v, want %v", what, g, w)
	}
	// Names alone may be announced or not.
	for name, values := range want.trailer {
		if !slices.Equal(got.trailer[name], values) {
			t.Errorf("%s: trailer %v, want %v", what, got.trailer, want.trailer)
		}
	}
}
