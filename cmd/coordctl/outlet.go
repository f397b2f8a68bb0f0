package main

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"time"
)

// outlet is where this program says something: its stdout, or its stderr. Nothing ends a write to
// who does not read, so a goroutine of its own makes it: whoever is in a hurry waits for it no longer
// than toldWithin, and writes nothing more there. What a command says goes another way, see
// [outputPipe], and is known here for where it ends: what this program says begins a line.
type outlet struct {
	to      io.Writer
	signals *signals

	writing sync.Mutex // one after the other, also those that nobody waits for
	open    bool       // what was passed on has not ended its line
	mu      sync.Mutex
	failed  error // why nothing more is written
}

// Write implements io.Writer, for what this program says itself.
func (o *outlet) Write(text []byte) (int, error) { return o.write(text, o.say) }

// write has one of the following write a text.
func (o *outlet) write(text []byte, by func([]byte) (int, error)) (int, error) {
	if err := o.err(); err != nil {
		return 0, err
	}
	var (
		n     int
		err   error
		ended = make(chan struct{})
	)
	kept := bytes.Clone(text) // for as long as it takes
	go func() {
		defer close(ended)
		n, err = by(kept)
	}()
	select {
	case <-ended:
		o.fail(err)
		return n, err
	case <-o.signals.hurried():
	}
	select {
	case <-ended:
		o.fail(err)
		return n, err
	case <-time.After(toldWithin):
		o.fail(errUntaken)
		return 0, errUntaken
	}
}

// say writes what this program says itself, which ends in a newline.
func (o *outlet) say(text []byte) (int, error) {
	o.writing.Lock()
	defer o.writing.Unlock()
	if !o.open {
		return o.to.Write(text)
	}
	n, err := o.to.Write(slices.Concat([]byte("\n"), text)) // at once: nobody comes between them
	o.open = n == 0
	return max(0, n-1), err
}

// pass writes what somebody else has said.
func (o *outlet) pass(text []byte) (int, error) {
	o.writing.Lock()
	defer o.writing.Unlock()
	n, err := o.to.Write(text)
	if n > 0 {
		o.open = text[n-1] != '\n'
	}
	return n, err
}

// replayed is where goes what a command has said before, in place of w.
func replayed(w io.Writer) io.Writer {
	if o, ok := w.(*outlet); ok {
		return writerFunc(func(text []byte) (int, error) { return o.write(text, o.pass) })
	}
	return w
}

// live is where goes what a command says, in place of w: for as long as it takes.
func live(w io.Writer) io.Writer {
	if o, ok := w.(*outlet); ok {
		return writerFunc(o.pass)
	}
	return w
}

// writerFunc is an [io.Writer].
type writerFunc func([]byte) (int, error)

// Write implements [io.Writer].
func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

func (o *outlet) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = err
	}
}

// err is why not all that was to be said could be written.
func (o *outlet) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// bare is what is written to in the end: a command may be given it as its own.
func bare(w io.Writer) io.Writer {
	if o, ok := w.(*outlet); ok {
		return o.to
	}
	return w
}
