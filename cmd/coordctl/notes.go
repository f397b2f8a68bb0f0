package main

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/atmostonce/coordinator/internal/oneline"
)

// notesMost is how many notes wait for somebody to take them; what comes then is not said.
const notesMost = 16

// notes are lines that are said while something else goes on, which does not wait for who does not
// take them.
type notes struct {
	texts   chan string
	written chan struct{} // closed once all were, or are not any more
	over    atomic.Bool   // nothing follows what is being written: an error is the last line
}

// noteJSON is how -o json shows what is no failure.
type noteJSON struct {
	Message string `json:"message"`
}

// noted is a note as it is written: one line, and with -o json one object, as an error is.
func (c *control) noted(line string) string {
	if c.output != "json" {
		return "coordctl: " + oneline.Of(line) + "\n"
	}
	text, err := json.Marshal(map[string]noteJSON{"note": {oneline.Of(line)}})
	if err != nil {
		return "" // a string can be encoded
	}
	return string(text) + "\n"
}

// note says something that is no failure.
func (c *control) note(line string) { c.say(c.noted(line)) }

// say has a text written to stderr, once those before it are.
func (c *control) say(text string) {
	if c.notes == nil {
		n := &notes{texts: make(chan string, notesMost), written: make(chan struct{})}
		go func() {
			defer close(n.written)
			for text := range n.texts {
				if !n.over.Load() {
					_, _ = c.stderr.Write([]byte(text)) // there is nobody else to tell
				}
			}
		}()
		c.notes = n
	}
	select {
	case c.notes.texts <- text:
	default:
	}
}

// settleNotes waits for the notes to be written, before what is said last. Who does not take them is
// not waited for.
func (c *control) settleNotes() {
	if c.notes == nil {
		return
	}
	close(c.notes.texts)
	select {
	case <-c.notes.written:
	case <-time.After(toldWithin):
		c.notes.over.Store(true)
	}
	c.notes = nil
}
