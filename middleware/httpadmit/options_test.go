package httpadmit_test

import (
	"bytes"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// What names the record, and what people read of it.
func TestNames(t *testing.T) {
	var log bytes.Buffer
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		httpadmit.WithNamespace("desk"), httpadmit.WithOperation(func(*http.Request) string { return "trade:binance:live" }),
		httpadmit.WithOwner("gateway-1"), httpadmit.WithRetention(time.Hour), httpadmit.WithOnLapse(client.Hold),
		httpadmit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	post(t, server, "k")
	record, err := shared.start().Get(t.Context(), client.Identity{Namespace: "desk", Principal: me(t), Operation: "trade:binance:live", Key: "k"})
	if err != nil || record.Owner != "gateway-1" || record.Retention != time.Hour || record.OnLapse != client.Hold || len(record.Fingerprint) != 32 {
		t.Errorf("%+v, %v", record, err)
	}
	server.Close()
	if !strings.Contains(log.String(), "trade:binance:live") {
		t.Errorf("the log says nothing of what is left to lapse: %q", log.String())
	}
}

// A list of headers of one's own, in place of the usual one.
func TestNeverStored(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=1")
		w.Header().Set("X-Token", "secret")
		w.Header().Set("Trailer", "X-Token")
		w.WriteHeader(200)
	}, httpadmit.WithNeverStored("x-token"))
	first, again := post(t, server, "k"), post(t, server, "k")
	if first.header.Get("X-Token") != "secret" || again.header.Get("X-Token") != "" || again.header.Get("Set-Cookie") != "a=1" || !again.replayed() {
		t.Errorf("%v, then %v", first.header, again.header)
	}
}

// Texts that are no JSON make keys too, by a function.
func TestFieldFunc(t *testing.T) {
	word := func(n int) func(*http.Request, []byte) (string, bool) {
		return func(_ *http.Request, body []byte) (string, bool) {
			words := strings.Fields(string(body))
			if n >= len(words) {
				return "", false
			}
			return words[n], true
		}
	}
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithKeys(httpadmit.AutomaticKey(time.Minute,
		httpadmit.FieldFunc("side", word(0)), httpadmit.FieldFunc("symbol", word(1)), httpadmit.FieldFunc("note", word(3)).Optional())))
	ask := func(body string) answered { return send(t, request(t, "POST", server.URL, body)) }
	if first, again := ask("buy BTC 1"), ask("buy BTC 2"); first.replayed() || !again.replayed() {
		t.Errorf("%+v, %+v", first, again)
	}
	for _, body := range []string{"sell BTC 1", "BTC buy 1", "buy BTC 1 x"} {
		if a := ask(body); a.status != 201 || a.replayed() {
			t.Errorf("%s: %+v", body, a)
		}
	}
	wantCode(t, ask("buy"), httpadmit.CodeKeyInvalid, 400)
	if a := send(t, request(t, "POST", server.URL, strings.Repeat("x ", 1<<20))); a.code() != string(httpadmit.CodeBodyTooLarge) {
		t.Errorf("%+v", a)
	}
}

// A reservation that is renewed outlasts its window.
func TestKeepAlive(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			t.Error("its reservation ended")
		}
		_, _ = io.WriteString(w, "done")
	}, httpadmit.WithKeepAlive(), httpadmit.WithPendingTTL(300*time.Millisecond), httpadmit.WithWait(time.Minute))
	first := make(chan answered)
	go func() {
		a, _ := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", "k"))
		first <- a
	}()
	eventually(t, "the first is admitted", func() bool { return runs.Load() == 1 })
	if a := post(t, server, "k"); a.body != "done" || !a.replayed() {
		t.Errorf("%+v", a)
	}
	if a := <-first; a.body != "done" || a.replayed() || runs.Load() != 1 {
		t.Errorf("%+v, %d runs", a, runs.Load())
	}
}

// Files of a form that the handler has read do not stay behind.
func TestMultipart(t *testing.T) {
	name := ""
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(10); err != nil {
			t.Error(err)
			return
		}
		file, err := r.MultipartForm.File["f"][0].Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		if disk, ok := file.(*os.File); ok {
			name = disk.Name()
		}
		_, _ = io.Copy(w, file)
	}, httpadmit.WithBodyLimit(32<<20))
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("f", "f.bin")
	_, _ = part.Write(make([]byte, 11<<20))
	_ = form.Close()
	a := postForm(t, server.URL, body.String(), form.FormDataContentType())
	if len(a.body) != 11<<20 || name == "" {
		t.Fatalf("%d bytes, file %q", len(a.body), name)
	}
	eventually(t, "the file is gone", func() bool { _, err := os.Stat(name); return os.IsNotExist(err) })
}

func postForm(t *testing.T, url, body, contentType string) answered {
	t.Helper()
	return send(t, request(t, "POST", url, body, "Idempotency-Key", "k", "Content-Type", contentType))
}

// A body that does not arrive is not hashed.
func TestBodyThatBreaks(t *testing.T) {
	var runs atomic.Int64
	handler := httpadmit.New(shared.start(), caller(me(t)))(counted(&runs))
	broken := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(r.Body)))
		handler.ServeHTTP(w, r)
	}))
	wantCode(t, post(t, broken, "k"), httpadmit.CodeBodyUnreadable, 400)
	if runs.Load() != 0 {
		t.Errorf("%d runs", runs.Load())
	}
}

// A length that is none is not sent, and costs nothing.
func TestLengthThatIsNone(t *testing.T) {
	for i, length := range []string{"some", "-1", "1,1", " "} {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", length)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "body")
		})
		for again := range 2 {
			if a := post(t, server, strconv.Itoa(i)); a.status != 201 || a.body != "body" || a.cut != nil || a.replayed() != (again == 1) {
				t.Errorf("%q: %+v", length, a)
			}
		}
	}
}

// Handlers that end in odd ways do not leave a caller with half an answer.
func TestOddEnds(t *testing.T) {
	for name, end := range map[string]func(http.ResponseWriter){
		"Goexit":         func(http.ResponseWriter) { runtime.Goexit() },
		"an odd status":  func(w http.ResponseWriter) { w.WriteHeader(42) },
		"a mistake":      func(w http.ResponseWriter) { w.(interface{ NoSuchMethod() }).NoSuchMethod() },
		"an abort":       func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"after a status": func(w http.ResponseWriter) { w.WriteHeader(201); panic("boom") },
	} {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) { end(w) }, httpadmit.WithHandlerTimeout(time.Minute))
		key := strings.ReplaceAll(name, " ", "-")
		if a, err := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", key)); err == nil {
			t.Errorf("%s: it is answered: %+v", name, a)
		}
		if got := state(t, shared.start(), key); got != client.StateReleased {
			t.Errorf("%s: %s", name, got)
		}
	}
}
