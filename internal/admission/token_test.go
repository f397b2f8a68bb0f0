package admission_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestTokenRoundTrip(t *testing.T) {
	// It begins with a letter and needs no quoting anywhere.
	form := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)
	rapid.Check(t, func(t *rapid.T) {
		token := admission.Token{Fence: rapid.Uint64().Draw(t, "fence")}
		copy(token.Attempt[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "attempt"))
		shown := token.String()
		if len(shown) != admission.TokenTextBytes || len(shown) > 64 || !form.MatchString(shown) {
			t.Fatalf("%q", shown)
		}
		got, v := admission.ParseToken("token", shown)
		if v != nil || got != token {
			t.Fatalf("%v came back as %v, %v", token, got, v)
		}
	})
}

// A text that is not to the letter what String writes is no token.
func TestTokenHasOneText(t *testing.T) {
	good := admission.Token{Fence: 7, Attempt: attempt("a")}.String()
	last := good[len(good)-1:]
	for name, text := range map[string]string{
		"empty":          "",
		"short":          good[:len(good)-1],
		"long":           good + "A",
		"padded":         good + "==",
		"space before":   " " + good[:len(good)-1],
		"line break":     good[:10] + "\n" + good[11:],
		"other alphabet": good[:10] + "+" + good[11:],
		"loose bits":     strings.TrimSuffix(good, last) + "B",
		"other version":  "Ag" + good[2:],
		"malformed":      "not-a-token",
	} {
		if token, v := admission.ParseToken("token", text); v == nil || v.Field != "token" || v.Reason != admission.InvalidArgument || token != (admission.Token{}) {
			t.Errorf("%s: %q was read as %v, %v", name, text, token, v)
		}
	}
}

// FuzzParseToken: whatever is accepted is exactly what String writes.
func FuzzParseToken(f *testing.F) {
	f.Add(admission.Token{Fence: 7, Attempt: attempt("a")}.String())
	f.Add(strings.Repeat("A", admission.TokenTextBytes))
	f.Add("AQ" + strings.Repeat("_", admission.TokenTextBytes-2))
	f.Fuzz(func(t *testing.T, text string) {
		token, v := admission.ParseToken("token", text)
		if v == nil && token.String() != text {
			t.Fatalf("%q was read, and is written as %q", text, token.String())
		}
	})
}
