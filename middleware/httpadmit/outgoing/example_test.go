package outgoing_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

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
