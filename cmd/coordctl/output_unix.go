//go:build unix

package main

import (
	"errors"
	"os"
	"sync"
	"time"
)

const (
	// outputGrace is how long output is read that others write after the command has
	// ended: what it left behind in the background.
	outputGrace = 2 * time.Second
	// What is in a pipe by then is read to its end: for as long as something comes at once, and
	// no more than a pipe can hold.
	restWithin   = 100 * time.Millisecond
	restBytesMax = 1 << 20
	readBytes    = 32 << 10
)

// outputPipe carries one stream of a command to where it belongs.
type outputPipe struct {
	from, into *os.File // into is the command's end
	to         *passing
}

// pipes gives the command a pipe for each of its streams.
func (s *supervision) pipes(r *runner, kept *capture) error {
	for _, to := range []*passing{
		{kept: kept, stream: streamStdout, to: r.stdout},
		{kept: kept, stream: streamStderr, to: r.stderr},
	} {
		from, into, err := os.Pipe()
		if err != nil {
			s.pump(false)
			return err
		}
		s.streams = append(s.streams, &outputPipe{from: from, into: into, to: to})
		if to.stream == streamStdout {
			s.command.Stdout = into
		} else {
			s.command.Stderr = into
		}
	}
	return nil
}

// pump closes the command's ends of the pipes, and carries what comes through them if it was
// started. What it returns is closed once that is done: when nobody has the other ends any
// more, or as [outputPipe.run] says.
func (s *supervision) pump(started bool) (drained <-chan struct{}) {
	done := make(chan struct{}, len(s.streams))
	all := make(chan struct{})
	s.broken = make(chan struct{})
	for _, stream := range s.streams {
		_ = stream.into.Close()
		go func() {
			if started {
				stream.run(s.broken)
			}
			_ = stream.from.Close() // it was only read
			done <- struct{}{}
		}()
	}
	go func() {
		defer close(all)
		for range s.streams {
			<-done
		}
	}()
	return all
}

// run carries the stream until its end, and passes it on until that is broken off. What was read
// last is written while the next is read, so that reading goes on when a write does not.
func (p *outputPipe) run(broken <-chan struct{}) {
	pass, passed := make(chan []byte), make(chan struct{})
	go func() {
		defer close(passed)
		for written := range pass {
			p.to.pass(written)
		}
	}()
	p.read(pass, broken)
	close(pass)
	select {
	case <-passed:
	case <-broken:
	}
}

// read reads the stream until its end, or until its deadline for reading has passed and
// there is nothing left of what was written before. The deadline is none for writing: who reads
// slowly gets everything.
func (p *outputPipe) read(pass chan<- []byte, broken <-chan struct{}) {
	buffer, other := make([]byte, readBytes), make([]byte, readBytes)
	for over, rest := false, restBytesMax; rest > 0; {
		n, err := p.from.Read(buffer)
		if n > 0 { // nothing is not passed on: a full disk refuses that, too
			p.to.keep(buffer[:n])
			select {
			case pass <- buffer[:n]:
				buffer, other = other, buffer
			case <-broken:
				pass = nil // what follows a gap is not passed on
			}
		}
		if over {
			rest -= n
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !over:
			over = true
			_ = p.from.SetReadDeadline(time.Now().Add(restWithin))
		default:
			return
		}
	}
}

// drain waits until the output of a command that has ended is where it belongs. Nothing else ends
// a write to who does not read, so the second signal breaks it off: the first may be one that the
// command had too. After a stop it takes no longer than the grace. What was written is kept
// all the same.
func (s *supervision) drain(drained <-chan struct{}, r *runner) {
	for _, stream := range s.streams {
		_ = stream.from.SetReadDeadline(time.Now().Add(outputGrace)) // it may be closed: there was no more
	}
	breakOff := sync.OnceFunc(func() { close(s.broken) })
	if s.stopped != nil {
		defer time.AfterFunc(outputGrace, breakOff).Stop()
	}
	defer r.heed(2, breakOff)()
	<-drained
}
