package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// scripted is an exchange that answers a submission as it is told, and counts them. Its
// clock is an hour behind.
type scripted struct {
	submit http.HandlerFunc
	book   bool // whether lookups find the order

	mu     sync.Mutex
	orders []order
}

func (s *scripted) now() int64 { return time.Now().Add(-time.Hour).UnixMilli() }

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/time":
		_ = json.NewEncoder(w).Encode(map[string]any{"now_ms": s.now()})
	case r.Method == http.MethodGet:
		found := map[string]any{"now_ms": s.now()}
		if s.book {
			found["order"] = fill{OrderID: 7, ClientOrderID: r.URL.Query().Get("client_order_id")}
		}
		_ = json.NewEncoder(w).Encode(found)
	default:
		var o order
		_ = json.NewDecoder(r.Body).Decode(&o)
		s.mu.Lock()
		s.orders = append(s.orders, o)
		s.mu.Unlock()
		s.submit(w, r)
	}
}

func (s *scripted) submitted() []order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.orders)
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/orders")
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}
}

// Whatever the exchange replies, an order is submitted once, and only a plain word is
// taken for one.
func TestPlace(t *testing.T) {
	const validFor, lag = 300 * time.Millisecond, 50 * time.Millisecond
	silent := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, c := range []struct {
		name      string
		submit    http.HandlerFunc
		book      bool
		remaining time.Duration
		want      outcome
		submitted int
	}{
		{"yes", says(200, `{"success":true,"order":{"order_id":7,"client_order_id":"c1"}}`), false, time.Minute, filled, 1},
		{"no", says(200, `{"success":false,"error":"no margin"}`), false, time.Minute, rejected, 1},
		{"silence, and it has it", silent, true, time.Minute, filled, 1},
		{"silence, and it does not have it", silent, false, time.Minute, notPlaced, 1},
		{"a yes to another one", says(200, `{"success":true,"order":{"order_id":8,"client_order_id":"c2"}}`), true, time.Minute, filled, 1},
		{"a yes without an order", says(200, `{"success":true}`), true, time.Minute, filled, 1},
		{"neither yes nor no", says(200, `{"error":"no margin"}`), true, time.Minute, filled, 1},
		{"half a no", says(200, `{"success":false`), true, time.Minute, filled, 1},
		{"a no in an error", says(400, `{"success":false,"error":"no margin"}`), true, time.Minute, filled, 1},
		{"an error", says(503, ``), true, time.Minute, filled, 1},
		{"elsewhere", says(307, ``), true, time.Minute, filled, 1},
		{"elsewhere, for good", says(308, ``), false, time.Minute, notPlaced, 1},
		{"too late to submit", silent, false, 2*validFor + lag - 1, notPlaced, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			exchange := &scripted{submit: c.submit, book: c.book}
			server := httptest.NewServer(exchange)
			defer server.Close()
			v := newVenue(server.URL, validFor, lag)
			defer v.http.CloseIdleConnections()
			before := exchange.now()
			got := v.place(t.Context(), order{ClientOrderID: "c1"}, func() time.Duration { return c.remaining })
			if got.outcome != c.want || c.want == filled && got.fill != (fill{OrderID: 7, ClientOrderID: "c1"}) {
				t.Errorf("%v %+v %v", got.outcome, got.fill, got.err)
			}
			submitted := exchange.submitted()
			if len(submitted) != c.submitted {
				t.Errorf("submitted %d times", len(submitted))
			}
			for _, o := range submitted {
				if first, last := before+validFor.Milliseconds(), exchange.now()+validFor.Milliseconds(); o.ValidUntilMS < first || o.ValidUntilMS > last {
					t.Errorf("valid until %d on the exchange's clock, not %d to %d", o.ValidUntilMS, first, last)
				}
			}
		})
	}
}

// A lookup that shows another order, or no time, is no answer.
func TestFind(t *testing.T) {
	for _, text := range []string{`{"now_ms":1000,"order":{"client_order_id":"c2"}}`, `{"order":{"client_order_id":"c1"}}`, `{"now_ms":1000`, `[]`} {
		server := httptest.NewServer(says(200, text))
		v := newVenue(server.URL, time.Second, 0)
		if found, now, err := v.find(t.Context(), "c1"); err == nil {
			t.Errorf("%s: %+v at %d", text, found, now)
		}
		v.http.CloseIdleConnections()
		server.Close()
	}
}

// What cannot be found out while the reservation lasts is unknown, and nothing else.
func TestPlaceUnknown(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/time":
			_, _ = fmt.Fprint(w, `{"now_ms":1000}`)
		case r.Method == http.MethodPost:
			panic(http.ErrAbortHandler)
		default:
			_, _ = fmt.Fprint(w, `{"now_ms":1001}`) // its clock stands nearly still
			end()
		}
	})
	server.Start()
	defer server.Close()
	v := newVenue(server.URL, time.Second, 0)
	defer v.http.CloseIdleConnections()
	if got := v.place(ctx, order{}, func() time.Duration { return time.Minute }); got.outcome != unknown {
		t.Errorf("%v %v", got.outcome, got.err)
	}
}

// An exchange that does not say what time it is gets no order.
func TestPlaceWithoutAClock(t *testing.T) {
	server := httptest.NewServer(says(200, `{}`))
	defer server.Close()
	v := newVenue(server.URL, time.Second, 0)
	defer v.http.CloseIdleConnections()
	if got := v.place(t.Context(), order{}, func() time.Duration { return time.Minute }); got.outcome != notPlaced {
		t.Errorf("%v %v", got.outcome, got.err)
	}
}
