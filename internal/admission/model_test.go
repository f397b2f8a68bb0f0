package admission_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawn chooses by rapid, which shrinks what fails.
type drawn struct{ t *rapid.T }

func (d drawn) choose(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

// outcomes are all that a command can come to.
var outcomes = []string{
	"Reserve granted", "Reserve repeated", "Reserve pending", "Reserve committed", "Reserve in_doubt",
	"Reserve DEADLINE_EXCEEDED", "Reserve FINGERPRINT_MISMATCH", "Reserve ATTEMPT_ENDED", "Reserve STORAGE_FULL", "Reserve QUOTA_EXCEEDED",
	"Commit none", "Commit repeated", "Commit late", "Commit RESERVATION_NOT_FOUND", "Commit RESERVATION_LOST", "Commit COMMIT_CONFLICT", "Commit ALREADY_RELEASED",
	"Release none", "Release repeated", "Release late", "Release RESERVATION_NOT_FOUND", "Release RESERVATION_LOST", "Release ALREADY_COMMITTED",
	"Extend none", "Extend RESERVATION_NOT_FOUND", "Extend RESERVATION_LOST", "Extend RESERVATION_LAPSED", "Extend ALREADY_COMMITTED", "Extend ALREADY_RELEASED",
	"Resolve none", "Resolve repeated", "Resolve RESERVATION_NOT_FOUND", "Resolve REVISION_MISMATCH", "Resolve NOT_IN_DOUBT",
	"Purge none", "Purge repeated", "Purge NOT_PURGEABLE", "Purge REVISION_MISMATCH",
}

// Invariants 1 to 9, and every answer of the second model. Whatever a command can
// come to must have been reached: a search that misses it proves nothing about it.
func TestRulesAgreeWithTheModel(t *testing.T) {
	reached := map[string]int{}
	missed := func() []string {
		return slices.DeleteFunc(slices.Clone(outcomes), func(what string) bool { return reached["admission."+what] > 0 })
	}
	// Of a hundred worlds each, or as many as -rapid.checks says; what is rare may take more.
	for round := 0; round < 4 || round < 40 && len(missed()) > 0 && !t.Failed(); round++ {
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(t, drawn{t})
			for range rapid.IntRange(1, 200).Draw(t, "moves") {
				w.play()
			}
			w.replay()
			w.replay()
			for what, times := range w.reached {
				reached[what] += times
			}
		})
	}
	if never := missed(); len(never) > 0 && !t.Failed() {
		t.Errorf("never reached: %q", never)
	}
}

// bytesChooser chooses by a fuzzer's bytes, and 0 once they are used up.
type bytesChooser struct{ rest []byte }

func (b *bytesChooser) choose(n int) int {
	if len(b.rest) == 0 {
		return 0
	}
	c := int(b.rest[0])
	b.rest = b.rest[1:]
	return c % n
}

// FuzzCommands plays what the bytes say. It checks what the property test checks; a
// fuzzer finds other corners.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, moves []byte) {
		if len(moves) > 1024 {
			t.Skip("longer ones find nothing new, slowly")
		}
		choice := &bytesChooser{moves}
		w := newWorld(t, choice)
		for len(choice.rest) > 0 {
			w.play()
		}
		w.replay()
		w.replay()
	})
}
