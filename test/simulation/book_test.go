package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// book is everything that callers were told, by key, and the judge of when windows end.
// It knows the promises about time and nothing of how they are kept; it has the true clock,
// which no node and no caller has.
type book struct {
	mu   sync.Mutex
	keys map[string][]told
	n    int
}

func newBook() *book { return &book{keys: map[string][]told{}} }

func (b *book) add(t told) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[t.key] = append(b.keys[t.key], t)
	if !t.never {
		b.n++
	}
}

// operations returns how many calls were answered, or may have been carried out.
func (b *book) operations() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// take returns what is in the book of the keys that are not to be kept, and forgets it.
func (b *book) take(keep func(key string) bool) map[string][]told {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := map[string][]told{}
	for key, all := range b.keys {
		if !keep(key) {
			taken[key] = all
			delete(b.keys, key)
		}
	}
	return taken
}

// judge returns what is wrong with the times in what callers were told of some keys.
// allowed says how late a window of a length may end that began and ended at some moments;
// who waits may be admitted that much later and by waking: the end has to be written down.
func judge(keys map[string][]told, allowed func(key string, length, from, to time.Duration) time.Duration, waking time.Duration) (wrong []string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		k := newWindows(keys[key], func(length, from, to time.Duration) time.Duration { return allowed(key, length, from, to) })
		k.waking = waking
		wrong = append(wrong, k.judge()...)
	}
	return wrong
}

// ever is later than everything.
const ever = time.Duration(1 << 62)

// window is one granted attempt.
type window struct {
	attempt        history.Attempt
	caller         string
	fence          uint64
	number         uint32
	previous       history.End
	ttl, retention time.Duration
	hold           bool

	sent     time.Duration // the first try of its Reserve
	answered time.Duration // the first answer
	from, by time.Duration // it was granted in between
	promised time.Duration // nobody else is admitted before, unless the owner says something
	promises []promise     // what that is made of
	ends     time.Duration // it ends by then, unless something makes it late
	extended bool

	released, committed *told // the first that was sent; nil if there was none
	releaseAcked        bool
	commitAcked         *told
	keeps               time.Duration // a committed record is kept until then at least
	kept                time.Duration // and no longer than that, unless something makes it late
	settled             time.Duration // the first moment at which an operator may have settled it
	doubt               bool          // some try of the owner may have done what nobody was told
}

// promise is until when the owner was told that it has the key, and when it was told so.
type promise struct{ told, until time.Duration }

// promise adds one.
func (w *window) promise(t told) {
	until := t.last + t.waited + t.remaining
	w.promised, w.ends = max(w.promised, until), max(w.ends, t.answered+t.remaining)
	w.promises = append(w.promises, promise{t.answered, until})
}

// promisedBefore is until when the owner had the key by what it had been told before a
// moment. Who has lapsed may be extended after that.
func (w *window) promisedBefore(then time.Duration) (until time.Duration) {
	for _, p := range w.promises {
		if p.told < then {
			until = max(until, p.until)
		}
	}
	return until
}

// windows are the attempts of a key.
type windows struct {
	told    []told
	allowed func(length, from, to time.Duration) time.Duration
	all     []*window // by fence
	waking  time.Duration
	hidden  bool // there may be attempts that nobody knows of
	wrong   []string
}

func newWindows(all []told, allowed func(length, from, to time.Duration) time.Duration) *windows {
	slices.SortStableFunc(all, func(a, b told) int { return cmp.Compare(a.answered, b.answered) })
	k := &windows{told: all, allowed: allowed}
	by := map[history.Attempt]*window{}
	for _, t := range all {
		if t.call != reserveCall {
			continue
		}
		// An earlier try may have been granted, and be over by the time of the answer.
		k.hidden = k.hidden || t.unknown || t.outcome == "ATTEMPT_ENDED" || t.tries > 1 && t.outcome != "granted"
		if t.outcome != "granted" || t.unknown {
			continue
		}
		w := by[t.attempt]
		if w == nil {
			w = &window{
				attempt: t.attempt, caller: t.caller, fence: t.fence, number: t.number, previous: t.previous, ttl: t.ttl, retention: t.retention,
				hold: t.hold, sent: t.first, answered: t.answered, by: t.answered, settled: ever,
			}
			by[t.attempt] = w
			k.all = append(k.all, w)
		}
		w.sent = min(w.sent, t.first)
		w.promise(t)
		if !t.repeated {
			w.from = t.last + t.waited + t.remaining - t.ttl
			w.by = min(w.by, t.answered+t.remaining-t.ttl)
		}
	}
	slices.SortFunc(k.all, func(a, b *window) int { return cmp.Compare(a.fence, b.fence) })
	for _, t := range all {
		if w := by[t.attempt]; w != nil && t.call != reserveCall && t.call != getCall {
			w.owner(t)
		}
	}
	for _, t := range all {
		k.resolved(t)
		k.replayed(t)
	}
	return k
}

// owner adds what an owner was told.
func (w *window) owner(t told) {
	if t.never {
		return
	}
	// Of several tries an earlier one may have been carried out, its answer lost.
	w.doubt = w.doubt || t.unknown || t.tries > 1 && t.outcome != "ok"
	first := func(which **told) {
		if *which == nil || t.first < (*which).first {
			*which = &t
		}
	}
	ok := !t.unknown && t.outcome == "ok"
	switch t.call {
	case releaseCall:
		first(&w.released)
		w.releaseAcked = w.releaseAcked || ok
	case commitCall:
		first(&w.committed)
		if ok {
			if w.commitAcked == nil {
				w.commitAcked = &t
			}
			w.keeps, w.kept = max(w.keeps, t.last+t.remaining), max(w.kept, t.answered+t.remaining)
		}
	case extendCall:
		w.extended = true
		if ok {
			w.promise(t)
		}
	}
}

// resolved adds what an operator has settled: from then on the key is not held any more.
func (k *windows) resolved(t told) {
	if t.call != resolveCall || t.never {
		return
	}
	for _, w := range k.all {
		if w.fence == t.of {
			w.settled = min(w.settled, t.first)
		}
	}
	if t.applied {
		k.hidden = true // it looks committed from then on
	}
}

// replayed adds what a replay says of how long the record is kept.
func (k *windows) replayed(t told) {
	if t.outcome != "committed" && t.outcome != "STATE_COMMITTED" {
		return
	}
	for _, w := range k.all {
		if w.committed != nil && w.committed.response == t.response {
			w.keeps = max(w.keeps, t.last+t.remaining)
			if w.commitAcked == nil {
				w.kept = max(w.kept, t.answered+t.remaining)
			}
		}
	}
}

// over returns the first moment at which somebody else may be admitted.
func (w *window) over() time.Duration {
	end := w.promised
	if w.hold {
		end = max(end, w.settled)
	}
	if w.keeps > 0 { // it was committed for sure
		return w.keeps
	}
	if w.committed != nil {
		end = min(end, max(w.committed.first, w.from)+w.retention)
	}
	if w.released != nil {
		end = min(end, w.released.first)
	}
	return end
}

// forgotten returns the first moment at which the record may be gone.
func (w *window) forgotten() time.Duration {
	switch {
	case w.keeps > 0:
		return w.keeps
	case w.hold && w.settled == ever && w.committed == nil && w.released == nil:
		return ever
	case w.releaseAcked:
		return w.released.first + max(w.retention, 10*time.Minute)
	}
	end := w.promised + w.retention
	if w.committed != nil {
		end = min(end, max(w.committed.first, w.from)+w.retention)
	}
	if w.released != nil {
		end = min(end, w.released.first+max(w.retention, 10*time.Minute))
	}
	if w.settled != ever {
		end = min(end, w.settled+w.retention)
	}
	return end
}

func (k *windows) report(format string, arguments ...any) {
	k.wrong = append(k.wrong, fmt.Sprintf(format, arguments...))
}

func (k *windows) judge() []string {
	for i, w := range k.all {
		for _, before := range k.all[:i] {
			k.follows(before, w)
		}
		if i > 0 && !k.hidden {
			k.remembers(k.all[i-1], w)
		}
	}
	for _, t := range k.told {
		if !t.unknown && !t.never {
			k.seen(t)
		}
	}
	k.nevers()
	k.late()
	if last := len(k.wrong) - 1; last >= 0 {
		k.wrong[last] += lines(k.told)
	}
	return k.wrong
}

// lines shows calls below a violation.
func lines(all []told) string {
	var text strings.Builder
	for _, t := range all {
		fmt.Fprintf(&text, "\n  %v", t)
	}
	return text.String()
}

// follows checks two attempts, the second with the larger fence: it came when the first
// was over.
func (k *windows) follows(first, second *window) {
	if over := first.over(); second.by < over {
		k.report("EARLY: %s (fence %d) was admitted by %v, and %s (fence %d) had it until %v", second.caller, second.fence, second.by, first.caller, first.fence, over)
	}
	if second.answered < first.sent {
		k.report("FENCE ORDER: %s has fence %d, and %s, who asked later, has fence %d", second.caller, second.fence, first.caller, first.fence)
	}
}

// remembers checks an attempt and the one right before it: its number goes on from there
// while the record lasts.
func (k *windows) remembers(first, second *window) {
	if second.number != first.number+1 && second.by < first.forgotten() {
		k.report("FORGOTTEN EARLY: %s (fence %d, number %d) was admitted by %v, and the record of %s (fence %d, number %d) lasts until %v",
			second.caller, second.fence, second.number, second.by, first.caller, first.fence, first.number, first.forgotten())
	}
}

// seen checks what was seen of an attempt while it had the key, and after its record was
// due to be gone.
func (k *windows) seen(t told) {
	for i, w := range k.all {
		if w.answered >= t.last {
			continue // it may have come after
		}
		latest := !k.hidden && !slices.ContainsFunc(k.all[i+1:], func(later *window) bool { return later.sent < t.answered })
		if latest && t.outcome == "none" && t.answered < w.forgotten() {
			k.report("FORGOTTEN EARLY: %v, and the record of %s lasts until %v", t, w.caller, w.forgotten())
		}
		if t.holder == w.caller && w.committed == nil && w.released == nil && t.answered < w.promisedBefore(t.last) &&
			(t.outcome == "in doubt" || t.outcome == "STATE_IN_DOUBT" || t.outcome == "STATE_LAPSED") {
			k.report("LAPSED EARLY: %v, and %s has it until %v", t, w.caller, w.promised)
		}
		if w.commitAcked != nil && w.commitAcked.answered < t.last && t.answered < w.keeps {
			switch t.outcome {
			case "pending", "granted", "in doubt", "none", "STATE_PENDING", "STATE_LAPSED", "STATE_IN_DOUBT", "STATE_RELEASED":
				if t.attempt != w.attempt {
					k.report("LOST COMMIT: %v, and %s had committed at %v until %v", t, w.caller, w.commitAcked.answered, w.keeps)
				}
			}
		}
	}
}

// nevers checks that nobody is seen as holder who was told that nothing of his was applied.
func (k *windows) nevers() {
	never := map[string]bool{}
	for _, t := range k.told {
		if t.call == reserveCall {
			was, there := never[t.caller]
			never[t.caller] = t.never && (was || !there)
		}
	}
	for _, t := range k.told {
		if t.holder != "" && never[t.holder] {
			k.report("APPLIED: %v, and %s was told that nothing was applied", t, t.holder)
		}
	}
}

// late checks that windows end in time. Where something is unknown it says nothing.
func (k *windows) late() {
	for _, w := range k.all {
		end, length := w.ends, w.ttl
		if w.keeps > 0 {
			end, length = w.kept, w.retention
		} else if w.doubt {
			continue
		}
		for _, t := range k.told {
			if t.unknown || t.never || t.last <= end {
				continue
			}
			holds := false
			switch t.outcome {
			case "pending", "STATE_PENDING":
				holds = t.holder == w.caller && w.keeps == 0
			case "committed", "STATE_COMMITTED":
				holds = w.keeps > 0 && w.committed != nil && w.committed.response == t.response
			}
			if most := k.allowed(length, w.sent, t.last); holds && t.last-end > most {
				k.report("LATE: %v, sent %v after the window of %s was over, and %v is allowed", t, t.last-end, w.caller, most)
			}
		}
	}
	if k.hidden {
		return
	}
	// Who waits is admitted in time.
	for i := 1; i < len(k.all); i++ {
		first, second := k.all[i-1], k.all[i]
		end := first.ends
		if first.keeps > 0 || first.doubt || first.hold || second.number != first.number+1 || second.from <= end {
			continue
		}
		for _, t := range k.told {
			if t.call != reserveCall || t.attempt != second.attempt || t.outcome != "granted" || t.repeated || t.waited <= 0 {
				continue
			}
			// It had come to the leader by then, and waited all the time.
			if t.answered-t.waited > end {
				continue
			}
			if most := k.allowed(first.ttl, first.sent, second.from) + k.waking; second.from-end > most {
				k.report("LATE: %v, which waited, was admitted %v after the window of %s was over, and %v is allowed", t, second.from-end, first.caller, most)
			}
		}
	}
}
