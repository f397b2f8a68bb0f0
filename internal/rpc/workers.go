package rpc

import (
	"fmt"
	"sync"

	"github.com/atmostonce/coordinator/internal/reason"
)

// workers are the goroutines that carry out the calls of all sessions of a node. Those that
// have nothing to do wait for the next call, of whichever session, up to as many as may; they
// end with the last session.
//
// They are not a session's own: 64 idle ones for each of 2,000 sessions held a gigabyte of
// stacks for as long as the sessions were open.
type workers struct {
	work        chan *sessionWork // to one that has nothing to do
	sessionsMax int

	mu       sync.Mutex
	sessions int           // that are open
	idle     int           // that wait
	none     chan struct{} // closed when no session is open; nil while none is
}

func newWorkers(sessionsMax int) *workers {
	return &workers{work: make(chan *sessionWork), sessionsMax: sessionsMax}
}

// open counts a session as open, unless as many are as may.
func (p *workers) open(link *link) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case link.sessions >= sessionsOfLinkMax:
		return tooManySessions("this connection", sessionsOfLinkMax)
	case p.sessions >= p.sessionsMax:
		return tooManySessions("this node", p.sessionsMax)
	}
	if p.sessions == 0 {
		p.none = make(chan struct{})
	}
	p.sessions++
	link.sessions++
	return nil
}

// tooManySessions is the error of a session that would be one too many.
func tooManySessions(of string, most int) error {
	return reason.Error(reason.Overloaded, fmt.Sprintf("%s has as many sessions open as it may, %d; calls can be made without one", of, most))
}

// close is the end of a session that was opened. None of its calls is under way.
func (p *workers) close(link *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions--
	link.sessions--
	if p.sessions == 0 {
		close(p.none)
		p.none = nil
	}
}

// give gives a call to one that has nothing to do, or to a new one.
func (p *workers) give(w *sessionWork) {
	select {
	case p.work <- w:
	default:
		go p.serve(w)
	}
}

// serve carries out a call, and then others, as long as no more than may wait for one.
func (p *workers) serve(w *sessionWork) {
	for {
		w.session.carryOut(w)
		w = nil // what it holds may be kept for longer
		none := p.rest()
		if none == nil {
			return
		}
		select {
		case w = <-p.work:
		case <-none:
		}
		p.mu.Lock()
		p.idle--
		p.mu.Unlock()
		if w == nil {
			return
		}
	}
}

// rest counts one that has nothing to do, and returns what it waits with; nil: it is not wanted.
func (p *workers) rest() (none <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.none == nil || p.idle >= sessionsIdleMax {
		return nil
	}
	p.idle++
	return p.none
}
