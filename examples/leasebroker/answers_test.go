package main

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// An order is all that a body holds: what follows it is not left unread, whatever it is.
func TestABodyIsOneOrder(t *testing.T) {
	for body, good := range map[string]bool{
		`{"flavor":"small"}`: true, " {\"flavor\":\"small\"} \n": true,
		``: false, `{"flavor":"small"`: false, `{"flavor":"small"}{}`: false, `{"flavor":"small"} x`: false,
		`{"flavor":"small"}}`: false, `{"flavor":"small"}]`: false, `{"flavour":"small"}`: false,
	} {
		var order struct {
			Flavor string `json:"flavor"`
		}
		err := decode(httptest.NewRequest("POST", "/v1/workers", strings.NewReader(body)), &order)
		if good != (err == nil) || good && order.Flavor != "small" {
			t.Errorf("%s: %+v, %v", body, order, err)
		}
	}
}
