//go:build unix

package main

import (
	"errors"
	"math"
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
	// backlogBytesMax is how much of a stream waits to be passed on while the command runs: then
	// it is not read any further, and the command waits. What its pipe holds when it has ended
	// comes on top, and what that holds when the grace is over.
	backlogBytesMax = 1 << 20
)

// outputPipe carries one stream of a command to where it belongs. One goroutine reads the pipe and
// another one passes on what was read, so that reading comes to the end of a command's output
// whether or not somebody takes that.
type outputPipe struct {
	from, into *os.File // into is the command's end
	to         *passing
	waiting    backlog
}

// pipes gives the command a pipe for each of its streams.
func (s *supervision) pipes(r *runner, kept *capture) error {
	for _, to := range []*passing{
		{kept: kept, stream: streamStdout, to: live(r.stdout)},
		{kept: kept, stream: streamStderr, to: live(r.stderr)},
	} {
		from, into, err := os.Pipe()
		if err != nil {
			s.pump(false)
			return err
		}
		s.streams = append(s.streams, newOutputPipe(from, into, to))
		if to.stream == streamStdout {
			s.command.Stdout = into
		} else {
			s.command.Stderr = into
		}
	}
	return nil
}

func newOutputPipe(from, into *os.File, to *passing) *outputPipe {
	p := &outputPipe{from: from, into: into, to: to, waiting: backlog{room: backlogBytesMax}}
	p.waiting.changed.L = &p.waiting.mu
	return p
}

// pump closes the command's ends of the pipes, and carries what comes through them if it was
// started: s.read is closed when nobody has the other ends any more, or as [outputPipe.read] says,
// and s.passed once all of it was passed on, or s.breakOff was called.
func (s *supervision) pump(started bool) {
	var (
		reading, passing sync.WaitGroup
		once             sync.Once
		broken           = make(chan struct{})
	)
	s.read, s.passed = make(chan struct{}), make(chan struct{})
	s.breakOff = func(why error) {
		once.Do(func() {
			for _, stream := range s.streams {
				stream.to.kept.cutOff(why)
			}
			close(broken)
		})
	}
	for _, stream := range s.streams {
		_ = stream.into.Close()
		if !started {
			_ = stream.from.Close()
			continue
		}
		reading.Go(func() {
			stream.read()
			_ = stream.from.Close() // it was only read
		})
		passing.Go(func() { stream.pass(broken) })
	}
	go func() {
		reading.Wait()
		close(s.read)
		passing.Wait()
		close(s.passed)
	}()
}

// read reads the stream until its end, or until its deadline for reading has passed and
// there is nothing left of what was written before. The deadline is none for passing on: who takes
// it slowly gets everything.
func (p *outputPipe) read() {
	defer p.waiting.close()
	buffer := make([]byte, readBytes)
	for over, rest := false, restBytesMax; rest > 0; {
		n, err := p.from.Read(buffer)
		p.to.keep(buffer[:n])
		p.waiting.put(buffer[:n])
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

// pass passes the stream on until its end, or until that is broken off. A write to who does not
// read is not waited for then: nothing ends it.
func (p *outputPipe) pass(broken <-chan struct{}) {
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for written := p.waiting.take(); len(written) > 0; written = p.waiting.take() {
			p.to.pass(written)
		}
	}()
	select {
	case <-passed:
	case <-broken:
		p.waiting.drop()
	}
}

// backlog is what was read and waits to be passed on.
type backlog struct {
	mu      sync.Mutex
	changed sync.Cond
	bytes   []byte
	room    int  // for so many bytes; what comes then waits
	ended   bool // nothing comes any more
	dropped bool // nothing is passed on any more: what follows a gap is not
}

// put adds what was read once there is room.
func (b *backlog) put(read []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bytes) >= b.room {
		b.changed.Wait()
	}
	if !b.dropped {
		b.bytes = append(b.bytes, read...)
		b.changed.Broadcast()
	}
}

// take waits for something to pass on, and returns a part of it; nothing at the end.
func (b *backlog) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bytes) == 0 && !b.ended {
		b.changed.Wait()
	}
	n := min(len(b.bytes), readBytes)
	taken := b.bytes[:n:n]
	b.bytes = b.bytes[n:]
	b.changed.Broadcast()
	return taken
}

func (b *backlog) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	b.changed.Broadcast()
}

// widen makes room.
func (b *backlog) widen(room int) { b.set(func() { b.room = room }) }

// close says that nothing comes any more.
func (b *backlog) close() { b.set(func() { b.ended = true }) }

// drop gives up what waits, and what still comes.
func (b *backlog) drop() {
	b.set(func() { b.bytes, b.room, b.ended, b.dropped = nil, math.MaxInt, true, true })
}

// drain waits until the output of a command that has ended is read, so that it can be recorded:
// whoever takes it, that is no longer than the grace and the rest. Passing it on is waited for
// after a stop alone, for as long as the grace. Nothing else ends a write to who does not read, so
// the second signal breaks it off: the first may be one that the command had too. What was
// written is kept all the same. It returns how many signals that ask for an end have come.
func (s *supervision) drain(r *runner) (signals int) {
	for _, stream := range s.streams {
		_ = stream.from.SetReadDeadline(time.Now().Add(outputGrace)) // it may be closed: there was no more
		stream.waiting.widen(backlogBytesMax + restBytesMax)
		// What still comes then is bounded otherwise.
		defer time.AfterFunc(outputGrace, func() { stream.waiting.widen(math.MaxInt) }).Stop()
	}
	heard := r.signals.heed(2, func() { s.breakOff(errCutOff) })
	<-s.read
	if s.stopped != nil {
		defer time.AfterFunc(outputGrace, func() { s.breakOff(errUntaken) }).Stop()
		<-s.passed
	}
	return len(heard())
}
