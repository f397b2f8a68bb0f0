package model

import "github.com/atmostonce/coordinator/internal/admission"

// Rules makes the model decide by itself: of several verdicts it takes the most
// careful one. It is what a script is played against.
type Rules struct{ *Shard }

// Apply decides a command and adopts the verdict.
func (r Rules) Apply(at admission.Instant, command admission.Command) admission.Answer {
	verdict := r.Decide(at, command, 0)[0]
	r.Adopt(verdict)
	return verdict.Answer
}

// Get returns state and revision.
func (r Rules) Get(id admission.Identity, now admission.Time) (admission.State, uint64) {
	seen, _ := r.Shard.Get(id, now)
	return seen.State, seen.Revision
}
