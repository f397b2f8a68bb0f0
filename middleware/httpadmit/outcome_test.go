package httpadmit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// state is what the record of a test's key is.
func state(t *testing.T, c *client.Client, key string) client.State {
	t.Helper()
	record, err := c.Get(t.Context(), client.Identity{Principal: me(t), Operation: "POST /v1/orders", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return record.State
}

// passesOn is a handler that passes its requests on to a guarded one, where nobody knows what came
// of the first, and what that answers to its caller.
func passesOn(t *testing.T, becomes client.State, options ...httpadmit.Option) http.HandlerFunc {
	t.Helper()
	principal := fresh()
	downstream := listen(t, httpadmit.New(shared.start(), append(options, caller(principal), httpadmit.WithStatus(httpadmit.CodeInDoubt, http.StatusTooEarly))...)(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { httpadmit.MarkUncertain(r.Context()) })))
	post(t, downstream, "k")
	eventually(t, becomes.String(), func() bool {
		record, err := shared.start().Get(t.Context(), client.Identity{Principal: principal, Operation: "POST /v1/orders", Key: "k"})
		return err == nil && record.State == becomes
	})
	to, err := url.Parse(downstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	return (&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("Idempotency-Key", "k")
	}}).ServeHTTP
}

// What the outcomes of handlers mean, under both kinds of lapse.
func TestOutcomes(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	marked := func(mark func(context.Context), status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mark(r.Context())
			w.WriteHeader(status)
		}
	}
	problem := func(status int, of string, code httpadmit.Code) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, `{"type": %q, "status": %d, "code": %q}`, of, status, code)
		}
	}
	const docs = "https://shop.example/keys"
	soft := httpadmit.WithClassifier(httpadmit.SoftFailure("success"))
	const stored, released, pending = client.StateCommitted, client.StateReleased, client.StatePending
	for i, c := range []struct {
		name         string
		handler      http.HandlerFunc
		option       httpadmit.Option
		reopen, hold client.State
	}{
		{"created", answer(201, "{}"), nil, stored, stored},
		{"a fault of the request", answer(422, "{}"), nil, stored, stored},
		{"a fault of ours", answer(500, "{}"), nil, released, pending},
		{"a bad gateway", answer(502, "{}"), nil, released, pending},
		{"a timeout", answer(408, "{}"), nil, released, pending},
		{"a conflict", answer(409, "{}"), nil, released, released},
		{"too many", answer(429, "{}"), nil, released, released},
		{"in flight downstream", passesOn(t, client.StatePending), nil, released, pending},
		{"in doubt downstream", passesOn(t, client.StateInDoubt, httpadmit.WithPendingTTL(time.Second), httpadmit.WithOnLapse(client.Hold)), nil, released, pending},
		{"away downstream, as it was told to say it", problem(400, docs+"#IDEMPOTENCY_UNAVAILABLE", httpadmit.CodeUnavailable), nil, released, pending},
		{"lost downstream", problem(409, docs+"#IDEMPOTENCY_LOST", httpadmit.CodeLost), nil, released, pending},
		{"late downstream", problem(409, docs+"#HANDLER_TIMEOUT", httpadmit.CodeHandlerTimeout), nil, released, pending},
		{"a mismatch downstream", problem(409, docs+"#IDEMPOTENCY_KEY_REUSED", httpadmit.CodeMismatch), nil, released, released},
		{"a problem of its own", problem(409, docs+"#SOLD_OUT", "SOLD_OUT"), nil, released, released},
		{"a code that is no guard's", problem(409, "about:blank", httpadmit.CodeInFlight), nil, released, released},
		{"switching protocols", answer(101, ""), nil, pending, pending},
		{"no known status", answer(777, ""), nil, pending, pending},
		{"a soft failure", answer(200, `{"success": false, "error": "no funds"}`), soft, released, released},
		{"no soft failure", answer(200, `{"success": true}`), soft, stored, stored},
		{"none, by its name", answer(200, `{"inner": {"success": false}}`), soft, stored, stored},
		{"an overruled 503", answer(503, "{}"), httpadmit.WithClassifier(func(o httpadmit.Outcome) httpadmit.Verdict {
			if o.Status == 503 && string(o.Body) == "{}" && o.Header.Get("Content-Type") != "" && o.Request.URL.Path == "/v1/orders" && !o.Truncated {
				return httpadmit.Store
			}
			return httpadmit.Default
		}), stored, stored},
		{"an uncertain 200", marked(httpadmit.MarkUncertain, 200), nil, pending, pending},
		{"a 500 that did nothing", marked(httpadmit.MarkNotApplied, 500), nil, released, released},
		{"a 500 that is done", marked(httpadmit.MarkDone, 500), nil, stored, stored},
		{"a mark over a classifier", marked(httpadmit.MarkUncertain, 200), httpadmit.WithClassifier(func(httpadmit.Outcome) httpadmit.Verdict { return httpadmit.Release }), pending, pending},
		{"TimeoutHandler", http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), time.Millisecond, "late").ServeHTTP, nil, pending, pending},
		{"TimeoutHandler in time", http.TimeoutHandler(answer(201, "{}"), time.Minute, "late").ServeHTTP, nil, stored, stored},
		{"a handler that fails with its context", func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusInternalServerError)
		}, httpadmit.WithPendingTTL(100 * time.Millisecond), client.StateLapsed, client.StateInDoubt},
		{"a handler that gives up with its context", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, httpadmit.WithPendingTTL(100 * time.Millisecond), client.StateLapsed, client.StateInDoubt},
	} {
		for lapse, want := range map[client.OnLapse]client.State{client.Reopen: c.reopen, client.Hold: c.hold} {
			options := []httpadmit.Option{httpadmit.WithOnLapse(lapse)}
			if c.option != nil {
				options = append(options, c.option)
			}
			key := strconv.Itoa(i) + lapse.String()
			server := serve(t, c.handler, options...)
			post(t, server, key)
			eventually(t, c.name+", "+lapse.String()+": "+want.String(), func() bool { return state(t, shared.start(), key) == want })
			server.Close()
		}
	}
}

// A panic goes on, and frees the key only where the key reopens.
func TestPanic(t *testing.T) {
	for i, c := range []struct {
		lapse client.OnLapse
		mark  func(context.Context)
		want  client.State
	}{
		{client.Reopen, nil, client.StateReleased},
		{client.Hold, nil, client.StatePending},
		{client.Reopen, httpadmit.MarkUncertain, client.StatePending},
		{client.Reopen, httpadmit.MarkDone, client.StatePending},
		{client.Hold, httpadmit.MarkNotApplied, client.StateReleased},
	} {
		for name, options := range map[string][]httpadmit.Option{"": nil, " and a timeout": {httpadmit.WithHandlerTimeout(time.Minute)}} {
			server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if c.mark != nil {
					c.mark(r.Context())
				}
				panic("boom")
			}, append(options, httpadmit.WithOnLapse(c.lapse))...)
			key := fmt.Sprintf("%d-%d", i, len(name))
			if a, err := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", key)); err == nil {
				t.Errorf("%s%s: it was answered: %+v", c.lapse, name, a)
			}
			if got := state(t, shared.start(), key); got != c.want {
				t.Errorf("%s%s: %s, want %s", c.lapse, name, got, c.want)
			}
			server.Close()
		}
	}
	// The next one hears why it was free.
	again := atomic.Bool{}
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if again.Swap(true) {
			if previous := httpadmit.Reservation(r.Context()).Previous(); previous.End != client.PreviousReleased || previous.Reason != "the handler panicked" {
				t.Errorf("previous: %+v", previous)
			}
			return
		}
		panic(http.ErrAbortHandler)
	})
	_, _ = try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", "reason"))
	if a := post(t, server, "reason"); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// A handler that has not returned in time is not released, goes on, and is recorded.
func TestHandlerTimeout(t *testing.T) {
	t.Run("alone", func(t *testing.T) { handlerTimeout(t) })
	t.Run("and WithCallerCancel", func(t *testing.T) { handlerTimeout(t, httpadmit.WithCallerCancel()) })
}

func handlerTimeout(t *testing.T, options ...httpadmit.Option) {
	leave := make(chan struct{})
	var runs atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.Header().Set("X-Early", "of the handler")
		w.WriteHeader(http.StatusEarlyHints)
		<-leave
		if r.Context().Err() != nil {
			t.Error("its context ended with its caller")
		}
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Late", "yes")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "late")
		_ = http.NewResponseController(w).Flush()
	}, append(options, httpadmit.WithHandlerTimeout(30*time.Millisecond))...)
	late := post(t, server, "k")
	wantCode(t, late, httpadmit.CodeHandlerTimeout, 503)
	if late.header.Get("Retry-After") == "" || late.header.Get("X-Late") != "" || late.header.Get("X-Early") != "" {
		t.Errorf("%v", late.header)
	}
	wantCode(t, post(t, server, "k"), httpadmit.CodeInFlight, 409)
	close(leave)
	eventually(t, "what came late is recorded", func() bool { return state(t, shared.start(), "k") == client.StateCommitted })
	if a := post(t, server, "k"); a.body != "late" || !a.replayed() || a.header.Get("X-Late") != "yes" || a.status != 201 || runs.Load() != 1 {
		t.Errorf("%+v, %d runs", a, runs.Load())
	}
}

// After its time a handler has no way to its caller's writer, which is the server's again.
func TestCutOff(t *testing.T) {
	leave := make(chan struct{})
	handler := httpadmit.New(shared.start(), caller(me(t)), httpadmit.WithHandlerTimeout(10*time.Millisecond), httpadmit.WithResponseLimit(10))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-leave
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-Late", "yes")
			_, _ = io.WriteString(w, strings.Repeat("late", 100))
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now()); err == nil {
				t.Error("it can still set the caller's deadline")
			}
		}))
	ask := func() *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/orders", nil)
		r.Header.Set("Idempotency-Key", "k")
		handler.ServeHTTP(w, r)
		return w
	}
	w := ask()
	before := w.Body.String()
	close(leave)
	eventually(t, "it is recorded", func() bool { return state(t, shared.start(), "k") == client.StateCommitted })
	if w.Code != 503 || w.Body.String() != before || w.Header().Get("X-Late") != "" || w.Flushed {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if again := ask(); again.Code != 410 {
		t.Errorf("%d %s", again.Code, again.Body)
	}
}

// A caller that hangs up does not undo what the handler does.
func TestHangUp(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-leave
		if err := r.Context().Err(); err != nil {
			t.Errorf("its context: %v", err)
		}
		_, _ = io.WriteString(w, "done")
	})
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", "k").WithContext(ctx))
		gone <- err
	}()
	<-entered
	hangUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(leave)
	eventually(t, "it is recorded", func() bool { return state(t, shared.start(), "k") == client.StateCommitted })
	if a := post(t, server, "k"); a.body != "done" || !a.replayed() {
		t.Errorf("%+v", a)
	}

	// With WithCallerCancel a handler hears of it; one that then says nothing is not done.
	heard := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
		gone <- context.Cause(r.Context())
	}, httpadmit.WithCallerCancel())
	ctx, hangUp = context.WithCancel(t.Context())
	defer hangUp()
	go func() {
		_, _ = try(request(t, "POST", heard.URL+"/v1/orders", "{}", "Idempotency-Key", "heard").WithContext(ctx))
	}()
	<-entered
	hangUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("cause: %v", err)
	}
	heard.Close() // waits for the handler
	if got := state(t, shared.start(), "heard"); got != client.StatePending {
		t.Errorf("%s, want it left to lapse", got)
	}
}

// What the handler finds in its context, and what hijacking comes to.
func TestInsideTheHandler(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		reservation := httpadmit.Reservation(r.Context())
		if reservation == nil {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		_, ok := r.Context().Deadline()
		if !ok || reservation.Fence() == 0 || r.Context().Value(http.ServerContextKey) == nil {
			t.Errorf("deadline %v, fence %d", ok, reservation.Fence())
		}
		if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, httpadmit.ErrHijack) || !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack: %v", err)
		}
		_, _ = io.WriteString(w, reservation.Derive("charge"))
	}, httpadmit.WithKeyRequired())
	id := client.Identity{Principal: me(t), Operation: "POST /v1/orders", Key: "k"}
	if a := post(t, server, "k"); a.body != id.Derive("charge") {
		t.Errorf("%+v", a)
	}
	if a := send(t, request(t, "GET", server.URL, "")); a.status != http.StatusTeapot {
		t.Errorf("%+v", a)
	}
}

// More than is kept: whole for its first caller, an error that stays for later ones.
func TestOverTheLimit(t *testing.T) {
	var runs atomic.Int64
	body := strings.Repeat("0123456789", 1000)
	for name, write := range map[string]func(http.ResponseWriter){
		"chunked": func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader(body)) },
		"length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = io.WriteString(w, body)
		},
		"bytes": func(w http.ResponseWriter) {
			for i := range body {
				_, _ = w.Write([]byte{body[i]})
			}
			_ = http.NewResponseController(w).Flush()
		},
		"trailer": func(w http.ResponseWriter) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, body)
			w.Header().Set("X-Sum", "42")
		},
	} {
		runs.Store(0)
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			w.Header().Set("X-Run", "1")
			write(w)
		}, httpadmit.WithResponseLimit(100))
		first := post(t, server, name)
		if first.body != body || first.cut != nil || first.status != 200 || first.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %d, %d bytes, %v, %v", name, first.status, len(first.body), first.header, first.cut)
		}
		if name == "trailer" && first.trailer.Get("X-Sum") != "42" {
			t.Errorf("trailer: %v", first.trailer)
		}
		for range 2 {
			again := post(t, server, name)
			wantCode(t, again, httpadmit.CodeResponseNotStored, 410)
			if !strings.Contains(again.body, `"executed":true,"executed_status":200`) || runs.Load() != 1 {
				t.Errorf("%s: %s, %d runs", name, again.body, runs.Load())
			}
		}
	}
	// A failure of that size is no success.
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, body)
	}, httpadmit.WithResponseLimit(100))
	if a := post(t, failing, "failing"); a.body != body || a.status != 500 || state(t, shared.start(), "failing") != client.StateReleased {
		t.Errorf("%d, %d bytes", a.status, len(a.body))
	}
	// What the coordinator cannot take, and what is shorter than it says. Nobody else would tell the
	// operator, so the log does.
	for name, test := range map[string]struct {
		write func(http.ResponseWriter)
		why   string
	}{
		"over the limit": {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 2<<20)) }, "its body has 2097152 bytes, and the limit is 1048576"},
		"too large": {func(w http.ResponseWriter) {
			w.Header().Set("X-Large", strings.Repeat("x", 600_000))
			_, _ = w.Write(make([]byte, 600_000))
		}, "RESPONSE_TOO_LARGE"},
		"many lines": {func(w http.ResponseWriter) { w.Header()["X-Many"] = make([]string, 200); w.WriteHeader(200) }, "response.headers"},
		"short": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
		}, "its body has 5 bytes, and its Content-Length says 100"},
	} {
		var log told
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) { test.write(w) }, httpadmit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		key := strings.ReplaceAll("odd-"+name, " ", "-")
		if first, err := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", key)); name != "short" && (err != nil || first.status != 200 || first.cut != nil) {
			t.Errorf("%s: %d, %v, %v", name, first.status, err, first.cut)
		}
		wantCode(t, post(t, server, key), httpadmit.CodeResponseNotStored, 410)
		if said := log.String(); !strings.Contains(said, test.why) || strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "status=200") {
			t.Errorf("%s: the log says %q", name, said)
		}
	}
}

// When recording fails nobody gets a complete answer, and nothing is released.
func TestRecordingFails(t *testing.T) {
	body := strings.Repeat("0123456789", 10_000)
	for name, c := range map[string]struct {
		limit  int
		length bool
	}{"kept back": {1 << 20, true}, "streamed": {10, false}, "streamed, with its length": {10, true}} {
		coordinator := own(t, client.WithCallTimeout(time.Second), client.WithSettleTimeout(2*time.Second))
		var runs atomic.Int64
		guard := httpadmit.New(coordinator.client, caller("a"), httpadmit.WithResponseLimit(c.limit), httpadmit.WithSettleWait(300*time.Millisecond))
		server := listen(t, guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			_ = coordinator.node.Stop(context.Background())
			if c.length {
				w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			}
			_, _ = io.WriteString(w, body)
			_ = http.NewResponseController(w).Flush()
		})))
		first, err := try(request(t, "POST", server.URL, "{}", "Idempotency-Key", "k"))
		if err != nil {
			t.Fatal(err)
		}
		if c.limit > len(body) {
			wantCode(t, first, httpadmit.CodeUnavailable, 503)
			if !strings.Contains(first.body, `"executed":true`) || first.header.Get("Retry-After") == "" {
				t.Errorf("%+v", first)
			}
		} else if first.cut == nil || first.body != body[:len(body)-1] {
			t.Errorf("%s: %d bytes, %v: an answer that is not recorded must lack its end, and be cut", name, len(first.body), first.cut)
		}
		wantCode(t, send(t, request(t, "POST", server.URL, "{}", "Idempotency-Key", "k")), httpadmit.CodeUnavailable, 503)
		if runs.Load() != 1 {
			t.Errorf("%s: %d runs", name, runs.Load())
		}
		server.Close()
		_ = coordinator.client.Close()
	}
}

// An owner that took too long, while somebody else was admitted.
func TestLost(t *testing.T) {
	var runs atomic.Int64
	second := make(chan answered, 1)
	url := ""
	guarded := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			<-r.Context().Done()
			for { // the coordinator's deadline comes a little after the owner's
				a, err := try(request(t, "POST", url+"/v1/orders", "{}", "Idempotency-Key", "k"))
				if err != nil || a.status == 200 {
					second <- a
					break
				}
			}
			_, _ = io.WriteString(w, "first")
			return
		}
		_, _ = io.WriteString(w, "second")
	}, httpadmit.WithPendingTTL(200*time.Millisecond))
	url = guarded.URL
	lost := post(t, guarded, "k")
	wantCode(t, lost, httpadmit.CodeLost, 503)
	if a := <-second; a.body != "second" {
		t.Errorf("second: %+v", a)
	}
	if a := post(t, guarded, "k"); a.body != "second" || !a.replayed() || runs.Load() != 2 {
		t.Errorf("%+v, %d runs", a, runs.Load())
	}
}

// In doubt, until it is settled; what an operator settles it with is replayed.
func TestInDoubt(t *testing.T) {
	c := shared.start()
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		httpadmit.WithOnLapse(client.Hold), httpadmit.WithPendingTTL(100*time.Millisecond))
	for _, key := range []string{"settled", "unfit"} {
		post(t, server, key)
		eventually(t, "it is in doubt", func() bool { return state(t, c, key) == client.StateInDoubt })
		doubt := post(t, server, key)
		wantCode(t, doubt, httpadmit.CodeInDoubt, 409)
		if doubt.header.Get("Retry-After") != "" {
			t.Errorf("%v", doubt.header)
		}
	}
	settle := func(key string, response client.Response) answered {
		id := client.Identity{Principal: me(t), Operation: "POST /v1/orders", Key: key}
		record, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.ResolveApplied(t.Context(), id, record.Revision, response, "looked it up"); err != nil {
			t.Fatal(err)
		}
		return post(t, server, key)
	}
	a := settle("settled", client.Response{Code: 201, Body: []byte("by hand"), Headers: []client.Header{
		{Name: "content-type", Value: "text/x"}, {Name: "content-length", Value: "1"}, {Name: "connection", Value: "close"}, {Name: "Location", Value: "/1"},
	}})
	if a.status != 201 || a.body != "by hand" || a.header.Get("Content-Type") != "text/x" || a.header.Get("Location") != "/1" || !a.replayed() {
		t.Errorf("%+v", a)
	}
	wantCode(t, settle("unfit", client.Response{Code: 0}), httpadmit.CodeResponseNotStored, 410)
}

// What is secret in a request or a response does not get to the coordinator's disk, and to no
// log; what is stored does.
func TestSecretsAreNotStored(t *testing.T) {
	var log told
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := own(t, client.WithLogger(logger))
	const (
		cookie, hop, named   = "s3cr3t-c00k13-0f-0n3", "h0p-by-h0p-v4lu3", "n4m3d-1n-c0nn3ct10n"
		token, sent, payload = "b34r3r-t0k3n-0f-0n3", "s3nt-c00k13-0f-0n3", "c4rd-numb3r-1n-b0dy"
		failed, late         = "s3cr3t-0f-4-f41lur3", "s3cr3t-0f-4-p4n1c"
		kept                 = "kept-v4lu3-0f-a11"
	)
	server := listen(t, httpadmit.New(c.client, caller("a"), httpadmit.WithLogger(logger))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "session="+cookie)
		w.Header().Add("Set-Cookie", "other=1")
		switch r.URL.Path {
		case "/fails":
			w.Header().Set("X-Kept", failed)
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, failed)
			return
		case "/panics":
			w.Header().Set("X-Kept", late)
			_, _ = io.WriteString(w, late)
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Proxy-Authenticate", hop)
		w.Header().Set("Connection", "X-Own")
		w.Header().Set("X-Own", named)
		w.Header().Set("X-Kept", kept)
		w.Header().Set("Trailer", "Set-Cookie")
		_, _ = io.WriteString(w, "body")
	})))
	ask := func(path string) answered {
		a, _ := try(request(t, "POST", server.URL+path, `{"card":"`+payload+`"}`, "Idempotency-Key", "k",
			"Authorization", "Bearer "+token, "Cookie", "session="+sent, "Content-Type", "application/json"))
		return a
	}
	first, again := ask("/"), ask("/")
	if len(first.header["Set-Cookie"]) != 2 || first.header.Get("X-Own") != named {
		t.Errorf("first: %v", first.header)
	}
	if again.header["Set-Cookie"] != nil || again.header.Get("X-Own") != "" || again.header.Get("X-Kept") != kept || !again.replayed() {
		t.Errorf("again: %v", again.header)
	}
	ask("/fails")
	ask("/panics")
	if a := send(t, request(t, "POST", server.URL, `{"card":"another `+payload+`"}`, "Idempotency-Key", "k")); a.code() != string(httpadmit.CodeMismatch) {
		t.Errorf("%+v", a)
	}
	if err := c.node.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	ask("/away") // and the log says so
	found := map[string]bool{}
	look := func(text []byte) {
		for _, needle := range []string{cookie, hop, named, token, sent, payload, failed, late, kept} {
			found[needle] = found[needle] || bytes.Contains(text, []byte(needle))
		}
	}
	err := filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		look(text)
		return err
	})
	if !found[kept] || err != nil {
		t.Errorf("what is stored is not there to be found: %v", err)
	}
	if log.String() == "" {
		t.Error("the log was told nothing")
	}
	look([]byte(log.String()))
	for needle, is := range found {
		if is && needle != kept {
			t.Errorf("%q is on disk or in the log", needle)
		}
	}
}

// told is what a log was told.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *told) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A panic when a part of the response has gone out: the caller does not get a whole answer, and
// the key is what it is after every panic.
func TestPanicWithinALargeResponse(t *testing.T) {
	for lapse, want := range map[client.OnLapse]client.State{client.Reopen: client.StateReleased, client.Hold: client.StatePending} {
		for name, options := range map[string][]httpadmit.Option{"": nil, "-timed": {httpadmit.WithHandlerTimeout(time.Minute)}} {
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
				panic(http.ErrAbortHandler)
			}, append(options, httpadmit.WithOnLapse(lapse), httpadmit.WithResponseLimit(10))...)
			a, err := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", lapse.String()+name))
			if err == nil && a.cut == nil {
				t.Errorf("%s%s: it got a whole answer of %d bytes", lapse, name, len(a.body))
			}
			if got := state(t, shared.start(), lapse.String()+name); got != want {
				t.Errorf("%s%s: %s, want %s", lapse, name, got, want)
			}
		}
	}
}

// A handler beyond its time whose response grows over the limit then: its caller has an answer
// already, and only one.
func TestGrowsBeyondItsTime(t *testing.T) {
	leave := make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		<-leave
		_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
	}, httpadmit.WithHandlerTimeout(20*time.Millisecond), httpadmit.WithResponseLimit(10))
	wantCode(t, post(t, server, "k"), httpadmit.CodeHandlerTimeout, 503)
	close(leave)
	eventually(t, "it is recorded", func() bool { return state(t, shared.start(), "k") == client.StateCommitted })
	wantCode(t, post(t, server, "k"), httpadmit.CodeResponseNotStored, 410)
}
