package linearizability

import (
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/atmostonce/coordinator/test/history"
)

// shownMax bounds how many events of an identity without an order are shown.
const shownMax = 40

// budget bounds a search.
type budget struct {
	steps int
	until time.Time
	spent bool
}

// step reports whether there is one left.
func (b *budget) step() bool {
	b.steps--
	if b.steps < 0 || b.steps%1024 == 0 && time.Now().After(b.until) {
		b.spent = true
	}
	return !b.spent
}

// newBudget returns what a search may take that begins now and ends by then at the latest.
func newBudget(options *Options, until time.Time) *budget {
	if own := time.Now().Add(options.TimeMax); own.Before(until) {
		until = own
	}
	return &budget{steps: options.StepsMax, until: until}
}

// search looks for an order of the operations until then.
func (p *partition) search(options *Options, until time.Time, explained *atomic.Int64) []history.Violation {
	began := time.Now()
	b := newBudget(options, until)
	operations := p.porcupine()
	if porcupine.CheckOperations(p.contract(b), operations) {
		return nil
	}
	if b.spent {
		return []history.Violation{{Rule: Undecided, Text: fmt.Sprintf(
			"%s: no order of %d calls found in %d steps and %v, and none ruled out", p.identity, len(operations), options.StepsMax-max(b.steps, 0), time.Since(began))}}
	}
	text := p.identity + ": no order explains"
	if nth := explained.Add(1); nth <= explainedMax {
		// Once more, to see how far it got.
		model := p.contract(newBudget(options, until))
		_, info := porcupine.CheckOperationsVerbose(model, operations, 0)
		text += p.furthest(&info)
		if nth <= drawnMax && options.Artifacts != "" {
			text += p.draw(model, info, options.Artifacts)
		}
	}
	return []history.Violation{{Rule: NotLinearizable, Text: text}}
}

// draw writes a page that shows how far the search got, and says where.
func (p *partition) draw(model porcupine.Model, info porcupine.LinearizationInfo, dir string) string {
	path := filepath.Join(dir, fmt.Sprintf("linearizability-%s.html", safe(p.identity)))
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		return fmt.Sprintf("\n\tnot drawn: %v", err)
	}
	return "\n\tdrawn in " + path
}

// safe makes a file's name of an identity, and not the same of two.
func safe(identity string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, identity)
	return fmt.Sprintf("%s-%08x", name[:min(len(name), 100)], crc32.ChecksumIEEE([]byte(identity)))
}

// furthest describes what could not be put in order.
func (p *partition) furthest(info *porcupine.LinearizationInfo) string {
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) || len(order) == len(longest) && slices.Compare(order, longest) < 0 {
			longest = order
		}
	}
	var text strings.Builder
	fits := make([]bool, len(p.operations))
	fmt.Fprintf(&text, " %d calls; in order", len(p.operations))
	begin := max(0, len(longest)-shownMax/2)
	if begin > 0 {
		fmt.Fprintf(&text, " (after %d more)", begin)
	}
	for i, n := range longest {
		fits[n] = true
		if i >= begin {
			fmt.Fprintf(&text, "\n\t%v", p.operations[n])
		}
	}
	text.WriteString("\n\tbut then not")
	shown := 0
	for n, o := range p.operations {
		if !fits[n] && !o.hidden && o.what != finish && shown < shownMax/2 {
			shown++
			fmt.Fprintf(&text, "\n\t%v", o)
		}
	}
	return text.String()
}

// porcupine returns the operations as porcupine takes them.
func (p *partition) porcupine() []porcupine.Operation {
	all := make([]porcupine.Operation, len(p.operations))
	var free []time.Duration // when each line of the drawing is free again
	for i, o := range p.operations {
		line := slices.IndexFunc(free, func(t time.Duration) bool { return t < o.call })
		if line < 0 {
			line = len(free)
			if line < linesMax {
				free = append(free, 0)
			} else {
				line = 0
			}
		}
		free[line] = o.answered
		all[i] = porcupine.Operation{ClientId: line, Input: o, Call: int64(o.call), Output: o, Return: int64(o.answered)}
	}
	return all
}

// linesMax bounds the height of a drawing.
const linesMax = 200

// states are all that may be known at one place of an order. None covers another.
type states []*state

// add adds a state, unless one that is there covers it.
func (all states) add(s *state) states {
	for _, there := range all {
		if there.covers(s) {
			return all
		}
	}
	return append(slices.DeleteFunc(all, s.covers), s)
}

func (all states) equal(other states) bool {
	if len(all) != len(other) {
		return false
	}
	for _, s := range all {
		if !slices.ContainsFunc(other, s.equal) {
			return false
		}
	}
	return true
}

// contract is the model as porcupine takes it: a step of all states that may be at once, as
// porcupine's NondeterministicModel has it. It is written out here, because all of them are
// needed that no other one covers, not all that differ.
func (p *partition) contract(b *budget) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return states{p.model.start()} },
		Step: func(from, input, _ any) (bool, any) {
			before, _ := from.(states)
			o, _ := input.(*operation)
			var after states
			for _, s := range before {
				if !b.step() {
					return false, nil
				}
				for _, next := range p.model.step(s, o) {
					after = after.add(next)
				}
			}
			return len(after) > 0, after
		},
		Equal: func(a, b any) bool {
			these, _ := a.(states)
			those, _ := b.(states)
			return these.equal(those)
		},
		Hash: func(a any) uint64 {
			all, _ := a.(states)
			var h uint64
			for _, s := range all {
				h ^= s.hash() // whatever their order
			}
			return h
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
		DescribeState:     func(s any) string { return fmt.Sprint(s) },
	}
}

// String shows the operation.
func (o *operation) String() string {
	switch {
	case o.what == finish:
		return "the end"
	case o.hidden:
		return fmt.Sprintf("%s, its outcome unknown: %v", whatNames[o.what], o.event)
	case o.unseen:
		return fmt.Sprintf("%s, delivered before: %v", whatNames[o.what], o.event)
	default:
		return fmt.Sprintf("%s: %v", whatNames[o.what], o.event)
	}
}
