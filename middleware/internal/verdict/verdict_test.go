package verdict

import "testing"

// The numbers are those of the public packages, and the zero value decides nothing.
func TestNames(t *testing.T) {
	for number, name := range []string{"default", "store", "release", "uncertain"} {
		if got := Verdict(number).String(); got != name {
			t.Errorf("%d is %q, want %q", number, got, name)
		}
	}
	if Default != 0 || Store != 1 || Release != 2 || Uncertain != 3 || Verdict(99).String() != "default" {
		t.Error("the numbers have changed")
	}
}
