package process

import (
	"slices"
	"strings"
	"testing"
)

// What is given once more comes in place of what was, and nothing else is lost.
func TestFlagsInPlaceOfOthers(t *testing.T) {
	for _, c := range [][3]string{
		{"--a 1 --b 2", "", "--a 1 --b 2"},
		{"--a 1 --b 2", "--a 3", "--b 2"},
		{"--a 1 --b 2", "--b 3 --c", "--a 1"},
		{"--on --a 1 --off", "--a 3", "--on --off"},
		{"--on --a 1 --off", "--on --off", "--a 1"},
		{"-D data -h host", "--x", "-D data -h host"},
	} {
		left := without(strings.Fields(c[0]), strings.Fields(c[1]))
		if !slices.Equal(left, strings.Fields(c[2])) {
			t.Errorf("%q without %q is %q, want %q", c[0], c[1], left, c[2])
		}
	}
}
