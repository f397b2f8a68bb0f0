package lease

import (
	"fmt"
	"strings"
	"testing"
)

// A record is named whole, and nobody who chooses a part of its name writes a line with it.
func TestNamed(t *testing.T) {
	for _, row := range []struct {
		of   [4]string
		want string
	}{
		{[4]string{"", "", "", "k"}, "[key k]"},
		{[4]string{"desk", "me", "POST /hold", "a b"}, "[namespace desk principal me operation POST /hold key a b]"},
		{[4]string{"", "", "op", "a\nlevel=ERROR"}, `[operation op key "a\nlevel=ERROR"]`},
		{[4]string{"", "", "op", `"k"`}, `[operation op key "\"k\""]`},
		{[4]string{"", "", "op", "\x1b[31m\u202e\xff"}, `[operation op key "\x1b[31m\u202e\xff"]`},
		{[4]string{"", "", "", "naïve 日本"}, "[key naïve 日本]"},
		{[4]string{"", "", "", strings.Repeat("k", 255)}, "[key " + strings.Repeat("k", 255) + "]"},
		{[4]string{"", "", "", strings.Repeat("k", 1<<20)}, `[key "` + strings.Repeat("k", 255) + `"…]`},
		{[4]string{"", "", "", strings.Repeat("日", 100)}, `[key "` + strings.Repeat("日", 85) + `"…]`},
		{[4]string{"", "", "", "x" + strings.Repeat("日", 100)}, `[key "x` + strings.Repeat("日", 84) + `"…]`},
		{[4]string{"", "", "", strings.Repeat("\x00", 300)}, `[key "` + strings.Repeat(`\x00`, 255) + `"…]`},
	} {
		if got := fmt.Sprint(Named(row.of[0], row.of[1], row.of[2], row.of[3])); got != row.want {
			t.Errorf("%q: %s, want %s", row.of, got, row.want)
		}
	}
}
