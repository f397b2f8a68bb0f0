package main

import (
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// lastWord passes on what is written until the last line is said: what has ended the process
// is the end of its output, whatever is still going on in it and would be logged.
//
// Whoever reads may stand still and not go away: a pager, a stopped shipper of logs, a terminal
// that is held. Whoever logs would stand still with it, and with that a shard, or the
// stop that a signal asks for. So a line that is not taken within writePatience is not waited
// for any longer, nor is any that comes after it until everything has been taken: they are
// kept as long as there is room for them, and counted after that. Before and after such a time
// a line has been written when Write returns.
type lastWord struct {
	to io.Writer
	// leftOut is the line that stands for so many; nil: none does.
	leftOut func(lines int) []byte

	mu    sync.Mutex
	said  bool
	kept  [][]byte // lines to be written
	bytes int      // of them
	lost  int      // lines that there was no room for, behind those that are kept
	late  bool     // lines are not waited for
	empty chan struct{}
}

const (
	writePatience = 100 * time.Millisecond
	// lastPatience is how long the last line is waited for: the process ends after it.
	lastPatience = time.Second
	// keptBytesMax bounds what is kept for a reader that stands still.
	keptBytesMax = 1 << 20
)

// Write implements [io.Writer]. It is given whole lines.
func (w *lastWord) Write(line []byte) (int, error) {
	w.mu.Lock()
	if w.said {
		w.mu.Unlock()
		return len(line), nil
	}
	if w.lost > 0 || w.bytes+len(line) > keptBytesMax && len(w.kept) > 0 {
		w.lost++
		w.mu.Unlock()
		return len(line), nil
	}
	empty, late := w.keep(slices.Clone(line)), w.late
	w.mu.Unlock()
	if !late && !waitFor(empty, writePatience) {
		w.mu.Lock()
		w.late = w.empty == empty // otherwise it has just been taken
		w.mu.Unlock()
	}
	return len(line), nil
}

// say writes the last line.
func (w *lastWord) say(line string) {
	w.mu.Lock()
	if w.lost > 0 {
		w.keep(w.standIn())
	}
	w.said = true
	empty := w.keep([]byte(line + "\n"))
	w.mu.Unlock()
	waitFor(empty, lastPatience)
}

// keep has the line written behind those that are kept, and returns what is closed once all of
// them are. The lock is held.
func (w *lastWord) keep(line []byte) (empty <-chan struct{}) {
	w.kept, w.bytes = append(w.kept, line), w.bytes+len(line)
	if w.empty == nil {
		w.empty = make(chan struct{})
		go w.pass()
	}
	return w.empty
}

// standIn takes what is lost as told, and returns the line that tells it. The lock is held.
func (w *lastWord) standIn() (line []byte) {
	if w.leftOut != nil {
		line = w.leftOut(w.lost)
	}
	w.lost = 0
	return line
}

// pass writes what is kept, until that is nothing.
func (w *lastWord) pass() {
	for {
		w.mu.Lock()
		if len(w.kept) == 0 && w.lost > 0 {
			w.keep(w.standIn())
		}
		if len(w.kept) == 0 {
			close(w.empty)
			w.kept, w.bytes, w.empty, w.late = nil, 0, nil, false
			w.mu.Unlock()
			return
		}
		line := w.kept[0]
		w.mu.Unlock()
		_, _ = w.to.Write(line) // nobody is left to be told
		w.mu.Lock()
		w.kept, w.bytes = w.kept[1:], w.bytes-len(line)
		w.mu.Unlock()
	}
}

// waitFor reports whether done was closed in time.
func waitFor(done <-chan struct{}, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (w *lastWord) isTerminal() bool {
	file, ok := w.to.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
