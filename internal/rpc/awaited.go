package rpc

import (
	"cmp"
	"slices"
	"sync"
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

// crowd are the connections of one server over which calls have come.
type crowd struct {
	mu     sync.Mutex
	links  map[*link]int // how many looks in a row too many calls have awaited their messages there
	looks  int           // how many looks in a row they all together have awaited too many
	looked time.Time
}

// join notes a connection, once.
func (c *crowd) join(l *link) {
	if l.crowd.Load() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.ended.Load() || !l.crowd.CompareAndSwap(nil, c) {
		return // whatever comes of the call, nothing is left to be ended
	}
	if c.links == nil {
		c.links = make(map[*link]int)
	}
	c.links[l] = 0
}

// leave forgets a connection that is no more.
func (l *link) leave() {
	l.ended.Store(true)
	if c := l.crowd.Load(); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.links, l)
	}
}

// thin ends the connections that take places for nothing, of as many as there are, and returns how
// many these were. It is called where there are no places left.
func (c *crowd) thin(places int64) (ended int) {
	for _, l := range c.look(places) {
		if l.hangUp != nil {
			l.hangUp()
			ended++
		}
	}
	return ended
}

// look returns the connections that are to be ended. It looks at all of them, once a second.
func (c *crowd) look(places int64) (over []*link) {
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
	var others []waits
	awaiting := int64(0) // but for those that are over
	for l, looks := range c.links {
		w := waits{l, l.awaiting.Load()}
		looks = inARow(looks, w.calls >= awaitedMost)
		c.links[l] = looks
		if looks >= awaitedLooks {
			over = append(over, l)
			continue
		}
		others = append(others, w)
		awaiting += w.calls
	}
	half := (places + 1) / 2
	c.looks = inARow(c.looks, awaiting >= half)
	if c.looks < awaitedLooks {
		return over
	}
	// As long as they await a half, whoever awaits most has at least an equal part of that.
	slices.SortFunc(others, func(a, b waits) int { return cmp.Compare(b.calls, a.calls) })
	for _, w := range others {
		if awaiting < half {
			break
		}
		awaiting -= w.calls
		over = append(over, w.link)
	}
	return over
}

// waits is how many calls await their messages on a connection.
type waits struct {
	link  *link
	calls int64
}
