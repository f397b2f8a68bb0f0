package rpc

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A call whose message has not come takes a place from one that could be carried out, and costs its
// client nothing. So where there are no places left, the connections are ended over which many such
// calls have come and go on coming to nothing: none of them has changed anything.
//
// Many is more than one client has a use for, or half of the places, over however many connections
// these calls are spread, and whether or not they are other ones every time. Then those go first that
// await most, so that who has a few calls on their way is left alone as long as others have more.
// Where a node may have only few calls under way, a few that come in slowly are half of them.
const (
	// awaitedMost is how many calls may await their messages on a connection at one look after the
	// other. A client that sends what it begins has as many for a moment at most.
	awaitedMost = 256
	// awaitedLooks is after how many looks in a row a connection is ended, and awaitedEvery the time
	// between two of them.
	awaitedLooks = 4
	awaitedEvery = time.Second
)

// crowd are the connections of one server over which calls have come, of those that share places.
type crowd struct {
	mu     sync.Mutex
	links  map[*waits]struct{}
	looks  int // how many looks in a row they all together have awaited too many
	looked time.Time
}

// waits are the calls of one connection and one crowd that await their messages.
type waits struct {
	link  *link
	crowd *crowd
	next  *waits // of the same connection, and another crowd

	calls atomic.Int64
	looks int   // how many looks in a row these were too many; the crowd guards it
	seen  int64 // calls at the last look; as above
}

// of returns the calls of a connection, which joins with its first one.
func (c *crowd) of(l *link) *waits {
	if w := c.among(l); w != nil {
		return w
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.among(l); w != nil {
		return w
	}
	w := &waits{link: l, crowd: c, next: l.waits.Load()}
	for !l.waits.CompareAndSwap(w.next, w) {
		w.next = l.waits.Load()
	}
	if l.ended.Load() || l.hangUp == nil {
		return w // whatever comes of the call, nothing is left to be ended
	}
	if c.links == nil {
		c.links = make(map[*waits]struct{})
	}
	c.links[w] = struct{}{}
	return w
}

// among finds a connection that has joined, which has done so with as many crowds as there are
// registrations at its port at most.
func (c *crowd) among(l *link) *waits {
	for w := l.waits.Load(); w != nil; w = w.next {
		if w.crowd == c {
			return w
		}
	}
	return nil
}

// await is the decoding of a call's message, which may have to be waited for.
func (c *crowd) await(l *link, decode func(any) error) func(any) error {
	return func(message any) error {
		w := c.of(l)
		w.calls.Add(1)
		defer w.calls.Add(-1)
		return decode(message)
	}
}

// leave forgets a connection that is no more.
func (l *link) leave() {
	l.ended.Store(true)
	for w := l.waits.Load(); w != nil; w = w.next {
		w.crowd.mu.Lock()
		delete(w.crowd.links, w)
		w.crowd.mu.Unlock()
	}
}

// thin ends the connections that take places for nothing, of as many as there are, and returns how
// many these were. It is called where there are no places left.
func (c *crowd) thin(places int64) (ended int) {
	over := c.look(places)
	for _, w := range over {
		w.link.hangUp()
	}
	return len(over)
}

// look returns the connections that are to be ended. It looks at all of them, once a second.
func (c *crowd) look(places int64) (over []*waits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	since := now.Sub(c.looked)
	if since < awaitedEvery {
		return nil
	}
	c.looked = now
	inARow := func(looks int, tooMany bool) int {
		switch {
		case !tooMany:
			return 0
		case since > 2*awaitedEvery: // nobody was refused for a while
			return 1
		}
		return looks + 1
	}
	var others []*waits
	awaiting := int64(0) // but for those that are over
	for w := range c.links {
		w.seen = w.calls.Load()
		if w.looks = inARow(w.looks, w.seen >= awaitedMost); w.looks >= awaitedLooks {
			over = append(over, w)
			continue
		}
		others = append(others, w)
		awaiting += w.seen
	}
	half := (places + 1) / 2
	if c.looks = inARow(c.looks, awaiting >= half); c.looks < awaitedLooks {
		return over
	}
	// As long as they await a half, whoever awaits most has at least an equal part of that.
	slices.SortFunc(others, func(a, b *waits) int { return cmp.Compare(b.seen, a.seen) })
	for _, w := range others {
		if awaiting < half {
			break
		}
		awaiting -= w.seen
		over = append(over, w)
	}
	return over
}
