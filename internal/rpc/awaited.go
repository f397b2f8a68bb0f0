package rpc

import (
	"sync"
	"time"
)

// A call whose message has not come takes a place from one that could be carried out, and costs its
// client nothing. So where there are no places left, the connections are ended over which many such
// calls have come and go on coming to nothing: none of them has changed anything.
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

// thin ends the connections that take places for nothing, and returns how many these were. It is
// called where there are no places left.
func (c *crowd) thin() (ended int) {
	for _, l := range c.look() {
		if l.hangUp != nil {
			l.hangUp()
			ended++
		}
	}
	return ended
}

// look returns the connections that are to be ended.
func (c *crowd) look() (over []*link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	since := now.Sub(c.looked)
	if since < awaitedEvery {
		return nil
	}
	c.looked = now
	for l, times := range c.links {
		switch {
		case l.awaiting.Load() < awaitedMost:
			times = 0
		case since > 2*awaitedEvery: // nobody was refused for a while
			times = 1
		default:
			times++
		}
		c.links[l] = times
		if times >= awaitedLooks {
			over = append(over, l)
		}
	}
	return over
}
