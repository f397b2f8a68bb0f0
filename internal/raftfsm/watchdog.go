package raftfsm

import (
	"fmt"
	"sync"
	"time"
)

const (
	// watchTick is the watchdog's own clock. A process that was stopped and goes on
	// finds one tick at most, however long it was gone.
	watchTick = time.Second
	// watchTicksMax ticks inside one call end the process.
	watchTicksMax = 10
)

// watchdog times the calls that wait for the disk. Raft keeps its leadership while
// its disk hangs, and cannot even be shut down then; only the end of the process
// lets another node lead. Proposals are not timed: they also wait without a quorum.
// Nor is what takes the longer the larger the state is, see the package documentation.
type watchdog struct {
	dir   string
	fatal func(error)

	mu     sync.Mutex
	calls  map[*diskCall]struct{}
	commit *diskCall // of the state, which has one at a time

	stop chan struct{}
	done chan struct{}
}

// diskCall is one that has not returned.
type diskCall struct {
	name  string
	ticks int
}

func newWatchdog(dir string, fatal func(error)) *watchdog {
	w := &watchdog{
		dir: dir, fatal: fatal, calls: make(map[*diskCall]struct{}),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

func (w *watchdog) run() {
	defer close(w.done)
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if name, hung := w.tick(); hung {
				w.fatal(fmt.Errorf("disk hung: %s has not returned for %v (directory %s)", name, watchTicksMax*watchTick, w.dir))
				return
			}
		case <-w.stop:
			return
		}
	}
}

// tick counts for every call that is under way and returns one that has had enough.
func (w *watchdog) tick() (name string, hung bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for call := range w.calls {
		call.ticks++
		if call.ticks >= watchTicksMax {
			return call.name, true
		}
	}
	return "", false
}

func (w *watchdog) enter(name string) *diskCall {
	call := &diskCall{name: name}
	w.mu.Lock()
	w.calls[call] = struct{}{}
	w.mu.Unlock()
	return call
}

func (w *watchdog) leave(call *diskCall) {
	w.mu.Lock()
	delete(w.calls, call)
	w.mu.Unlock()
}

// patrol makes a call once a tick, one at a time, until stop is closed. It stands for calls
// that are too many to be timed, each of which would keep it waiting.
func (w *watchdog) patrol(name string, call func(), stop <-chan struct{}) {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			watched := w.enter(name)
			call()
			w.leave(watched)
		case <-stop:
			return
		}
	}
}

// beforeCommit and afterCommit are the store's commit observer.
func (w *watchdog) beforeCommit() {
	call := w.enter("a commit of the state")
	w.mu.Lock()
	w.commit = call
	w.mu.Unlock()
}

func (w *watchdog) afterCommit() {
	w.mu.Lock()
	call := w.commit
	w.mu.Unlock()
	w.leave(call)
}

// close ends the watch.
func (w *watchdog) close() {
	close(w.stop)
	<-w.done
}
