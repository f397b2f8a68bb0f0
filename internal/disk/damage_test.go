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

// Several shards of a directory are damaged, and there is one thing to do.
func TestAdviceOnSeveralIsSaidOnce(t *testing.T) {
	cause := errors.New("cause")
	found := func(shard string) error { return Advise(fmt.Errorf("shard %s: %w", shard, cause)) }
	lost := errors.New("shards/0002 is missing: " + Advice) // as some say it
	for want, err := range map[string]error{
		"shard 0: cause\nshard 1: cause\nshards/0002 is missing: " + Advice: errors.Join(found("0"), found("1"), lost),
		"shard 0: cause: " + Advice + "\nthe port is taken":                 errors.Join(found("0"), errors.New("the port is taken")),
		"shard 0: cause: " + Advice:                                         found("0"),
		"a: shard 0: cause; b: shard 1: cause: " + Advice:                   fmt.Errorf("a: %w; b: %w", found("0"), found("1")),
		"no damage": errors.New("no damage"),
	} {
		if got := Once(err); got.Error() != want || strings.Contains(want, "cause") && !errors.Is(got, cause) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if Once(nil) != nil {
		t.Error("advice on nothing")
	}
}
