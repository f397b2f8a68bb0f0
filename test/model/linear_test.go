package model_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/model"
)

var key = admission.Identity{Namespace: "n", Key: "k"}

func reserve(attempt byte) admission.Reserve {
	return admission.Reserve{
		Identity: key, Attempt: admission.AttemptID{attempt}, WantedUntil: admission.Never,
		PendingTTL: time.Hour, Retention: time.Hour,
	}
}

// told is an answered call.
func told(command admission.Command, called, answered int64, told func(admission.Answer) bool) model.Operation {
	return model.Operation{On: key, Command: command, Called: called, Answered: answered,
		Told: func(v model.Verdict) bool { return told(v.Answer) }}
}

func outcome(o admission.Outcome) func(admission.Answer) bool {
	return func(a admission.Answer) bool { return a.Outcome == o }
}

func TestLinearizable(t *testing.T) {
	granted, pending := outcome(admission.OutcomeGranted), outcome(admission.OutcomePending)
	token := admission.Token{Fence: 1, Attempt: admission.AttemptID{1}}
	done := func(a admission.Answer) bool { return a.Refusal == admission.None }
	exists := func(want admission.State) func(model.Seen, bool) bool {
		return func(seen model.Seen, _ bool) bool { return seen.State == want }
	}
	release := admission.Release{Identity: key, Token: token}
	unknown := func(command admission.Command, called int64) model.Operation {
		return model.Operation{On: key, Command: command, Called: called}
	}
	for _, c := range []struct {
		name string
		of   []model.Operation
		want bool
	}{
		{"nothing", nil, true},
		{"one is admitted", []model.Operation{told(reserve(1), 0, 1, granted), told(reserve(2), 2, 3, pending)}, true},
		{"two are admitted", []model.Operation{told(reserve(1), 0, 1, granted), told(reserve(2), 2, 3, granted)}, false},
		{"the later call is the one", []model.Operation{told(reserve(1), 0, 9, pending), told(reserve(2), 2, 3, granted)}, true},
		{"nobody is the one", []model.Operation{told(reserve(1), 0, 9, pending), told(reserve(2), 2, 3, pending)}, false},
		{"an answer from before", []model.Operation{told(reserve(1), 0, 1, granted), told(release, 2, 3, done), told(reserve(2), 4, 5, pending)}, false},
		{"an unanswered release", []model.Operation{told(reserve(1), 0, 1, granted), unknown(release, 2), told(reserve(2), 4, 5, granted)}, true},
		{"or not", []model.Operation{told(reserve(1), 0, 1, granted), unknown(release, 2), told(reserve(2), 4, 5, pending)}, true},
		{"carried out late", []model.Operation{told(reserve(1), 0, 1, granted), unknown(release, 2), told(reserve(2), 4, 5, pending), told(reserve(3), 6, 7, granted)}, true},
		{"once only", []model.Operation{told(reserve(1), 0, 1, granted), unknown(release, 2), told(reserve(2), 4, 5, granted), told(reserve(3), 6, 7, granted)}, false},
		{"a stale look", []model.Operation{
			told(reserve(1), 0, 1, granted), told(release, 2, 3, done),
			{On: key, Called: 4, Answered: 5, Saw: exists(admission.StatePending)},
		}, false},
		{"a look", []model.Operation{
			told(reserve(1), 0, 1, granted), told(release, 2, 5, done),
			{On: key, Called: 3, Answered: 4, Saw: exists(admission.StatePending)},
			{On: key, Called: 6, Answered: 7, Saw: exists(admission.StateReleased)},
		}, true},
	} {
		if got := model.Linearizable(0, c.of); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
