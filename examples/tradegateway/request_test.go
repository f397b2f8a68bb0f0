package main

import (
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestParseAlert(t *testing.T) {
	good := alertOf("BTCUSDT", "buy", "1.5", "live")
	a, err := parseAlert([]byte(good))
	if err != nil || a != (alert{"sim", "live", "BTCUSDT", "buy", "1.5"}) || a.venue() != "sim:live" {
		t.Errorf("%+v, %v", a, err)
	}
	for _, change := range [][2]string{
		{`"buy"`, `"hold"`}, {`"buy"`, `"Buy"`}, {`"buy"`, `"\u0062uy"`}, {`"buy"`, `null`}, {`"action"`, `"Action"`},
		{`1.5`, `"1.5"`}, {`1.5`, `0`}, {`1.5`, `0.00`}, {`1.5`, `-1`}, {`1.5`, `1e5`}, {`1.5`, `1000000000000000`}, {`1.5`, `[1]`},
		{`"live"`, `"paper"`}, {`"BTCUSDT"`, `""`}, {`"BTCUSDT"`, `"btcusdt"`}, {`"BTCUSDT"`, `"A` + strings.Repeat("A", 32) + `"`},
		{`"sim"`, `"sim:live"`}, {`{`, `[{`},
	} {
		body := strings.Replace(good, change[0], change[1], 1)
		if a, err := parseAlert([]byte(body)); err == nil {
			t.Errorf("%s is taken for %+v", body, a)
		}
	}
}

// A body that does not arrive is refused: no answer by default is a 200.
func TestBodyUnreadable(t *testing.T) {
	g := &gateway{accounts: map[[sha256.Size]byte]string{sha256.Sum256([]byte("a-secret")): "alice"}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/alerts", iotest.ErrReader(io.ErrUnexpectedEOF))
	r.Header.Set("Authorization", "Bearer a-secret")
	w := httptest.NewRecorder()
	g.identified(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it goes on") })).ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// What is over the bound is refused, and the place of what has ended is free again.
func TestBounded(t *testing.T) {
	entered, leave := make(chan bool), make(chan bool)
	handler := bounded(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- true
		<-leave
	}))
	serve := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/alerts", nil))
		return w
	}
	for range 2 { // the place is free again
		var first sync.WaitGroup
		first.Go(func() { serve() })
		<-entered
		if w := serve(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
			t.Errorf("one too many: %d", w.Code)
		}
		leave <- true
		first.Wait()
	}
}
