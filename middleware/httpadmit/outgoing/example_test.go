package outgoing_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/middleware/httpadmit/outgoing"
)

// A client whose POSTs are keyed, and sent again with the same key when something breaks.
func Example() {
	tries := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tries++
		fmt.Println("try", tries, "with", r.Header.Get("Idempotency-Key"))
		if tries == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer server.Close()

	api := &http.Client{Transport: outgoing.New(http.DefaultTransport)}
	defer api.CloseIdleConnections()
	ctx := outgoing.ContextWithKey(context.Background(), "order-42")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := api.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	fmt.Println(answer.Status)
	// Output:
	// try 1 with "order-42"
	// try 2 with "order-42"
	// 200 OK
}

// How often, and how patiently, a request is sent again, and what names its key.
func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	api := &http.Client{Transport: outgoing.New(nil,
		outgoing.WithTries(2), outgoing.WithBackoff(10*time.Millisecond), outgoing.WithRetryAfterMost(time.Second),
		outgoing.WithKeyFunc(func(r *http.Request) string { return "invoice-7 " + r.URL.Path }),
	)}
	defer api.CloseIdleConnections()
	answer, err := api.Post(server.URL+"/v1/payments", "application/json", strings.NewReader("{}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	fmt.Println(answer.Status)
	// Output:
	// "invoice-7 /v1/payments"
	// "invoice-7 /v1/payments"
	// 503 Service Unavailable
}

// Retries of a loop that is outside of the transport: one context is one request.
func ExampleContextWithNewKey() {
	keys := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		keys[r.Header.Get("Idempotency-Key")] = true
	}))
	defer server.Close()
	api := &http.Client{Transport: outgoing.New(nil, outgoing.WithTries(1))}
	defer api.CloseIdleConnections()
	ctx := outgoing.ContextWithNewKey(context.Background())
	for range 3 {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, err := api.Do(request)
		if err != nil {
			fmt.Println(err)
			return
		}
		answer.Body.Close()
	}
	fmt.Println(len(keys), "key")
	// Output: 1 key
}
