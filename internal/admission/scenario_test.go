package admission_test

import (
	"testing"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/scenario"
)

// keeper is the least that a shard has to be: records by identity, and the counter.
// It lets an alarm come by only where it is told to.
type keeper struct {
	counter  uint64
	sequence uint64
	records  map[admission.Identity]*admission.Record
}

func newKeeper() *keeper { return &keeper{records: map[admission.Identity]*admission.Record{}} }

func (k *keeper) view(id admission.Identity) admission.View {
	return admission.View{Record: k.records[id], Counter: k.counter}
}

// keep does what a decision says.
func (k *keeper) keep(id admission.Identity, d admission.Decision) {
	k.counter = d.Counter
	switch {
	case d.Deleted:
		delete(k.records, id)
	case d.Record != nil:
		if d.Record.Sequence == 0 {
			k.sequence++
			d.Record.Sequence = k.sequence
		}
		k.records[id] = d.Record
	}
}

// Apply implements [scenario.Rules].
func (k *keeper) Apply(at admission.Instant, command admission.Command) admission.Answer {
	d := admission.Decide(k.view(command.On()), at, command)
	k.keep(command.On(), d)
	return d.Answer
}

// Get implements [scenario.Rules].
func (k *keeper) Get(id admission.Identity, now admission.Time) (admission.State, uint64) {
	r := admission.Look(k.records[id], now)
	if r == nil {
		return admission.StateNone, 0
	}
	return r.State, r.Revision
}

// reclaiming is a keeper whose alarms all come by as early as they may.
type reclaiming struct{ *keeper }

// Apply implements [scenario.Rules].
func (k reclaiming) Apply(at admission.Instant, command admission.Command) admission.Answer {
	k.keep(command.On(), admission.Reclaim(k.view(command.On()), at.Now))
	return k.keeper.Apply(at, command)
}

func TestScenarios(t *testing.T) {
	all, err := scenario.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			for name, rules := range map[string]scenario.Rules{"lazy": newKeeper(), "reclaiming": reclaiming{newKeeper()}} {
				runner := scenario.Runner{Target: scenario.NewPure(rules)}
				if err := runner.Run(t.Context(), s); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
