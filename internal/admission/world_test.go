package admission_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/test/model"
)

// chooser makes a world's choices: at random, or from a fuzzer's bytes.
type chooser interface {
	// choose returns a number from 0 to n-1.
	choose(n int) int
}

// failer is what is common to a test, a fuzzer and a property.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world plays random commands against the rules, and compares every answer and all
// that can be seen with the second model, with rules whose alarms never come by,
// and with the ledger, which knows the invariants and nothing else.
type world struct {
	t      failer
	choice chooser

	now    admission.Time
	rules  *keeper // its alarms come by at arbitrary moments
	lazy   *keeper // its alarms never do
	model  *model.Shard
	ledger *ledger

	identities []admission.Identity // the first three are the same one, which sees the most
	attempts   []admission.AttemptID
	tokens     map[admission.Identity][]admission.Token
	revisions  map[admission.Identity][]uint64
	moments    []admission.Time // at which something is due

	history []happening
	reached map[string]int // what the commands came to
}

// happening is one entry of the log that a replay goes through again.
type happening struct {
	at      admission.Instant
	on      admission.Identity
	command admission.Command // nil for an alarm
	before  admission.View
	came    admission.Decision
}

func newWorld(t failer, choice chooser) *world {
	w := &world{
		t: t, choice: choice,
		rules: newKeeper(), lazy: newKeeper(), model: model.New(), ledger: newLedger(t),
		tokens: map[admission.Identity][]admission.Token{}, revisions: map[admission.Identity][]uint64{},
		reached: map[string]int{},
	}
	for _, key := range []string{"a", "a", "a", "b", "c"} {
		w.identities = append(w.identities, admission.Identity{Namespace: "n", Key: key})
	}
	return w
}

// pick returns one of several.
func pick[T any](w *world, of ...T) T { return of[w.choice.choose(len(of))] }

// play makes one move and looks at everything.
func (w *world) play() {
	switch w.choice.choose(10) {
	case 0, 1, 2:
		w.pass()
	case 3:
		id := pick(w, w.identities...)
		w.alarm(id)
	case 4:
		// Delivered again: the last command, or one from a while ago.
		back := w.choice.choose(6)
		for i := len(w.history) - 1 - back; i >= 0; i-- {
			if c := w.history[i].command; c != nil {
				w.command(c)
				break
			}
		}
	default:
		w.command(w.invent())
	}
	w.look()
}

// pass lets time go by: a little, or to just around a moment at which something is due.
func (w *world) pass() {
	to := w.now
	switch w.choice.choose(4) {
	case 0:
		to += admission.Time(pick(w, 1, time.Millisecond, time.Second, time.Minute))
	case 1:
		to += admission.Time(pick(w, 10*time.Minute-1, 10*time.Minute, time.Hour, 24*time.Hour, 31*24*time.Hour))
	default:
		var due []admission.Time
		for _, moment := range w.moments {
			if moment > w.now && moment != admission.Never {
				due = append(due, moment)
			}
		}
		if len(due) > 0 {
			to = pick(w, due...) + pick[admission.Time](w, -1, 0, 0, 1)
		}
	}
	w.now = max(w.now, to)
}

// alarm lets an identity's alarm come by, due or not.
func (w *world) alarm(id admission.Identity) {
	view := w.rules.view(id)
	before := frozen(view.Record)
	d := admission.Reclaim(view, w.now)
	w.history = append(w.history, happening{at: w.instant(), on: id, before: view, came: d})
	if !reflect.DeepEqual(before, view.Record) {
		w.t.Fatalf("the alarm wrote to the record that it was shown")
	}
	if d.Counter != view.Counter || !reflect.DeepEqual(d.Answer, admission.Answer{}) {
		w.t.Fatalf("the alarm took a number or answered: %+v", d)
	}
	w.rules.keep(id, d)
}

func (w *world) instant() admission.Instant {
	return admission.Instant{Now: w.now, WallNanos: 1_000_000 + int64(w.now)/2}
}

// command carries out a command everywhere and compares.
func (w *world) command(c admission.Command) {
	if v := c.Validate(); v != nil {
		w.t.Fatalf("invented an invalid %T: %v", c, v)
	}
	at, id := w.instant(), c.On()
	view := w.rules.view(id)
	view.NamespaceRecords = w.records(w.rules, id)
	before := frozen(view.Record)
	d := admission.Decide(view, at, c)
	w.history = append(w.history, happening{at: at, on: id, command: c, before: view, came: d})
	if !reflect.DeepEqual(before, view.Record) {
		w.t.Fatalf("%s\nwrote to the record that it was shown", w.story())
	}

	other := w.lazy.view(id)
	other.NamespaceRecords = w.records(w.lazy, id)
	l := admission.Decide(other, at, c)
	if !reflect.DeepEqual(d.Answer, l.Answer) || d.Counter != l.Counter {
		w.t.Fatalf("%s\nalarms can be noticed: %+v with, %+v without", w.story(), d.Answer, l.Answer)
	}

	w.ledger.enter(c, d, w.now, w.story)
	w.compare(c, at, d)
	w.rules.keep(id, d)
	w.lazy.keep(id, l)
	w.note(id, d)
	w.reached[fmt.Sprintf("%T %s", c, ending(d.Answer))]++
	if d.Answer.Repeated {
		w.reached[fmt.Sprintf("%T repeated", c)]++
	}
	if d.Answer.Late {
		w.reached[fmt.Sprintf("%T late", c)]++
	}
}

// compare holds the decision against the verdicts of the model, and adopts the one
// that it is.
func (w *world) compare(c admission.Command, at admission.Instant, d admission.Decision) {
	verdicts := w.model.Decide(at, c, w.visible())
	for _, v := range verdicts {
		if v.Describes(c, d.Answer) && v.Changes() == (d.Record != nil || d.Deleted) {
			w.model.Adopt(v)
			if w.model.Counter() != d.Counter {
				w.t.Fatalf("%s\nthe counter is %d, the model's is %d", w.story(), d.Counter, w.model.Counter())
			}
			return
		}
	}
	w.t.Fatalf("%s\ngot  %+v\nwant %+v", w.story(), d.Answer, verdicts)
}

// records counts what is stored of the namespace, as far as it is visible, and the
// identity's own record even if it is not: the store still counts that one.
func (w *world) records(k *keeper, own admission.Identity) uint64 {
	n := w.visible()
	if r := k.records[own]; r != nil && r.State != admission.StateNone && admission.Look(r, w.now) == nil {
		n++
	}
	return n
}

func (w *world) visible() uint64 {
	n := uint64(0)
	for _, id := range w.identities[2:] {
		if _, exists := w.model.Get(id, w.now); exists {
			n++
		}
	}
	return n
}

// note keeps what later moves may pick from.
func (w *world) note(id admission.Identity, d admission.Decision) {
	if d.Answer.Outcome == admission.OutcomeGranted && !d.Answer.Repeated {
		w.tokens[id] = append(w.tokens[id], d.Answer.Token)
	}
	if d.Record == nil {
		return
	}
	w.moments = append(w.moments, d.Record.Alarm(), d.Record.GrantedAt.Add(admission.ExtendSpanDefault))
	if lapsed := d.Record.At(d.Record.Alarm()); lapsed != nil {
		w.moments = append(w.moments, lapsed.Alarm())
	}
	for _, ended := range d.Record.Ended {
		w.moments = append(w.moments, ended.EndedAt.Add(admission.AttemptMemory))
	}
	w.moments = w.moments[max(0, len(w.moments)-16):]
}

// look compares all that can be seen of all identities.
func (w *world) look() {
	for _, id := range w.identities[2:] {
		seen, exists := w.model.Get(id, w.now)
		stored := w.rules.records[id]
		r := admission.Look(stored, w.now)
		if exists != (r != nil) {
			w.t.Fatalf("%s\n%s exists: %v, in the model %v", w.story(), id.Key, r != nil, exists)
		}
		if mine, other := unsequenced(stored.At(w.now)), unsequenced(w.lazy.records[id].At(w.now)); !reflect.DeepEqual(mine, other) {
			w.t.Fatalf("%s\nalarms can be noticed in %s:\n%+v with\n%+v without", w.story(), id.Key, mine, other)
		}
		if exists {
			w.compareSeen(id, seen, r)
		}
		w.ledger.look(id, r, w.now, w.story)
	}
}

func (w *world) compareSeen(id admission.Identity, seen model.Seen, r *admission.Record) {
	got := model.Seen{
		State: r.State, Fence: r.Fence, Revision: r.Revision, Attempt: r.Attempt,
		Fingerprint: r.Fingerprint, OnLapse: r.OnLapse, PendingTTL: r.PendingTTL, Owner: r.Owner,
		GrantedAt: r.GrantedAt, PendingDeadline: r.PendingDeadline, Over: r.Alarm(),
		CreatedWall: r.CreatedWallNanos, Started: r.StartedWallNanos, Previous: r.Previous,
	}
	switch r.State {
	case admission.StatePending:
		got.Over = admission.Never
	case admission.StateCommitted:
		got.Committed, got.Response = r.CommittedWallNanos, r.Response
	case admission.StateReleased:
		got.Reason = r.ReleaseReason
		if got.Fingerprint != nil {
			w.t.Fatalf("%s\nthe fingerprint of %s outlived its release", w.story(), id.Key)
		}
		seen.Fingerprint = nil
	}
	if !reflect.DeepEqual(got, seen) {
		w.t.Fatalf("%s\nGet of %s shows\n%+v, the model\n%+v", w.story(), id.Key, got, seen)
	}
	if all := w.revisions[id]; len(all) == 0 || all[len(all)-1] != r.Revision {
		w.revisions[id] = append(all, r.Revision)
	}
}

// replay goes through the log again and must come to the same, decision by decision.
func (w *world) replay() *keeper {
	again := newKeeper()
	for i, h := range w.history {
		view := again.view(h.on)
		view.NamespaceRecords = h.before.NamespaceRecords
		var d admission.Decision
		if h.command == nil {
			d = admission.Reclaim(view, h.at.Now)
		} else {
			d = admission.Decide(view, h.at, h.command)
		}
		again.keep(h.on, d)
		if !reflect.DeepEqual(d, h.came) {
			w.t.Fatalf("replayed entry %d (%+v)\ncame to %+v\nand was %+v", i, h.command, d, h.came)
		}
	}
	if again.counter != w.rules.counter || !reflect.DeepEqual(again.records, w.rules.records) {
		w.t.Fatalf("the replay ends elsewhere: counter %d and %d", again.counter, w.rules.counter)
	}
	return again
}

// story tells what led here, for whoever reads a failure.
func (w *world) story() string {
	var b strings.Builder
	from := max(0, len(w.history)-40)
	for _, h := range w.history[from:] {
		if h.command == nil {
			fmt.Fprintf(&b, "%v alarm %s\n", time.Duration(h.at.Now), h.on.Key)
			continue
		}
		fmt.Fprintf(&b, "%v %T %+v → %s%s fence %d\n", time.Duration(h.at.Now), h.command, h.command,
			h.came.Answer.Refusal, h.came.Answer.Outcome, h.came.Answer.Fence)
	}
	fmt.Fprintf(&b, "now %v", time.Duration(w.now))
	return b.String()
}

func frozen(r *admission.Record) *admission.Record {
	if r == nil {
		return nil
	}
	c := *r
	c.Ended = slices.Clone(r.Ended)
	c.Fingerprint = slices.Clone(r.Fingerprint)
	return &c
}

// unsequenced is a record without what tells nothing to anybody.
func unsequenced(r *admission.Record) *admission.Record {
	r = frozen(r)
	if r != nil {
		r.Sequence = 0
		if len(r.Ended) == 0 {
			r.Ended = nil
		}
	}
	return r
}

var _ failer = (*testing.T)(nil)

// ending names what a command came to.
func ending(a admission.Answer) string {
	if a.Refusal != admission.None {
		return string(a.Refusal)
	}
	return a.Outcome.String()
}
