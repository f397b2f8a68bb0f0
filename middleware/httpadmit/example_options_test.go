package httpadmit_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// What a payment endpoint usually wants: a key on every request; nobody pays twice because
// somebody fell silent; a quick no when the coordinator is away.
func ExampleNew() {
	account := fresh()
	guard := httpadmit.New(example(),
		httpadmit.WithPrincipal(func(*http.Request) string { return account }), // from authentication, outside
		httpadmit.WithKeyRequired(),
		httpadmit.WithOnLapse(client.Hold),             // what ended in silence is looked at first
		httpadmit.WithPendingTTL(2*time.Minute),        // how long a handler may take
		httpadmit.WithRetention(7*24*time.Hour),        // how long its answer is kept
		httpadmit.WithReserveTimeout(2*time.Second),    // how long the coordinator is asked
		httpadmit.WithSettleWait(5*time.Second),        // how long a caller waits for the recording
		httpadmit.WithHandlerTimeout(30*time.Second),   // how long it waits for the handler
		httpadmit.WithOwner("payments-1"),              // for people
		httpadmit.WithFingerprint(httpadmit.RawBody()), // as by default
		httpadmit.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
	)
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))

	call(handler, `{"amount":5}`, "Idempotency-Key", "k")
	call(handler, `{"amount":5}`, "Idempotency-Key", "k")
	call(handler, `{"amount":5}`)
	// Output:
	// 200 paid
	// 200 paid (replayed)
	// 400 IDEMPOTENCY_KEY_MISSING
}

// What names a record, besides the key and who asks: the tenant and the operation. The same key
// for another operation is another request.
func ExampleWithOperation() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithNamespace("desk-7"),
		httpadmit.WithOperation(func(r *http.Request) string { return "trade:" + r.Header.Get("X-Venue") }),
		httpadmit.WithMethods(http.MethodPost)) // by default all that may change something
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, httpadmit.Reservation(r.Context()).Identity().Operation)
	}))

	call(handler, `{}`, "Idempotency-Key", "k", "X-Venue", "binance")
	call(handler, `{}`, "Idempotency-Key", "k", "X-Venue", "kraken")
	call(handler, `{}`, "Idempotency-Key", "k", "X-Venue", "binance")
	// Output:
	// 200 trade:binance
	// 200 trade:kraken
	// 200 trade:binance (replayed)
}

// Bodies are bounded. A response over its limit reaches its first caller whole.
func ExampleWithResponseLimit() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithBodyLimit(10), httpadmit.WithResponseLimit(10))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a long answer") }))

	call(handler, `{"more":"than ten bytes"}`, "Idempotency-Key", "a")
	call(handler, `{}`, "Idempotency-Key", "b")
	call(handler, `{}`, "Idempotency-Key", "b")
	// Output:
	// 413 BODY_TOO_LARGE
	// 200 a long answer
	// 410 RESPONSE_NOT_STORED
}

// Headers that belong to one caller only.
func ExampleWithNeverStored() {
	guard := httpadmit.New(example(), caller(fresh()),
		httpadmit.WithNeverStored(append(httpadmit.NeverStored(), "X-Csrf-Token")...))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Csrf-Token", "for the first caller")
		fmt.Fprint(w, "done")
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k") // without the token
	// Output:
	// 200 done
	// 200 done (replayed)
}

// Answers of the middleware in an API's own manner; their codes stay.
func ExampleWithDocs() {
	guard := httpadmit.New(example(), caller(""), httpadmit.WithDocs("https://docs.example/idempotency"),
		httpadmit.WithChallenge(`Basic realm="orders"`), httpadmit.WithStatus(httpadmit.CodePrincipalRequired, http.StatusForbidden),
		httpadmit.WithRetryAfter(5*time.Second))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))

	call(handler, `{}`, "Idempotency-Key", "k")
	// Output: 403 PRINCIPAL_REQUIRED
}

// Webhooks of a sender who does not authenticate: all share their keys.
func ExampleWithAnonymous() {
	guard := httpadmit.New(example(), httpadmit.WithAnonymous(), httpadmit.WithKeys(httpadmit.KeyFromHeader("X-GitHub-Delivery")))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "noted") }))

	delivery := fresh()
	call(handler, `{}`, "X-GitHub-Delivery", delivery)
	call(handler, `{}`, "X-GitHub-Delivery", delivery)
	// Output:
	// 200 noted
	// 200 noted (replayed)
}

// Fields of every kind.
func ExampleFieldFunc() {
	side := httpadmit.FieldFunc("side", func(_ *http.Request, body []byte) (string, bool) {
		form, err := url.ParseQuery(string(body))
		return form.Get("side"), err == nil && form.Has("side")
	})
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithKeys(httpadmit.AutomaticKey(time.Minute,
		side, httpadmit.HeaderField("X-Account"), httpadmit.QueryField("desk").Optional())))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "placed") }))

	call(handler, `side=buy&at=1`, "X-Account", "7")
	call(handler, `side=buy&at=2`, "X-Account", "7")
	call(handler, `side=sell`, "X-Account", "7")
	call(handler, `at=3`, "X-Account", "7")
	// Output:
	// 200 placed
	// 200 placed (replayed)
	// 200 placed
	// 400 IDEMPOTENCY_KEY_INVALID
}

// Work that may take longer than its window is renewed. It stops when its caller has gone, and
// says what that means.
func ExampleWithKeepAlive() {
	guard := httpadmit.New(example(), caller(fresh()), httpadmit.WithPendingTTL(300*time.Millisecond),
		httpadmit.WithKeepAlive(), httpadmit.WithCallerCancel())
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(time.Second): // the work
			fmt.Fprint(w, "done")
		case <-r.Context().Done():
			httpadmit.MarkUncertain(r.Context())
		}
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 200 done
	// 200 done (replayed)
}

// The bank was asked, and gave no answer. Nobody asks it again before the reservation lapses.
func ExampleMarkUncertain() {
	guard := httpadmit.New(example(), caller(fresh()))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpadmit.MarkUncertain(r.Context())
		http.Error(w, "the bank gave no answer", http.StatusBadGateway)
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 502 the bank gave no answer
	// 409 IDEMPOTENCY_IN_FLIGHT
}

// It is done, and what is wrong comes after: the answer stays, and nobody does it again.
func ExampleMarkDone() {
	guard := httpadmit.New(example(), caller(fresh()))
	handler := guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpadmit.MarkDone(r.Context()) // paid
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "paid, but the receipt could not be printed")
	}))

	call(handler, `{}`, "Idempotency-Key", "k")
	call(handler, `{}`, "Idempotency-Key", "k")
	// Output:
	// 500 paid, but the receipt could not be printed
	// 500 paid, but the receipt could not be printed (replayed)
}
