package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/internal/stopsignal"
)

// signalsMost is how many signals may arrive at the same time; more are lost, as the system itself
// loses them.
const signalsMost = 16

// signals are what the system tells this program to do. They are asked for here and nowhere else,
// and one of these hears them at a time:
//
//   - From the start, [signals.interrupt]: the first that asks for an end ends the context of the
//     command, which says what became of its call, and nobody waits for who does not take that.
//   - From [signals.take] on, nobody who was not asked: `run` lets no call be cut off. Before its
//     command is started and once that has ended, [signals.heed] counts those that ask for an end;
//     while it runs, [supervision.until] passes them on.
//
// The guard of a run is another process, and ignores them: see [ignoreSignals].
type signals struct {
	come chan os.Signal // that nobody has heard yet
	// restore makes signals do what they do where nobody asks for them.
	restore func()

	mu        sync.Mutex
	taken     bool
	hurries   bool          // hurry is closed
	hurry     chan struct{} // closed once nobody is waited for who does not take what is said
	restoring *time.Timer
	early     func() []os.Signal // ends interrupt's hearing, and returns what that has heard
}

// newSignals hears what is put into it, and nothing of the system.
func newSignals() *signals {
	return &signals{come: make(chan os.Signal, signalsMost), restore: func() {}, hurry: make(chan struct{})}
}

// catchSignals hears what asks this program to end. Whoever is told to end tells what has become
// of a call, whichever way it is told.
func catchSignals() *signals {
	s := newSignals()
	s.ask(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	s.restore = func() { signal.Stop(s.come) }
	return s
}

// ask asks for signals. SIGHUP and SIGINT that were ignored when this program was started stay so, for
// the command of a run too (nohup, a shell's background jobs). Of the others Go cannot tell.
func (s *signals) ask(which ...os.Signal) {
	for _, one := range which {
		if !signal.Ignored(one) {
			signal.Notify(s.come, one)
		}
	}
}

// interrupt returns a context that the first signal ends that asks for an end. Whatever hangs all the
// same, the next one ends the program, half a second later.
func (s *signals) interrupt(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	s.early = s.heed(1, cancel)
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.taken {
			s.hurryUp()
			s.restoring = time.AfterFunc(stopsignal.SameWithin, s.restore)
		}
	})
	return ctx
}

// take ends what [signals.interrupt] has begun. What that has heard is heard once more, by whoever
// asks next.
func (s *signals) take() {
	s.mu.Lock()
	s.taken = true
	if s.restoring != nil {
		s.restoring.Stop()
	}
	if s.hurries {
		s.hurries, s.hurry = false, make(chan struct{})
	}
	s.mu.Unlock()
	for _, heard := range s.early() {
		select {
		case s.come <- heard:
		default: // there are as many already
		}
	}
	s.listen()
}

// asked returns a signal that asks for an end and has come already, or nil.
func (s *signals) asked() os.Signal {
	for len(s.come) > 0 {
		if received := <-s.come; ends(received) {
			return received
		}
	}
	return nil
}

// hurried returns what is closed once nobody is waited for who does not take what is said.
func (s *signals) hurried() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hurry
}

// hurryUp closes that; s.mu is held.
func (s *signals) hurryUp() {
	if !s.hurries {
		s.hurries = true
		close(s.hurry)
	}
}

// giveUp waits no more for who does not take what is said.
func (s *signals) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurryUp()
}

// lastWords has the next signal give up where none does by itself, because they were taken, until
// it is ended.
func (s *signals) lastWords() (end func()) {
	s.mu.Lock()
	taken := s.taken
	s.mu.Unlock()
	if !taken {
		return func() {}
	}
	heard := s.heed(1, s.giveUp)
	return func() { heard() }
}

// close hears nothing any more.
func (s *signals) close() {
	s.mu.Lock()
	taken := s.taken
	s.mu.Unlock()
	if !taken {
		s.early()
	}
	signal.Stop(s.come)
}

// heed hears the signals that come until it is ended, which returns those of them that ask
// for an end. The nth of these does not wait any more for what goes on: it gives up.
func (s *signals) heed(nth int, giveUp func()) (end func() []os.Signal) {
	var (
		heard       []os.Signal
		over, ended = make(chan struct{}), make(chan struct{})
	)
	hear := func(received os.Signal) {
		if !ends(received) {
			return
		}
		if heard = append(heard, received); len(heard) == nth {
			giveUp()
		}
	}
	go func() {
		defer close(ended)
		for {
			select {
			case received := <-s.come:
				hear(received)
			case <-over:
				for len(s.come) > 0 { // they came in time
					hear(<-s.come)
				}
				return
			}
		}
	}()
	return func() []os.Signal {
		close(over)
		<-ended
		return heard
	}
}

// signalNumber is the number of a signal.
func signalNumber(which os.Signal) int {
	if n, ok := which.(syscall.Signal); ok {
		return int(n)
	}
	return 0
}
