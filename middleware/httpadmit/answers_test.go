package httpadmit_test

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// counted is a handler that counts its runs and answers 201 with the number.
func counted(runs *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n := runs.Add(1)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"run": n, "got": string(body)})
	}
}

// Both forms of a key are one key; the handler reads the body that was hashed.
func TestReplay(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithKeyRequired())
	first := send(t, request(t, http.MethodPost, server.URL, `{"a":1}`, "Idempotency-Key", `"k-1"`))
	again := send(t, request(t, http.MethodPost, server.URL, `{"a":1}`, "Idempotency-Key", "k-1"))
	if first.status != 201 || first.replayed() || !strings.Contains(first.body, `"got":"{\"a\":1}"`) {
		t.Errorf("first: %+v", first)
	}
	if !again.replayed() || again.status != 201 || again.body != first.body || runs.Load() != 1 {
		t.Errorf("again: %+v, %d runs", again, runs.Load())
	}
	mismatch := send(t, request(t, http.MethodPost, server.URL, `{"a":2}`, "Idempotency-Key", "k-1"))
	wantCode(t, mismatch, httpadmit.CodeMismatch, 422)
	if runs.Load() != 1 || mismatch.header.Get("Retry-After") != "" {
		t.Errorf("mismatch: %+v, %d runs", mismatch, runs.Load())
	}
	other := send(t, request(t, http.MethodPost, server.URL+"/other", `{"a":1}`, "Idempotency-Key", "k-1"))
	if other.replayed() || runs.Load() != 2 {
		t.Errorf("another operation: %+v", other)
	}
}

// A slash within a segment is not one between two: what ServeMux tells apart is never answered
// for each other, neither by a key of its own nor by one that is made of fields.
func TestEscapedPathsAreOtherResources(t *testing.T) {
	var runs atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /w/{id}", func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.WriteString(w, "worker "+r.PathValue("id"))
	})
	mux.HandleFunc("POST /w/{id}/reboot", func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.WriteString(w, "reboot of "+r.PathValue("id"))
	})
	field := httpadmit.JSONField("a")
	for name, source := range map[string]httpadmit.KeySource{
		"header": httpadmit.IdempotencyKey(), "automatic": httpadmit.AutomaticKey(time.Minute, field), "bucket": httpadmit.BucketKey(time.Hour, field),
	} {
		runs.Store(0)
		server := serve(t, mux.ServeHTTP, httpadmit.WithKeys(source), httpadmit.WithNamespace(name))
		ask := func(path string) answered {
			return send(t, request(t, "POST", server.URL+path, `{"a":"1"}`, "Idempotency-Key", "k"))
		}
		for path, want := range map[string]string{"/w/x%2Freboot": "worker x/reboot", "/w/x/reboot": "reboot of x"} {
			if a := ask(path); a.body != want || a.replayed() {
				t.Errorf("%s: %s: %+v, want %q", name, path, a, want)
			}
		}
		// The same resource in another spelling is the same.
		if a := ask("/%77/x%2freboot"); a.body != "worker x/reboot" || !a.replayed() || runs.Load() != 2 {
			t.Errorf("%s: %+v, %d runs", name, a, runs.Load())
		}
	}
}

// What is refused before the coordinator is asked.
func TestRefused(t *testing.T) {
	var runs atomic.Int64
	required := serve(t, counted(&runs), httpadmit.WithKeyRequired(), httpadmit.WithBodyLimit(8))
	nobody := serve(t, counted(&runs), caller(""), httpadmit.WithChallenge(`Basic realm="x"`))
	optional := serve(t, counted(&runs), httpadmit.WithBodyLimit(8))

	wantCode(t, send(t, request(t, "POST", required.URL, "{}")), httpadmit.CodeKeyMissing, 400)
	for _, key := range []string{"", `""`, "a b", `"a`, "naïve", strings.Repeat("k", 256), `"a", "b"`} {
		wantCode(t, send(t, request(t, "POST", required.URL, "{}", "Idempotency-Key", key)), httpadmit.CodeKeyInvalid, 400)
		wantCode(t, send(t, request(t, "POST", optional.URL, "{}", "Idempotency-Key", key)), httpadmit.CodeKeyInvalid, 400)
	}
	doubled := request(t, "POST", optional.URL, "{}", "Idempotency-Key", "a", "Idempotency-Key", "a")
	wantCode(t, send(t, doubled), httpadmit.CodeKeyInvalid, 400)

	refused := send(t, request(t, "POST", nobody.URL, "{}", "Idempotency-Key", "a"))
	wantCode(t, refused, httpadmit.CodePrincipalRequired, 401)
	if got := refused.header.Get("WWW-Authenticate"); got != `Basic realm="x"` {
		t.Errorf("challenge %q", got)
	}
	wantCode(t, send(t, request(t, "POST", nobody.URL, "{}", "Idempotency-Key", "a b")), httpadmit.CodePrincipalRequired, 401)

	large := send(t, request(t, "POST", required.URL, "123456789", "Idempotency-Key", "a"))
	if wantCode(t, large, httpadmit.CodeBodyTooLarge, 413); !strings.Contains(large.body, "the body has 9 bytes, and the limit of this endpoint is 8") {
		t.Errorf("the limit is not named: %s", large.body)
	}
	chunked := request(t, "POST", required.URL, "", "Idempotency-Key", "a")
	chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader("123456789")), -1
	large = send(t, chunked)
	if wantCode(t, large, httpadmit.CodeBodyTooLarge, 413); !strings.Contains(large.body, "the limit of this endpoint, which is 8") {
		t.Errorf("the limit is not named: %s", large.body)
	}
	if runs.Load() != 0 {
		t.Errorf("the handler ran %d times", runs.Load())
	}
	if at := send(t, request(t, "POST", required.URL, "12345678", "Idempotency-Key", "a")); at.status != 201 {
		t.Errorf("a body at the limit: %+v", at)
	}
}

// What is not guarded passes, of any size, and streams.
func TestUnguarded(t *testing.T) {
	read := make(chan string)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "first\n")
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		<-read // the caller has the first line while the handler runs
		_, _ = io.Copy(w, r.Body)
	}, caller(""), httpadmit.WithBodyLimit(8))
	for _, r := range []*http.Request{
		request(t, "POST", server.URL, strings.Repeat("x", 100)),
		request(t, "PUT", server.URL, strings.Repeat("x", 100)),
	} {
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(answer.Body)
		if line, err := lines.ReadString('\n'); line != "first\n" {
			t.Fatalf("%q, %v", line, err)
		}
		read <- "it"
		if rest, err := io.ReadAll(lines); len(rest) != 100 || err != nil {
			t.Errorf("%d bytes, %v", len(rest), err)
		}
		answer.Body.Close()
	}
}

// Who is not guarded has the server's own writer, and may take the connection over.
func TestUnguardedHijack(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		_, _ = buffered.WriteString("HTTP/1.1 299 Mine\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		_ = buffered.Flush()
	})
	for _, r := range []*http.Request{request(t, "POST", server.URL, "{}"), request(t, "GET", server.URL, "", "Idempotency-Key", "k")} {
		if a := send(t, r); a.status != 299 || a.body != "ok" {
			t.Errorf("%+v", a)
		}
	}
}

// A GET changes nothing, and has no use for a key.
func TestSafeMethods(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithKeyRequired())
	for range 2 {
		if a := send(t, request(t, "GET", server.URL, "", "Idempotency-Key", "a b")); a.status != 201 || a.replayed() {
			t.Errorf("%+v", a)
		}
	}
	only := serve(t, counted(&runs), httpadmit.WithMethods("GET"))
	first, again := send(t, request(t, "GET", only.URL, "", "Idempotency-Key", "g")), send(t, request(t, "GET", only.URL, "", "Idempotency-Key", "g"))
	if first.replayed() || !again.replayed() {
		t.Errorf("a GET that is guarded: %+v, %+v", first, again)
	}
}

// Principals never meet; where nobody is known, all share their keys.
func TestPrincipals(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithPrincipal(func(r *http.Request) string { return r.Header.Get("X-Account") }), httpadmit.WithAnonymous())
	key := fresh() // nobody else's, where nobody is known
	for i, account := range []string{"one", "two", ""} {
		if a := post(t, server, key, "X-Account", account); a.replayed() || runs.Load() != int64(i+1) {
			t.Errorf("account %q: %+v", account, a)
		}
		if a := post(t, server, key, "X-Account", account); !a.replayed() {
			t.Errorf("account %q again: %+v", account, a)
		}
	}
}

// In flight: refused at once, or after a wait.
func TestInFlight(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	handler := func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		_, _ = io.WriteString(w, "done")
	}
	server := serve(t, handler)
	waiting := serve(t, handler, httpadmit.WithWait(30*time.Second))
	settable := serve(t, handler, httpadmit.WithStatus(httpadmit.CodeInFlight, 425), httpadmit.WithDocs("https://docs.example/idempotency"))
	first := make(chan answered)
	go func() {
		a, _ := try(request(t, "POST", server.URL+"/v1/orders", "{}", "Idempotency-Key", "k"))
		first <- a
	}()
	<-entered
	refused := post(t, server, "k")
	wantCode(t, refused, httpadmit.CodeInFlight, 409)
	if refused.header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After: %v", refused.header)
	}
	other := post(t, settable, "k")
	wantCode(t, other, httpadmit.CodeInFlight, 425)
	if !strings.Contains(other.body, `"type":"https://docs.example/idempotency#IDEMPOTENCY_IN_FLIGHT"`) {
		t.Errorf("%s", other.body)
	}
	waited := make(chan answered)
	go func() {
		a, _ := try(request(t, "POST", waiting.URL+"/v1/orders", "{}", "Idempotency-Key", "k"))
		waited <- a
	}()
	close(leave)
	if a := <-first; a.body != "done" || a.replayed() {
		t.Errorf("first: %+v", a)
	}
	if a := <-waited; a.body != "done" || !a.replayed() {
		t.Errorf("waited: %+v", a)
	}
}

// Refusals that have nothing to do with the request.
func TestAway(t *testing.T) {
	var runs atomic.Int64
	away, err := client.Dial([]string{"127.0.0.1:1"}, client.WithCallTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	server := listen(t, httpadmit.New(away, caller("a"), httpadmit.WithRetryAfter(1500*time.Millisecond))(counted(&runs)))
	refused := post(t, server, "k")
	wantCode(t, refused, httpadmit.CodeUnavailable, 503)
	if refused.header.Get("Retry-After") != "2" || strings.Contains(refused.body, "executed") || runs.Load() != 0 {
		t.Errorf("%+v, %d runs", refused, runs.Load())
	}
	if a := send(t, request(t, "POST", server.URL, "{}")); a.status != 201 {
		t.Errorf("an unguarded request: %+v", a)
	}
}

// What the application gave is its own mistake, what the caller gave is the caller's; either
// is named with its size and its limit, and never passes.
func TestWhatIsTooLongIsNamed(t *testing.T) {
	var runs atomic.Int64
	for name, test := range map[string]struct {
		principal, key string
		code           httpadmit.Code
		status         int
		detail         string
	}{
		"principal": {strings.Repeat("p", 129), "k", httpadmit.CodeMisconfigured, 500, "the principal has 129 bytes, and may have 128"},
		"key":       {"p", strings.Repeat("k", 256), httpadmit.CodeKeyInvalid, 400, "the key has 256 bytes, and may have 255"},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, counted(&runs), caller(test.principal), httpadmit.WithLogger(slog.New(slog.DiscardHandler)))
			a := post(t, server, test.key)
			wantCode(t, a, test.code, test.status)
			if !strings.Contains(a.body, `"detail":"`+test.detail+`"`) || a.header.Get("Retry-After") != "" {
				t.Errorf("answered %+v", a)
			}
		})
	}
	long := httpadmit.WithOperation(func(r *http.Request) string { return strings.Repeat("o", 300) + r.URL.Path })
	if a := post(t, serve(t, counted(&runs), long), "k"); a.status != 201 {
		t.Errorf("a long operation: answered %+v", a)
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs, want that of the long operation", runs.Load())
	}
}

// Nobody who uses the defaults waits long for a no, and who has less patience says so.
func TestAwayIsSaidSoon(t *testing.T) {
	away, err := client.Dial([]string{"127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for _, c := range []struct {
		options []httpadmit.Option
		most    time.Duration
	}{
		{nil, 6 * time.Second}, // 3 s, on a machine that has much to do
		{[]httpadmit.Option{httpadmit.WithWait(time.Minute), httpadmit.WithReserveTimeout(200 * time.Millisecond)}, 2 * time.Second},
	} {
		var runs atomic.Int64
		server := listen(t, httpadmit.New(away, append(c.options, caller("a"))...)(counted(&runs)))
		began := time.Now()
		wantCode(t, post(t, server, "k"), httpadmit.CodeUnavailable, 503)
		if took := time.Since(began); took > c.most || runs.Load() != 0 {
			t.Errorf("after %v, %d runs", took, runs.Load())
		}
	}
}

// Keys from elsewhere, in their order.
func TestSeveralSources(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithKeyRequired(), httpadmit.WithBodyLimit(100), httpadmit.WithKeys(
		httpadmit.IdempotencyKey(), httpadmit.KeyFromHeader("X-GitHub-Delivery"), httpadmit.KeyFromJSON("id"),
		httpadmit.KeyFunc(func(r *http.Request, body []byte) (string, error) {
			if strings.HasPrefix(string(body), "order ") {
				return string(body[6:]), nil
			}
			return "", nil
		})))
	ask := func(body string, header ...string) answered {
		return send(t, request(t, "POST", server.URL, body, header...))
	}
	for _, c := range []struct {
		body   string
		header []string
	}{
		{`{"id":"evt_1"}`, []string{"Idempotency-Key", "a", "X-GitHub-Delivery", "b"}},
		{`{"id":"evt_1"}`, []string{"X-GitHub-Delivery", "b"}},
		{`{"id":"evt_1"}`, nil},
		{`order 42`, nil},
	} {
		first, again := ask(c.body, c.header...), ask(c.body, c.header...)
		if first.replayed() || !again.replayed() || !strings.Contains(first.body, `"got":`) {
			t.Errorf("%s %v: %+v, %+v", c.body, c.header, first, again)
		}
	}
	wantCode(t, ask(`{"id":"evt_1"}`, "Idempotency-Key", "a b", "X-GitHub-Delivery", "b"), httpadmit.CodeKeyInvalid, 400)
	wantCode(t, ask(`{"id":7}`), httpadmit.CodeKeyInvalid, 400)
	wantCode(t, ask(`hello`), httpadmit.CodeKeyMissing, 400)
	wantCode(t, ask(strings.Repeat("x", 101)), httpadmit.CodeBodyTooLarge, 413)
}

// A body that was looked at for a key, and has none, is whole for the handler.
func TestLookedAt(t *testing.T) {
	var runs atomic.Int64
	server := serve(t, counted(&runs), httpadmit.WithKeys(httpadmit.KeyFromJSON("id")))
	for range 2 {
		if a := send(t, request(t, "POST", server.URL, `{"no":1}`)); a.replayed() || !strings.Contains(a.body, `{\"no\":1}`) {
			t.Errorf("%+v", a)
		}
	}
}

// What is wrong with the options is said when the program starts.
func TestOptions(t *testing.T) {
	for name, options := range map[string][]httpadmit.Option{
		"no principal":           {},
		"no keys":                {caller("a"), httpadmit.WithKeys()},
		"an empty key":           {caller("a"), httpadmit.WithKeys(httpadmit.KeySource{})},
		"no function":            {caller("a"), httpadmit.WithKeys(httpadmit.KeyFunc(nil))},
		"a window":               {caller("a"), httpadmit.WithKeys(httpadmit.AutomaticKey(time.Millisecond, httpadmit.JSONField("a")))},
		"a long window":          {caller("a"), httpadmit.WithKeys(httpadmit.AutomaticKey(31*24*time.Hour, httpadmit.JSONField("a")))},
		"no fields":              {caller("a"), httpadmit.WithKeys(httpadmit.AutomaticKey(time.Minute))},
		"a bucket":               {caller("a"), httpadmit.WithKeys(httpadmit.BucketKey(0, httpadmit.JSONField("a")))},
		"an empty field":         {caller("a"), httpadmit.WithKeys(httpadmit.AutomaticKey(time.Minute, httpadmit.Field{}))},
		"no reader":              {caller("a"), httpadmit.WithKeys(httpadmit.BucketKey(time.Minute, httpadmit.FieldFunc("a", nil)))},
		"no choice":              {caller("a"), httpadmit.WithFingerprint(httpadmit.ChosenFields(httpadmit.JSONField("a"), httpadmit.FieldFunc("a", nil).Optional()))},
		"no header":              {caller("a"), httpadmit.WithKeys(httpadmit.KeyFromHeader(""))},
		"a header":               {caller("a"), httpadmit.WithKeys(httpadmit.KeyFromHeader("X-Delivery:"))},
		"no methods":             {caller("a"), httpadmit.WithMethods()},
		"a star":                 {caller("a"), httpadmit.WithMethods("*")},
		"an odd method":          {caller("a"), httpadmit.WithMethods("POST", "put")},
		"two in one":             {caller("a"), httpadmit.WithMethods("POST, PUT")},
		"no fingerprint":         {caller("a"), httpadmit.WithFingerprint(httpadmit.Fingerprint{})},
		"chosen nothing":         {caller("a"), httpadmit.WithFingerprint(httpadmit.ChosenFields())},
		"a limit":                {caller("a"), httpadmit.WithBodyLimit(-1)},
		"another limit":          {caller("a"), httpadmit.WithResponseLimit(-1)},
		"a status":               {caller("a"), httpadmit.WithStatus(httpadmit.CodeMismatch, 200)},
		"a code":                 {caller("a"), httpadmit.WithStatus("NO_SUCH_CODE", 409)},
		"a timeout":              {caller("a"), httpadmit.WithHandlerTimeout(-1)},
		"a wait":                 {caller("a"), httpadmit.WithSettleWait(0)},
		"a delay":                {caller("a"), httpadmit.WithRetryAfter(0)},
		"no time":                {caller("a"), httpadmit.WithReserveTimeout(0)},
		"no operation":           {caller("a"), httpadmit.WithOperation(nil)},
		"no logger":              {caller("a"), httpadmit.WithLogger(nil)},
		"option 2 of New is nil": {caller("a"), nil},
		"WithPendingTTL is 0s, it must be from 100ms to 24h0m0s":                             {caller("a"), httpadmit.WithPendingTTL(0)},
		"WithPendingTTL is -1ns, it must be from 100ms to 24h0m0s":                           {caller("a"), httpadmit.WithPendingTTL(-1)},
		"WithPendingTTL is 25h0m0s, it must be from 100ms to 24h0m0s":                        {caller("a"), httpadmit.WithPendingTTL(25 * time.Hour)},
		"WithRetention is 0s, it must be from 1s to 720h0m0s":                                {caller("a"), httpadmit.WithRetention(0)},
		"WithRetention is 744h0m0s, it must be from 1s to 720h0m0s":                          {caller("a"), httpadmit.WithRetention(31 * 24 * time.Hour)},
		"WithOwner is 129 bytes long, the limit is 128":                                      {caller("a"), httpadmit.WithOwner(strings.Repeat("o", 129))},
		"WithOnLapse is 7, it must be client.Reopen or client.Hold":                          {caller("a"), httpadmit.WithOnLapse(7)},
		"BucketKey: the bucket is 744h0m0s, it must be from 1s to 720h0m0s":                  {caller("a"), httpadmit.WithKeys(httpadmit.BucketKey(31*24*time.Hour, httpadmit.JSONField("a")))},
		"BucketKey: the bucket is 2h0m0s, and the record is kept for 1h0m0s (WithRetention)": {caller("a"), httpadmit.WithRetention(time.Hour), httpadmit.WithKeys(httpadmit.BucketKey(2*time.Hour, httpadmit.JSONField("a")))},
	} {
		func() {
			defer func() {
				said, ok := recover().(string)
				if !ok || !strings.HasPrefix(said, "httpadmit: ") || strings.ContainsAny(name, "0123456789") && said != "httpadmit: "+name {
					t.Errorf("%s: %q", name, said)
				}
			}()
			httpadmit.New(shared.start(), options...)
		}()
	}
	httpadmit.New(shared.start(), httpadmit.WithAnonymous(), httpadmit.WithMethods("POST", "VERSION-CONTROL"),
		httpadmit.WithPendingTTL(24*time.Hour), httpadmit.WithRetention(time.Second), httpadmit.WithOwner(strings.Repeat("o", 128)))
	httpadmit.New(shared.start(), httpadmit.WithAnonymous(), httpadmit.WithPendingTTL(100*time.Millisecond), httpadmit.WithRetention(30*24*time.Hour),
		httpadmit.WithKeys(httpadmit.BucketKey(30*24*time.Hour, httpadmit.JSONField("a"))))
}

// A header or trailer whose value is no text goes to its first caller as net/http sends it, and does
// not keep what can be stored of the response from later ones.
func TestHeadersThatAreNoText(t *testing.T) {
	var log strings.Builder
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Latin"] = []string{"caf\xe9", "tea"}
		w.Header()["X-Text"] = []string{"caf\u00e9"}
		w.Header()["Trailer"] = []string{"X-End"}
		_, _ = io.WriteString(w, "served")
		w.Header()["X-End"] = []string{"\xff"}
	}, httpadmit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	key := fresh()
	first, second := post(t, server, key), post(t, server, key)
	if first.status != http.StatusOK || first.body != "served" || !slices.Equal(first.header["X-Latin"], []string{"caf\xe9", "tea"}) || first.trailer.Get("X-End") != "\xff" {
		t.Errorf("the first caller got %+v", first)
	}
	if second.status != http.StatusOK || second.body != "served" || !second.replayed() ||
		!slices.Equal(second.header["X-Latin"], []string{"tea"}) || second.header.Get("X-Text") != "caf\u00e9" || second.trailer.Get("X-End") != "" {
		t.Errorf("the second caller got %+v", second)
	}
	if !strings.Contains(log.String(), "X-Latin") || !strings.Contains(log.String(), "X-End") || strings.Contains(log.String(), "X-Text") {
		t.Errorf("the log says %q", log.String())
	}
}
