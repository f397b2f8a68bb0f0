package main

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// outlet is where this program says something: its stdout, or its stderr. Nothing ends a write to
// who does not read, so a goroutine of its own makes it: whoever is in a hurry waits for it no longer
// than toldWithin, and writes nothing more there. What a command says goes another way, see
// [outputPipe].
type outlet struct {
	to      io.Writer
	signals *signals

	writing sync.Mutex // one after the other, also those that nobody waits for
	mu      sync.Mutex
	failed  error // why nothing more is written
}

// Write implements io.Writer.
func (o *outlet) Write(text []byte) (int, error) {
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
		o.writing.Lock()
		defer o.writing.Unlock()
		n, err = o.to.Write(kept)
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
