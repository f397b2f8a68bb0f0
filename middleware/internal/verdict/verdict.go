// Package verdict names what the answer of a guarded handler can mean for its key.
package verdict

// Verdict says what an answer means.
type Verdict int32

// The verdicts. The public packages have the same ones, with the same numbers.
const (
	// Default leaves it to whoever comes next: the classifier, then the rule.
	Default Verdict = iota
	// Store means that it is done.
	Store
	// Release means that nothing happened, and nothing will.
	Release
	// Uncertain means that it may have happened, or may happen yet.
	Uncertain
)

// String returns the verdict's name.
func (v Verdict) String() string {
	switch v {
	case Store:
		return "store"
	case Release:
		return "release"
	case Uncertain:
		return "uncertain"
	}
	return "default"
}
