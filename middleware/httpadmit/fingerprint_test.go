package httpadmit

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newRequest(keys ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/orders", nil)
	r.Header[HeaderName] = keys
	return r
}

func withBody(body string, header ...string) *request {
	r := httptest.NewRequest(http.MethodPost, "/v1/orders?a=1", strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return &request{w: httptest.NewRecorder(), http: r, limit: 1 << 20, admit: func() error { return nil }}
}

// RFC 8785's own test data comes out byte for byte.
func TestCanonicalJSON(t *testing.T) {
	inputs, err := filepath.Glob("testdata/jcs/*.input.json")
	if err != nil || len(inputs) != 3 {
		t.Fatalf("%v, %v", inputs, err)
	}
	for _, input := range inputs {
		text, err := os.ReadFile(input)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(strings.Replace(input, ".input.", ".output.", 1))
		if err != nil {
			t.Fatal(err)
		}
		got, err := canonicalJSON(text)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n got %s\nwant %s", input, err, got, want)
		}
	}
}

// Which requests are the same, and which are not.
func TestFingerprints(t *testing.T) {
	sum := func(f Fingerprint, q *request) string {
		t.Helper()
		s, err := f.sum(q)
		if err != nil || len(s) != 32 {
			t.Fatalf("%d bytes, %v", len(s), err)
		}
		return string(s)
	}
	post := func(target, contentType, body string) *request {
		q := withBody(body, "Content-Type", contentType)
		method, path, _ := strings.Cut(target, " ")
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header = q.http.Header
		q.http = r
		return q
	}
	const js, vnd = "application/json", "application/vnd.api+json; charset=utf-8"
	fields := ChosenFields(JSONField("a"), JSONField("b").Optional(), QueryField("q").Optional(), HeaderField("X-Mode").Optional())
	for _, c := range []struct {
		name       string
		f          Fingerprint
		one, other *request
		same       bool
	}{
		{"the same", RawBody(), post("POST /a?q=1", js, "{}"), post("POST /a?q=1", js, "{}"), true},
		{"a method", RawBody(), post("POST /a", js, "{}"), post("PUT /a", js, "{}"), false},
		{"a path", RawBody(), post("POST /a", js, "{}"), post("POST /b", js, "{}"), false},
		{"an escape", RawBody(), post("POST /a%2Fb", js, "{}"), post("POST /a/b", js, "{}"), false},
		{"a spelling", RawBody(), post("POST /%61%2fb", js, "{}"), post("POST /a%2Fb", js, "{}"), true},
		{"a query", RawBody(), post("POST /a?q=1", js, "{}"), post("POST /a?q=2", js, "{}"), false},
		{"an order in a query", RawBody(), post("POST /a?p=1&q=1", js, "{}"), post("POST /a?q=1&p=1", js, "{}"), false},
		{"a type", RawBody(), post("POST /a", js, "{}"), post("POST /a", "text/plain", "{}"), false},
		{"a space", RawBody(), post("POST /a", js, "{}"), post("POST /a", js, "{ }"), false},
		{"frames", RawBody(), post("POST /a?bc", js, "{}"), post("POST /ab?c", js, "{}"), false},
		{"a body and a type", RawBody(), post("POST /a", "x", "yz"), post("POST /a", "xy", "z"), false},

		{"canonical: a space", CanonicalJSON(), post("POST /a", js, "{}"), post("POST /a", js, "{ }"), true},
		{"canonical: an order", CanonicalJSON(), post("POST /a", vnd, `{"a":1,"b":[1.0,"é"]}`), post("POST /a", vnd, `{"b":[1,"\u00e9"],"a":1e0}`), true},
		{"canonical: a value", CanonicalJSON(), post("POST /a", js, `{"a":1}`), post("POST /a", js, `{"a":2}`), false},
		{"canonical: a kind of value", CanonicalJSON(), post("POST /a", js, `{"a":1}`), post("POST /a", js, `{"a":"1"}`), false},
		{"canonical: the order of an array", CanonicalJSON(), post("POST /a", js, `[1,2]`), post("POST /a", js, `[2,1]`), false},
		{"canonical: no JSON by its type", CanonicalJSON(), post("POST /a", "text/plain", "{}"), post("POST /a", "text/plain", "{ }"), false},
		{"canonical: no JSON", CanonicalJSON(), post("POST /a", js, "{"), post("POST /a", js, "{ "), false},
		{"canonical: large numbers", CanonicalJSON(), post("POST /a", js, `{"a":9007199254740993}`), post("POST /a", js, `{"a":9007199254740992}`), false},
		{"canonical: huge numbers", CanonicalJSON(), post("POST /a", js, `{"a":1e999}`), post("POST /a", js, `{"a":2e999}`), false},
		{"canonical: a member twice", CanonicalJSON(), post("POST /a", js, `{"a":1,"a":2}`), post("POST /a", js, `{"a":2}`), false},
		{"canonical: surrogates", CanonicalJSON(), post("POST /a", js, `"\ud800"`), post("POST /a", js, `"\ud801"`), false},
		{"canonical: no UTF-8", CanonicalJSON(), post("POST /a", js, "\"\xfe\""), post("POST /a", js, "\"\xff\""), false},
		{"canonical is not raw", CanonicalJSON(), post("POST /a", js, "{}"), post("POST /a", "text/plain", "{}"), false},

		{"fields: the rest", fields, post("POST /a?t=1", js, `{"a":1.50,"t":1}`), post("POST /a?t=2", vnd, `{"t":2,"a":1.5}`), true},
		{"fields: a value", fields, post("POST /a", js, `{"a":1}`), post("POST /a", js, `{"a":2}`), false},
		{"fields: a kind", fields, post("POST /a", js, `{"a":1}`), post("POST /a", js, `{"a":"1"}`), false},
		{"fields: missing", fields, post("POST /a", js, `{"a":1}`), post("POST /a", js, `{"a":1,"b":""}`), false},
		{"fields: true", fields, post("POST /a", js, `{"a":true}`), post("POST /a", js, `{"a":"true"}`), false},
		{"fields: inside", fields, post("POST /a", js, `{"a":{"x":1,"y":[{}]}}`), post("POST /a", js, `{"a":{"y":[{}],"x":1.0}}`), true},
		{"fields: an array", fields, post("POST /a", js, `{"a":["x","y"]}`), post("POST /a", js, `{"a":["x",["y"]]}`), false},
		{"fields: an escape", fields, post("POST /a%2Fb", js, `{"a":1}`), post("POST /a/b", js, `{"a":1}`), false},
		{"fields: a spelling", fields, post("POST /%61", js, `{"a":1}`), post("POST /a", js, `{"a":1}`), true},
		{"fields: a query", fields, post("POST /a?q=1", js, `{"a":1}`), post("POST /a?q=2", js, `{"a":1}`), false},
		{"fields: a query's values", fields, post("POST /a?q=1&q=2", js, `{"a":1}`), post("POST /a?q=12", js, `{"a":1}`), false},
	} {
		if got := sum(c.f, c.one) == sum(c.f, c.other); got != c.same {
			t.Errorf("%s: the same: %v, want %v", c.name, got, c.same)
		}
	}
	if _, err := fields.sum(post("POST /a", js, "{}")); err == nil {
		t.Error("a missing field is not refused")
	}
	if sum(RawBody(), post("POST /a", js, "{}")) == sum(CanonicalJSON(), post("POST /a", js, "{}")) {
		t.Error("two kinds of fingerprints meet")
	}
}

// The operation is what the caller asked for, wherever the handler is mounted, and fits.
func TestOperation(t *testing.T) {
	var got string
	handler := http.StripPrefix("/v1", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = operation(r) }))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/workers/w7/reboot?now", nil))
	if got != "POST /v1/workers/w7/reboot" {
		t.Errorf("operation %q", got)
	}
	one := operation(httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("ü", 200)+"1", nil))
	other := operation(httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("ü", 200)+"2", nil))
	if one == other || len(one) > 255 || len(one) < 200 || !strings.HasPrefix(one, "POST /%C3%BC") {
		t.Errorf("operations %q, %q", one, other)
	}
}

// Paths are one operation where they are two spellings of one resource, as RFC 3986 has it
// (section 6.2.2), and only there.
func TestOperationsOfEscapedPaths(t *testing.T) {
	for want, spellings := range map[string][]string{
		// A path that needs no escapes is what it is.
		"/":                               {"/"},
		"/v1/workers/w7/reboot":           {"/v1/workers/w7/reboot", "/v1/workers/%777/%72eboot"},
		"/-._~AZaz09":                     {"/-._~AZaz09", "/%2D%2e%5F%7e%41Z%61z%30%39"},
		"/a!$&'()*+,;=:@b":                {"/a!$&'()*+,;=:@b"},
		"//a//":                           {"//a//"},
		"/w/x/reboot":                     {"/w/x/reboot"},
		"/w/x%2Freboot":                   {"/w/x%2Freboot", "/w/x%2freboot"},
		"/w/x%252Freboot":                 {"/w/x%252Freboot"},
		"/a%3Bb":                          {"/a%3Bb", "/a%3bb"},
		"/a;b":                            {"/a;b"},
		"/a%20b":                          {"/a%20b"},
		"/a%3Fb":                          {"/a%3Fb?c", "/a%3fb"},
		"/%C3%BC!":                        {"/%C3%BC!", "/%c3%bc!", "/ü!"},
		"/%FF%00":                         {"/%FF%00", "/%ff%00"},
		"/%7B%7D%7C%22%5B%5D%5E%60%3C%3E": {"/{}|\"[]^`<>", "/%7b%7d%7c%22%5b%5d%5e%60%3c%3e"},
	} {
		for _, spelling := range spellings {
			if got := operation(httptest.NewRequest(http.MethodPost, spelling, nil)); got != "POST "+want {
				t.Errorf("%s is the operation %q, want %q", spelling, got, "POST "+want)
			}
		}
	}
	// What was never on a wire has the path that it would have there.
	if got := operation(&http.Request{Method: http.MethodPut, URL: &url.URL{Path: "/a b/ü%"}}); got != "PUT /a%20b/%C3%BC%25" {
		t.Errorf("operation %q", got)
	}
}
