package oneline

import (
	"errors"
	"strings"
	"testing"
	"unicode"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"as it is":        "as it is",
		" spaces around ": "spaces around",
		errors.Join(errors.New("a"), errors.New("b")).Error(): "a; b",
		"a\r\n\r\nb\n":           "a; b",
		"a\x1b[31mb":             `a\x1b[31mb`,
		"a\u009b31m\u202eb\tc":   `a\u009b31m\u202eb\tc`,
		"it's 'quoted' \xff\xfe": "it's 'quoted' \uFFFD\uFFFD",
	} {
		if got := Of(text); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// Whatever the text is, a terminal shows the line and does nothing else, and what is one stays it.
func FuzzOf(f *testing.F) {
	f.Add("a\x1b[0m\nb")
	f.Fuzz(func(t *testing.T, text string) {
		line := Of(text)
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || Of(line) != line {
			t.Errorf("%q became %q, and then %q", text, line, Of(line))
		}
	})
}
