package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func listen(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(newExchange(slog.New(slog.DiscardHandler)).handler())
	t.Cleanup(server.Close)
	return server
}

// call makes a call, and decodes its answer where there is one. status is 0 where the
// connection was cut.
func call(t *testing.T, method, url string, what, into any) (status int) {
	t.Helper()
	body, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil && response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode
}

func market(valid time.Duration) order {
	return order{ClientOrderID: "c1", Symbol: "BTC", Side: "buy", Quantity: "1", ValidUntilMS: time.Now().Add(valid).UnixMilli()}
}

// A client order id protects nobody: it can be asked for, and that is all.
func TestNothingIsDeduplicated(t *testing.T) {
	server := listen(t)
	for range 2 {
		var said reply
		if status := call(t, http.MethodPost, server.URL+"/orders", market(time.Minute), &said); status != http.StatusOK || !said.Success {
			t.Errorf("%d %+v", status, said)
		}
	}
	var fills []fill
	call(t, http.MethodGet, server.URL+"/fills", nil, &fills)
	if len(fills) != 2 || fills[0].ClientOrderID != "c1" || fills[1].ClientOrderID != "c1" {
		t.Errorf("%+v", fills)
	}
}

// An order whose validity is over is not accepted, also if it was sent before, and a
// lookup says so together with the clock.
func TestValidity(t *testing.T) {
	server := listen(t)
	for _, late := range []struct {
		valid time.Duration
		fault fault
	}{{-time.Millisecond, fault{}}, {50 * time.Millisecond, fault{AcceptAfterMS: 60}}} {
		call(t, http.MethodPut, server.URL+"/faults/btc", []fault{late.fault}, nil)
		sent := market(late.valid)
		var said reply
		call(t, http.MethodPost, server.URL+"/orders", sent, &said)
		var found lookup
		call(t, http.MethodGet, server.URL+"/orders?client_order_id=c1", nil, &found)
		if said.Success || found.Order != nil || found.NowMS < sent.ValidUntilMS {
			t.Errorf("%+v, then %+v", said, found)
		}
	}
}

func TestFaults(t *testing.T) {
	server := listen(t)
	for _, c := range []struct {
		fault  fault
		status int // 0: the connection is cut
		fills  int
	}{
		{fault{Reject: "no"}, http.StatusOK, 0},
		{fault{Lose: "request"}, 0, 0},
		{fault{Lose: "reply"}, 0, 1},
		{fault{Status: http.StatusBadGateway}, http.StatusBadGateway, 1},
		{fault{AcceptAfterMS: 5, ReplyAfterMS: 5}, http.StatusOK, 1},
	} {
		var before, after []fill
		call(t, http.MethodGet, server.URL+"/fills", nil, &before)
		if status := call(t, http.MethodPut, server.URL+"/faults/BTC", []fault{c.fault}, nil); status != http.StatusNoContent {
			t.Errorf("%+v: %d", c.fault, status)
		}
		status := call(t, http.MethodPost, server.URL+"/orders", market(time.Minute), nil)
		call(t, http.MethodGet, server.URL+"/fills", nil, &after)
		if status != c.status || len(after)-len(before) != c.fills {
			t.Errorf("%+v: %d, and %d fills", c.fault, status, len(after)-len(before))
		}
	}
	call(t, http.MethodPut, server.URL+"/faults/BTC", []fault{{Hide: true}}, nil)
	call(t, http.MethodPost, server.URL+"/orders", market(time.Minute), nil)
	if status := call(t, http.MethodGet, server.URL+"/orders?client_order_id=c1", nil, nil); status != http.StatusServiceUnavailable {
		t.Errorf("a lookup of what is hidden: %d", status)
	}
	for _, wrong := range []fault{{Lose: "all"}, {AcceptAfterMS: -1}, {ReplyAfterMS: 60_001}, {Status: 200}} {
		if status := call(t, http.MethodPut, server.URL+"/faults/BTC", []fault{wrong}, nil); status != http.StatusBadRequest {
			t.Errorf("%+v: %d", wrong, status)
		}
	}
}
