package httpadmit

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// The strings of RFC 9651's own test suite decide what a key is.
func TestStructuredFieldStrings(t *testing.T) {
	text, err := os.ReadFile("testdata/structured-fields/string.json")
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
		var got string
		var err error
		if len(c.Raw) == 1 {
			got, err = parseKey(c.Raw[0])
		} else {
			_, err = IdempotencyKey().find(&request{http: newRequest(c.Raw...)})
		}
		if c.MustFail || c.CanFail {
			if err == nil {
				t.Errorf("%s: %q is the key %q", c.Name, c.Raw, got)
			}
			continue
		}
		var want string
		if err := json.Unmarshal(c.Expected[0], &want); err != nil {
			t.Fatal(err)
		}
		switch {
		case want == "", len(want) > keyBytesMost:
			// It is a string, and no key.
			if err == nil || got != want {
				t.Errorf("%s: %q, %v; want %q, refused", c.Name, got, err, want)
			}
		case err != nil || got != want:
			t.Errorf("%s: %q, %v; want %q", c.Name, got, err, want)
		}
	}
}

func TestKeys(t *testing.T) {
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324":   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		" \t abc \t":                             "abc",
		`"with a space"`:                         "with a space",
		`"a \"quote\" and a \\"`:                 `a "quote" and a \`,
		`"k";p=1;q`:                              "k", // unknown parameters are ignored
		"order:42/a+b=c@d":                       "order:42/a+b=c@d",
		"123":                                    "123",
		long:                                     long,
		`"` + long + `"`:                         long,
		`"` + strings.Repeat(`\"`, 255) + `"`:    strings.Repeat(`"`, 255),
	} {
		if got, err := parseKey(value); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
	for _, value := range []string{
		"", `""`, "   ", long + "k", `"` + long + `k"`, "naïve", `"naïve"`, "\xff", "a b", "a,b", `"a", "b"`, `"a"b`, "a\"b",
		`"a`, `a"`, "'a'", ":YWJj:", "?1", "a;p=1", "(a b)", "a\x00", "a\x7f", `"a\x"`, "“a”", "<a>", "`a`", "{a}",
	} {
		if key, err := parseKey(value); err == nil {
			t.Errorf("%q is the key %q", value, key)
		}
	}
}

// Whatever is taken in quotes is a string by the library, and both forms of it are the
// same key.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"abc", `"abc"`, `"a\"b"`, "a,b", `"a";p`, "", ":YQ==:", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := parseKey(value)
		if err != nil {
			return
		}
		if key == "" || len(key) > keyBytesMost || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q is the key %q", value, key)
		}
		quoted, err := httpsfv.Marshal(httpsfv.NewItem(key))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseKey(quoted); err != nil || again != key {
			t.Fatalf("%q is the key %q, and %q is %q (%v)", value, key, quoted, again, err)
		}
	})
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
