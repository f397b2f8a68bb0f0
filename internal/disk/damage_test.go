package disk

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// What to do is said once, at the end of one line, however often it is asked for, and what the
// error is can be told as before.
func TestAdvice(t *testing.T) {
	if err := Advise(nil); err != nil {
		t.Errorf("%v about nothing", err)
	}
	cause := errors.New("a fault in Go's words")
	found := fmt.Errorf("file f is damaged: %w", Unreadable{Cause: cause})
	err := Advise(fmt.Errorf("d: %w", Advise(found)))
	if !errors.Is(err, cause) || strings.Count(err.Error(), Advice) != 1 || strings.Contains(err.Error(), "Go's") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if want := "file f is damaged: " + (Unreadable{}).Error() + ": " + Advice; Advise(found).Error() != want {
		t.Errorf("%q, want %q", Advise(found), want)
	}
}
