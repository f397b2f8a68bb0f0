package key

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The strings of RFC 9651's own test suite decide what a key is: one line as it is read, and
// several as the guards join none.
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
	lines := 0
	for _, c := range cases {
		if len(c.Raw) != 1 {
			continue // the guards refuse them
		}
		lines++
		got, err := Parse(c.Raw[0], "it")
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
		// One that is empty or too long is a string, and no key.
		if got != want || (err == nil) != (Check(want) == nil) {
			t.Errorf("%s: %q, %v; want %q", c.Name, got, err, want)
		}
	}
	if lines < 10 {
		t.Errorf("only %d cases of one line", lines)
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
		if got, err := Parse(value, "it"); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
	for _, value := range []string{
		"", `""`, "   ", long + "k", `"` + long + `k"`, "naïve", `"naïve"`, "\xff", "a b", "a,b", `"a", "b"`, `"a"b`, "a\"b",
		`"a`, `a"`, "'a'", ":YWJj:", "?1", "a;p=1", "(a b)", "a\x00", "a\x7f", `"a\x"`, "“a”", "<a>", "`a`", "{a}",
	} {
		if key, err := Parse(value, "it"); err == nil {
			t.Errorf("%q is the key %q", value, key)
		}
	}
}

// What a caller's half sends is read as the same key, whatever it is made of; what it refuses
// would be refused.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"abc", `"abc"`, `"a\"b"`, "a,b", `"a";p`, "", ":YQ==:", "\xff", " ", "käse", strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if read, err := Parse(text, "it"); err == nil {
			if Check(read) != nil || strings.ContainsFunc(read, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Fatalf("%q is the key %q", text, read)
			}
			back(t, read)
		}
		if quoted, err := Quote(text); err == nil {
			back(t, text)
		} else if encoded, err := Encode(text); err == nil || quoted != "" || encoded != "" {
			t.Fatalf("%q cannot be quoted, and is sent as %q", text, encoded)
		}
	})
}

// back checks that both ways to send a key are read as that key.
func back(t *testing.T, key string) {
	t.Helper()
	for _, write := range []func(string) (string, error){Quote, Encode} {
		sent, err := write(key)
		if err != nil {
			t.Fatalf("%q cannot be sent: %v", key, err)
		}
		if again, err := Parse(sent, "it"); err != nil || again != key {
			t.Fatalf("%q is sent as %q and read as %q (%v)", key, sent, again, err)
		}
	}
}

// Keys of every origin: what the contract takes.
func TestCheck(t *testing.T) {
	for key, ok := range map[string]bool{
		"k": true, " ": true, "käse": true, "日本": true, strings.Repeat("k", 255): true, "\x00": true,
		"": false, strings.Repeat("k", 256): false, "a\xff": false,
	} {
		if err := Check(key); (err == nil) != ok {
			t.Errorf("%q: %v", key, err)
		}
		if err := Check(key); err != nil && key != "" && strings.Contains(err.Error(), key) {
			t.Errorf("%v shows the key", err)
		}
	}
}

func TestNew(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		key := New()
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(key) || seen[key] {
			t.Fatalf("%q is no new UUID of version 4", key)
		}
		seen[key] = true
		if sent, err := Encode(key); err != nil || sent != key {
			t.Fatalf("%q is sent as %q, %v", key, sent, err)
		}
	}
}
