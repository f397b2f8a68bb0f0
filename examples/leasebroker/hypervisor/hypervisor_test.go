package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// host is a hypervisor that is called without a network.
type host struct {
	http.Handler
	t *testing.T
}

func newHost(t *testing.T, capacity int) *host {
	return &host{newHypervisor(capacity).routes(), t}
}

func (h *host) call(method, path, token, body string, want int) machine {
	h.t.Helper()
	request := httptest.NewRequestWithContext(h.t.Context(), method, path, strings.NewReader(body))
	request.Header.Set("Client-Token", token)
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	if recorder.Code != want {
		h.t.Fatalf("%s %s: %d %s, want %d", method, path, recorder.Code, recorder.Body, want)
	}
	var m machine
	if want == http.StatusOK {
		if err := json.Unmarshal(recorder.Body.Bytes(), &m); err != nil {
			h.t.Fatal(err)
		}
	}
	return m
}

func TestTokens(t *testing.T) {
	h := newHost(t, 2)
	const small = `{"name":"w","flavor":"small"}`
	first := h.call("POST", "/machines", "a", small, 200)
	if again := h.call("POST", "/machines", "a", small, 200); again != first {
		t.Errorf("the same token made %+v and %+v", first, again)
	}
	h.call("POST", "/machines", "a", `{"name":"w","flavor":"large"}`, 422)
	second := h.call("POST", "/machines", "b", small, 200)
	if second.ID == first.ID {
		t.Error("another token made no other machine")
	}
	h.call("POST", "/machines", "c", small, 409) // no capacity
	for token, boots := range map[string]int{"r": 2, "s": 2} {
		id := map[string]string{"r": first.ID, "s": second.ID}[token]
		for range 2 {
			if m := h.call("POST", "/machines/"+id+"/reboot", token, "", 200); m.Boots != boots {
				t.Errorf("%+v, want %d boots", m, boots)
			}
		}
	}
	h.call("POST", "/machines/"+first.ID+"/terminate", "t", "", 200)
	h.call("POST", "/machines/"+first.ID+"/terminate", "u", "", 200)
	h.call("POST", "/machines/"+first.ID+"/reboot", "v", "", 410)
	if m := h.call("POST", "/machines/"+first.ID+"/reboot", "r", "", 200); m.Boots != 2 || m.State != terminated {
		t.Errorf("a reboot that was done is told as %+v", m)
	}
	if m := h.call("POST", "/machines", "a", small, 200); m.ID != first.ID || m.State != terminated {
		t.Errorf("a machine that is gone is told as %+v", m)
	}
	h.call("POST", "/machines", "c", small, 200) // what was refused may succeed later
	h.call("POST", "/machines", "d", `{"name":"w","flavor":"huge"}`, 422)
	h.call("POST", "/machines/m-99999/reboot", "x", "", 404)
	h.call("POST", "/machines", "", small, 400)
	h.call("POST", "/machines", "y", `{"name":"","flavor":"small"}`, 400)
	h.call("POST", "/machines", "y", `small`, 400)
}

func TestFaultsAreChecked(t *testing.T) {
	h := newHost(t, 1)
	for fault, want := range map[string]int{
		`{"call":"create","point":"before","kind":"refuse"}`:                      204,
		`{"call":"create","point":"after","kind":"refuse"}`:                       400,
		`{"call":"stop","point":"before","kind":"cut"}`:                           400,
		`{"call":"create","point":"during","kind":"cut"}`:                         400,
		`{"call":"create","point":"before","kind":"explode"}`:                     400,
		`{"call":"create","point":"before","kind":"cut","times":1001}`:            400,
		`{"call":"create","point":"before","kind":"slow","milliseconds":9999999}`: 400,
	} {
		h.call("POST", "/faults", "", fault, want)
	}
	h.call("POST", "/machines", "a", `{"name":"w","flavor":"small"}`, 409)
	h.call("POST", "/machines", "a", `{"name":"w","flavor":"small"}`, 200)
}
