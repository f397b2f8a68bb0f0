package httpadmit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// example returns a client of the node that the examples run against.
func example() *client.Client { return shared.start() }

// call sends a request to a handler and prints its answer.
func call(handler http.Handler, body string, header ...string) {
	r := httptest.NewRequest(http.MethodPost, "/v1/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	text := w.Body.String()
	if w.Header().Get("Content-Type") == "application/problem+json" {
		text = answered{body: text}.code()
	}
	replayed := ""
	if w.Header().Get("Idempotent-Replayed") == "true" {
		replayed = " (replayed)"
	}
	fmt.Println(w.Code, strings.TrimSpace(text)+replayed)
}

// An endpoint that makes an order once for each key.
func Example() {
	coordinator := example() // client.Dial([]string{"127.0.0.1:7420"})
	account := fresh()
	accountOf := func(*http.Request) string { return account }

	orders := 0
	placeOrder := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", orders)
	})
	guard := httpadmit.New(coordinator, httpadmit.WithPrincipal(accountOf), httpadmit.WithKeyRequired())
	handler := guard(placeOrder)

	call(handler, `{"item":"tea"}`, "Idempotency-Key", `"8e03978e"`)
	call(handler, `{"item":"tea"}`, "Idempotency-Key", `"8e03978e"`)
	call(handler, `{"item":"milk"}`, "Idempotency-Key", `"8e03978e"`)
	call(handler, `{"item":"milk"}`)
	// Output:
	// 201 order 1
	// 201 order 1 (replayed)
	// 422 IDEMPOTENCY_KEY_REUSED
	// 400 IDEMPOTENCY_KEY_MISSING
}

// Alerts of a chart service have no key: the fields that make two of them one do.
func ExampleAutomaticKey() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithKeys(
		httpadmit.IdempotencyKey(), // a caller's own key comes first
		httpadmit.AutomaticKey(time.Minute,
			httpadmit.JSONField("exchange"), httpadmit.JSONField("symbol"), httpadmit.JSONField("action"),
			httpadmit.JSONField("quantity"), httpadmit.JSONField("mode")),
	))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ordered") }))

	call(handler, `{"exchange":"binance","symbol":"BTCUSDT","action":"buy","quantity":1.5,"mode":"live","at":"10:59:59"}`)
	call(handler, `{"exchange":"binance","symbol":"BTCUSDT","action":"buy","quantity":1.50,"mode":"live","at":"11:00:01"}`)
	call(handler, `{"exchange":"binance","symbol":"BTCUSDT","action":"buy","quantity":1.5,"mode":"test","at":"11:00:01"}`)
	call(handler, `{"exchange":"binance"}`)
	// Output:
	// 200 ordered
	// 200 ordered (replayed)
	// 200 ordered
	// 400 IDEMPOTENCY_KEY_INVALID
}

// The simpler form, whose buckets are cut by the clock.
func ExampleBucketKey() {
	source := httpadmit.BucketKey(24*time.Hour, httpadmit.JSONField("report"))
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithKeys(source), httpadmit.WithRetention(48*time.Hour))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "sent") }))
	call(handler, `{"report":"daily"}`)
	// Output: 200 sent
}

// Keys that the sender puts elsewhere.
func ExampleWithKeys() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithKeyRequired(), httpadmit.WithKeys(
		httpadmit.KeyFromHeader("X-GitHub-Delivery"),
		httpadmit.KeyFromJSON("id"), // Stripe
		httpadmit.KeyFunc(func(r *http.Request, _ []byte) (string, error) { return r.URL.Query().Get("ref"), nil }),
	))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "noted") }))

	call(handler, `{"id":"evt_1"}`)
	call(handler, `{"id":"evt_1"}`)
	call(handler, `{}`, "X-GitHub-Delivery", "72d3162e")
	call(handler, `{}`)
	// Output:
	// 200 noted
	// 200 noted (replayed)
	// 200 noted
	// 400 IDEMPOTENCY_KEY_MISSING
}

// A client that writes the same JSON in another way on a retry.
func ExampleCanonicalJSON() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithFingerprint(httpadmit.CanonicalJSON()))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))

	call(handler, `{"item":"tea","count":1}`, "Idempotency-Key", "k")
	call(handler, `{ "count": 1.0, "item": "tea" }`, "Idempotency-Key", "k")
	call(handler, `{ "count": 2, "item": "tea" }`, "Idempotency-Key", "k")
	// Output:
	// 200 done
	// 200 done (replayed)
	// 422 IDEMPOTENCY_KEY_REUSED
}

// A sender that changes what does not matter between two deliveries.
func ExampleChosenFields() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithKeys(httpadmit.KeyFromJSON("id")),
		httpadmit.WithFingerprint(httpadmit.ChosenFields(httpadmit.JSONField("type"), httpadmit.JSONField("data"))))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "noted") }))

	call(handler, `{"id":"evt_1","type":"paid","data":{"amount":5},"pending_webhooks":2}`)
	call(handler, `{"id":"evt_1","type":"paid","data":{"amount":5},"pending_webhooks":1}`)
	// Output:
	// 200 noted
	// 200 noted (replayed)
}

// An endpoint that says with a 200 that it failed.
func ExampleSoftFailure() {
	tries := 0
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithClassifier(httpadmit.SoftFailure("success")))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"success": %v}`, tries > 1)
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 200 {"success": false}
	// 200 {"success": true}
	// 200 {"success": true} (replayed)
}

// An order whose outcome is unknown is not placed again. What certainly did not happen is
// said to be so.
func ExampleMarkNotApplied() {
	errRefused, errSilent := errors.New("refused"), errors.New("no answer")
	exchange := func(body string) error {
		if strings.Contains(body, "silent") {
			return errSilent
		}
		return errRefused
	}
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithOnLapse(client.Hold))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		err := exchange(string(body))
		if errors.Is(err, errRefused) {
			httpadmit.MarkNotApplied(r.Context())
		}
		http.Error(w, err.Error(), http.StatusBadGateway)
	}))

	call(handler, `{"order":"bad"}`, "Idempotency-Key", "a")
	call(handler, `{"order":"bad"}`, "Idempotency-Key", "a")
	call(handler, `{"order":"silent"}`, "Idempotency-Key", "b")
	call(handler, `{"order":"silent"}`, "Idempotency-Key", "b")
	// Output:
	// 502 refused
	// 502 refused
	// 502 no answer
	// 409 IDEMPOTENCY_IN_FLIGHT
}

// Side effects downstream are keyed by derived keys: every attempt derives the same ones.
func ExampleReservation() {
	guard := httpadmit.New(example(), caller(fresh()))
	volumes := map[string]bool{}
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reservation := httpadmit.Reservation(r.Context())
		volumes[reservation.Derive("volume")] = true // created, if it is not there yet
		if reservation.Attempt() == 1 {
			w.WriteHeader(http.StatusServiceUnavailable) // and something else failed
		}
		fmt.Fprint(w, len(volumes), " volume")
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 503 1 volume
	// 200 1 volume
}

// A handler that takes too long goes on, and a retry gets its answer.
func ExampleWithHandlerTimeout() {
	leave := make(chan struct{})
	guard := httpadmit.New(example(), caller(fresh()),
		httpadmit.WithHandlerTimeout(20*time.Millisecond), httpadmit.WithWait(time.Minute))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-leave
		fmt.Fprint(w, "done")
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	close(leave)
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 503 HANDLER_TIMEOUT
	// 200 done (replayed)
}

// An API whose callers expect another status for a key that was used otherwise.
func ExampleWithStatus() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithStatus(httpadmit.CodeMismatch, http.StatusConflict))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))

	call(handler, `{"a":1}`, "Idempotency-Key", "k")
	call(handler, `{"a":2}`, "Idempotency-Key", "k")
	// Output:
	// 200 done
	// 409 IDEMPOTENCY_KEY_REUSED
}

// A coordinator that is away: keyed requests are refused, not waved through.
func ExampleNew_away() {
	away, err := client.Dial([]string{"127.0.0.1:1"}, client.WithCallTimeout(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer away.Close()
	guard := httpadmit.New(away, caller(fresh()))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`) // no key: not guarded
	// Output:
	// 503 IDEMPOTENCY_UNAVAILABLE
	// 200 done
}
