package cluster_test

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// book is what callers have done and been told, and the judge of it. It knows the
// promises and nothing of how they are kept.
type book struct {
	mu     sync.Mutex
	grants map[string][]*grant // by key
	sights map[string][]seen
	owners map[string]bool // every owner that has asked; false for those that were never applied
}

// grant is a reservation as its owner knows it.
type grant struct {
	key, owner, token string
	fence             uint64
	sent, received    time.Time // the first try, and the answer
	by                time.Time // it had been given by then
	ownerUntil        time.Time // when the owner stops by itself

	releaseSent time.Time

	response    string
	commitSent  time.Time // the first try
	commitAcked time.Time
	retention   time.Duration
}

// seen is what somebody else's Reserve has shown.
type seen struct {
	sent, received time.Time
	outcome        string // granted, pending or committed
	owner          string // of a pending one
	body           string // of a committed one
}

func newBook() *book {
	return &book{grants: map[string][]*grant{}, sights: map[string][]seen{}, owners: map[string]bool{}}
}

// asks notes an owner before it asks for the first time.
func (b *book) asks(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owners[owner] = true
}

// never notes that everything this owner asked was answered "not applied".
func (b *book) never(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owners[owner] = false
}

func (b *book) granted(g *grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants[g.key] = append(b.grants[g.key], g)
}

func (b *book) sees(key string, s seen) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sights[key] = append(b.sights[key], s)
}

// change changes a grant.
func (b *book) change(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// judge holds everything against the promises.
func (b *book) judge(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	grants, commits, never, sights := 0, 0, 0, 0
	for key, all := range b.grants {
		slices.SortFunc(all, func(a, c *grant) int { return int(a.fence) - int(c.fence) })
		for i, g := range all {
			grants++
			if !g.commitAcked.IsZero() {
				commits++
			}
			if !b.owners[g.owner] {
				t.Errorf("%s: %s was told that nothing was applied, and was granted fence %d", key, g.owner, g.fence)
			}
			if i > 0 {
				follows(t, all[i-1], g)
			}
		}
	}
	for _, applied := range b.owners {
		if !applied {
			never++
		}
	}
	for key, all := range b.sights {
		for _, s := range all {
			sights++
			b.judgeSight(t, key, s)
		}
	}
	t.Logf("%d keys, %d grants, %d acknowledged commits, %d answers to others, %d attempts never applied",
		len(b.grants), grants, commits, sights, never)
}

// follows checks that of two grants of a key, the second has the larger fence, and came
// when the first was over.
func follows(t *testing.T, first, second *grant) {
	t.Helper()
	if first.fence == second.fence {
		t.Errorf("%s: %s and %s have fence %d", first.key, first.owner, second.owner, first.fence)
	}
	if second.received.Before(first.sent) {
		t.Errorf("%s: fence %d was given before fence %d was asked for", first.key, second.fence, first.fence)
	}
	over := first.ownerUntil
	if !first.commitSent.IsZero() {
		end := first.commitSent.Add(first.retention)
		if !first.commitAcked.IsZero() || end.Before(over) {
			over = end
		}
	}
	if !first.releaseSent.IsZero() && first.releaseSent.Before(over) {
		over = first.releaseSent
	}
	if early := over.Sub(second.by); early > 0 {
		t.Errorf("%s: %s was admitted %v before the window of %s was over: %+v, then %+v",
			first.key, second.owner, early, first.owner, first, second)
	}
}

func (b *book) judgeSight(t *testing.T, key string, s seen) {
	t.Helper()
	if s.outcome == "pending" && !b.owners[s.owner] {
		t.Errorf("%s: %q holds it, whose every try was answered as not applied", key, s.owner)
	}
	found := s.outcome != "committed"
	for _, g := range b.grants[key] {
		if g.commitSent.IsZero() {
			continue
		}
		found = found || g.response == s.body && g.commitSent.Before(s.received)
		held := !g.commitAcked.IsZero() && s.sent.After(g.commitAcked) && s.received.Before(g.commitSent.Add(g.retention))
		if held && (s.outcome != "committed" || s.body != g.response) {
			t.Errorf("%s: %s committed %q from %s to %s for %v, and from %s to %s it was %s %q", key, g.owner, g.response,
				g.commitSent.Format(clock), g.commitAcked.Format(clock), g.retention, s.sent.Format(clock), s.received.Format(clock), s.outcome, s.body)
		}
	}
	if !found {
		t.Errorf("%s: replayed %q, which nobody had committed", key, s.body)
	}
}
