package httpadmit

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/middleware/internal/key"
)

// The strings of RFC 9651's own test suite decide what a key is: here with all their lines, as
// requests bring them. How one line is read is package key's.
func TestStructuredFieldStrings(t *testing.T) {
	text, err := os.ReadFile("../internal/key/testdata/structured-fields/string.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name     string
		Raw      []string
		Expected []json.RawMessage
		MustFail bool `json:"must_fail"`
		CanFail  bool `json:"can_fail"`
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 10 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		got, err := IdempotencyKey().find(&request{http: newRequest(c.Raw...)})
		want := ""
		if !c.MustFail && !c.CanFail {
			if err := json.Unmarshal(c.Expected[0], &want); err != nil {
				t.Fatal(err)
			}
		}
		if refused := want == "" || len(want) > key.BytesMost; refused != (err != nil) || !refused && got.value != want {
			t.Errorf("%s: %q is the key %q, %v; want %q", c.Name, c.Raw, got.value, err, want)
		}
	}
}

func TestKeysOfOtherOrigin(t *testing.T) {
	find := func(source KeySource, body string, header ...string) (string, bool) {
		t.Helper()
		q := withBody(body, header...)
		key, err := source.find(q)
		return key.value, err == nil
	}
	for _, c := range []struct {
		name   string
		source KeySource
		body   string
		header []string
		want   string
		ok     bool
	}{
		{"a header", KeyFromHeader("x-github-delivery"), "", []string{"X-Github-Delivery", "72d3162e"}, "72d3162e", true},
		{"no header", KeyFromHeader("X-GitHub-Delivery"), "", nil, "", true},
		{"an empty header", KeyFromHeader("X-GitHub-Delivery"), "", []string{"X-Github-Delivery", ""}, "", false},
		{"a doubled header", KeyFromHeader("X-GitHub-Delivery"), "", []string{"X-Github-Delivery", "a", "X-Github-Delivery", "a"}, "a", false},
		{"a member", KeyFromJSON("id"), `{"id":"evt_1"}`, nil, "evt_1", true},
		{"an inner member", KeyFromJSON("event", "id"), `{"event":{"id":"evt_1"}}`, nil, "evt_1", true},
		{"no member", KeyFromJSON("id"), `{}`, nil, "", true},
		{"null", KeyFromJSON("id"), `{"id":null}`, nil, "", true},
		{"no JSON", KeyFromJSON("id"), `id=evt_1`, nil, "", true},
		{"a number", KeyFromJSON("id"), `{"id":1}`, nil, "", false},
		{"an empty member", KeyFromJSON("id"), `{"id":""}`, nil, "", false},
		{"a member twice", KeyFromJSON("id"), `{"id":"a","id":"b"}`, nil, "", false},
		{"a long member", KeyFromJSON("id"), `{"id":"` + strings.Repeat("k", 256) + `"}`, nil, "", false},
	} {
		if got, ok := find(c.source, c.body, c.header...); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

// Exact values, whatever they are written like; and nothing else is equal.
func TestDecimal(t *testing.T) {
	groups := [][]string{
		{"0", "-0", "0.0", "0e9", "0.000e-7"},
		{"1.5", "1.50", "15e-1", "0.15E+1", "150e-2", "0.0015e3"},
		{"-1.5", "-15e-1"},
		{"100", "1e2", "1E+2", "1000e-1", "100.00"},
		{"9007199254740993", "9007199254740993.0"},
		{"9007199254740992"},
		{"1e400"}, {"1e-400"}, {"1e99999999999"},
	}
	seen := map[string]int{}
	for i, group := range groups {
		for _, literal := range group {
			if at, ok := seen[decimal(literal)]; ok && at != i {
				t.Errorf("%s is the same as one of %v", literal, groups[at])
			}
			seen[decimal(literal)] = i
		}
		if n := len(slices.Compact(slices.Sorted(slices.Values(apply(group, decimal))))); n != 1 {
			t.Errorf("%v have %d values", group, n)
		}
	}
}

func apply(texts []string, f func(string) string) []string {
	var all []string
	for _, text := range texts {
		all = append(all, f(text))
	}
	return all
}
