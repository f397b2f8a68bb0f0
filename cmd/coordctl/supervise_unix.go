//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/client"
)

const (
	// lookEvery is the longest time between two looks at what is left of the ownership.
	// Timers stand still while the machine is suspended, and the ownership does not.
	lookEvery = time.Second
	// goneEvery is how often it is looked whether a group that was killed is gone.
	goneEvery = 5 * time.Millisecond
	// diedWithin is how long a guard that has killed its group, and so itself, takes to be
	// gone.
	diedWithin = 500 * time.Millisecond
	// tellWithin is how long telling the guard something may take.
	tellWithin = 100 * time.Millisecond
	// guardWithin is how long the guard may take to start.
	guardWithin = 30 * time.Second
)

// fenceVariable holds the fence, for the command.
const fenceVariable = "COORDINATOR_FENCE"

func supported() error { return nil }

// supervise runs the command under a reservation and returns once it has ended and what it
// wrote was read, or once it and all of its process group are gone because the ownership was
// lost. Output may be passed on still.
//
// Why the command does not outlive the ownership: SIGTERM is sent --kill-after before the
// owner's deadline unless that has moved by then, and SIGKILL at the deadline. If this
// program cannot do it any more the guard does (guard_unix.go): at the last deadline that
// it was told of, or at once when this program is gone. On Linux the kernel kills the
// command itself with this program, too.
func (r *runner) supervise(reservation *client.Reservation, kept *capture) ending {
	g, err := startGuard()
	if err != nil {
		return ending{unstarted: &guardError{err}}
	}
	defer g.end()
	command, stdin, err := r.command(reservation)
	if err != nil {
		return ending{unstarted: err}
	}
	s := &supervision{
		reservation: reservation, guard: g, command: command,
		grace: min(r.flags.killAfter, reservation.Remaining()/3),
	}
	if !r.flags.noOutput {
		if err := s.pipes(r, kept); err != nil {
			return ending{unstarted: &guardError{err}}
		}
	}
	waited, err := s.start(r)
	s.pump(err == nil)
	if err != nil {
		return ending{unstarted: err}
	}
	if stdin != nil {
		go feed(stdin, r.stdin)
	}
	var e ending
	if s.until(waited, r) {
		var signalled bool
		e.status, signalled = statusOf(command.ProcessState)
		if s.stopped == nil && signalled {
			// The guard may have been quicker, because this program stood still.
			switch {
			case reservation.Context().Err() != nil:
				s.stopped = r.unanswered(context.Cause(reservation.Context()))
			case e.status == exitSignalled+int(syscall.SIGKILL) && g.died():
				s.stopped = errGuarded
			}
		}
	} else {
		e.remains = fmt.Sprintf("process %d", command.Process.Pid)
	}
	if s.stopped != nil && !g.kill() {
		e.remains = fmt.Sprintf("process group %d", g.process.Process.Pid)
	}
	e.signals = s.drain(r)
	e.stopped = s.stopped
	e.passOn, e.breakOff = func() { <-s.passed }, s.breakOff
	return e
}

// command prepares the command. stdin is not nil where its stdin is to be fed.
func (r *runner) command(reservation *client.Reservation) (command *exec.Cmd, stdin io.WriteCloser, err error) {
	command = exec.CommandContext(context.Background(), r.arguments[0], r.arguments[1:]...)
	if command.Err != nil {
		return nil, nil, command.Err
	}
	command.Env = append(r.environment[:len(r.environment):len(r.environment)],
		fenceVariable+"="+strconv.FormatUint(reservation.Fence(), 10))
	command.Stdout, command.Stderr = bare(r.stdout), bare(r.stderr)
	if file, ok := r.stdin.(*os.File); ok && !isCharacterDevice(file) {
		command.Stdin = file
		return command, nil, nil
	}
	// The command is in another process group than a terminal reads for: it would be
	// stopped when it reads.
	stdin, err = command.StdinPipe()
	return command, stdin, err
}

// feed copies a terminal to the command. Nobody waits for it: nothing ends a read from a
// terminal but the end of this program.
func feed(to io.WriteCloser, from io.Reader) {
	_, _ = io.Copy(to, from) // the command need not read
	_ = to.Close()
}

func isCharacterDevice(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// supervision is a command that runs.
type supervision struct {
	reservation *client.Reservation
	guard       *guard
	command     *exec.Cmd
	grace       time.Duration // from SIGTERM to SIGKILL
	stopped     error         // why SIGTERM was sent
	killAt      <-chan time.Time
	streams     []*outputPipe
	read        chan struct{} // closed once all output was read
	passed      chan struct{} // closed once it was passed on, too, or is not any more
	breakOff    func(error)   // ends the passing on, and says why
}

// start starts the command, unless it must not be started any more, and returns what is closed once
// it has ended.
func (s *supervision) start(r *runner) (<-chan struct{}, error) {
	// The guard knows the deadline before there is anything to kill.
	if _, stop := s.look(); stop {
		return nil, errTooLate
	}
	// What has come since it was admitted is no signal for the command, which may not expect any yet.
	if which := r.signals.asked(); which != nil {
		return nil, &signalledError{which}
	}
	return s.guard.start(s.command)
}

// look tells the guard how long the ownership goes on, and returns when to look again and
// whether the command must be stopped.
func (s *supervision) look() (again time.Duration, stop bool) {
	remaining := s.guard.tell(s.reservation)
	return max(0, min(lookEvery, remaining-s.grace)), remaining <= s.grace
}

// until returns when the command has ended, and reports whether it has: one that SIGKILL does not
// end, because it hangs in the kernel or is another user's, is not waited for.
func (s *supervision) until(waited <-chan struct{}, r *runner) (ended bool) {
	lost := s.reservation.Context().Done()
	var tooLong <-chan time.Time
	for {
		var again <-chan time.Time
		if s.stopped == nil {
			next, stop := s.look()
			select {
			case <-waited:
				return true // by itself, whatever became of the ownership meanwhile
			default:
			}
			if stop {
				s.stop(r)
				lost = nil
			} else {
				again = time.After(next)
			}
		}
		select {
		case <-waited:
			return true
		case <-again:
		case <-lost:
		case received := <-r.signals.come:
			if which, ok := received.(syscall.Signal); ok {
				s.signal(which)
			}
		case <-s.killAt:
			s.signal(syscall.SIGKILL)
			s.killAt, tooLong = nil, time.After(goneWithin)
		case <-tooLong:
			return false
		}
	}
}

// stop sends SIGTERM, and SIGKILL later: when the ownership ends, or where it has been
// lost already after the grace.
func (s *supervision) stop(r *runner) {
	wait := s.reservation.Remaining()
	s.stopped = errUnrenewed
	if wait == 0 {
		wait, s.stopped = s.grace, context.Cause(s.reservation.Context())
	}
	s.stopped = r.unanswered(s.stopped)
	s.signal(syscall.SIGTERM)
	s.signal(syscall.SIGCONT) // what is stopped does not hear it
	s.killAt = time.After(wait)
	r.tell("ownership is lost (%s): stopping the command", r.inWords(s.stopped))
}

// signal sends a signal to the whole group, and to the command where it has left that.
func (s *supervision) signal(which syscall.Signal) {
	s.guard.signal(which)
	if group, err := syscall.Getpgid(s.command.Process.Pid); err == nil && group != s.guard.process.Process.Pid {
		_ = s.command.Process.Signal(which) // it may have ended
	}
}

// errUnrenewed is why a command is stopped ahead of the owner's deadline.
var errUnrenewed = errors.New("the reservation could not be renewed, and is about to end")

// errGuarded is why a command was stopped although the ownership goes on: it was renewed
// while this program stood still, and the guard had not been told.
var errGuarded = errors.New("this program stood still for so long that the command had to be stopped")

// errTooLate is why a command was not started although it was admitted.
var errTooLate = errors.New("the reservation was about to end before the command could be started")

// statusOf is an exit status as a shell has it, and whether it was a signal.
func statusOf(state *os.ProcessState) (status int, signalled bool) {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalled + int(status.Signal()), true
	}
	return state.ExitCode(), false
}

// guardError is a guard that could not be started.
type guardError struct{ err error }

func (e *guardError) Error() string { return "its guard could not be started: " + e.err.Error() }
func (e *guardError) Unwrap() error { return e.err }

// guard is the process that leads the command's process group and kills it when this
// program cannot. See [runGuard], which is the other side.
type guard struct {
	process *exec.Cmd
	pipe    *os.File
	told    time.Duration // the latest moment, on [sharedClock]; 0: none
	killed  time.Time     // when the group was first sent SIGKILL
	ended   bool
}

// startGuard starts this very program as a guard.
func startGuard() (g *guard, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process := exec.CommandContext(context.Background(), self, guardArgument)
	process.Args[0] = os.Args[0]
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close() //nolint:errcheck // the guard has it as its own by then
	process.Stdin = theirs
	ready, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	g = &guard{process: process, pipe: ours}
	// It must ignore the signals of the group before there are any.
	_ = ready.(*os.File).SetReadDeadline(time.Now().Add(guardWithin)) //nolint:errcheck,forcetypeassert // it is one
	if _, err := io.ReadFull(ready, make([]byte, len(guardReady))); err != nil {
		g.kill()
		return nil, fmt.Errorf("it does not say that it is ready: %w", err)
	}
	return g, nil
}

// tell tells the guard when the ownership ends, and returns how long that is from now.
// That the guard is gone is no error: what it would do is this program's task as well.
func (g *guard) tell(reservation *client.Reservation) time.Duration {
	now, ok := sharedClock() // before the ownership is looked at, so that it errs to the early side
	remaining := reservation.Remaining()
	if ok && remaining > 0 {
		// It waits only so long: a group may be stopped, its guard too, and the pipe full.
		g.told = now + remaining
		_ = g.write()
	}
	return remaining
}

func (g *guard) write() error {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(tellWithin))
	_, err := g.pipe.Write(binary.BigEndian.AppendUint64(nil, uint64(g.told)))
	return err
}

// died reports whether the guard is gone, once its command was killed: then it was the guard
// that did it, or whoever killed both. It tells the guard what that knows already: nobody
// reads what is written for one that is gone.
func (g *guard) died() bool {
	for deadline := time.Now().Add(diedWithin); time.Now().Before(deadline); <-time.After(goneEvery) {
		if errors.Is(g.write(), syscall.EPIPE) {
			return true
		}
	}
	return false
}

// start starts a command in the guard's group and returns what is closed once it has
// ended. The thread that starts it lives until then, because the kernel takes that thread's
// end for its parent's.
func (g *guard) start(command *exec.Cmd) (<-chan struct{}, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.process.Process.Pid}
	dieWithParent(command.SysProcAttr)
	started, waited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait() // what it ended with is in ProcessState
			close(waited)
		}
	}()
	return waited, <-started
}

// signal sends a signal to the whole group. The guard ignores all but SIGKILL. Its id is
// not given to others before this program has waited for it.
func (g *guard) signal(s syscall.Signal) {
	if g.ended {
		return
	}
	if s == syscall.SIGKILL && g.killed.IsZero() {
		g.killed = time.Now()
	}
	_ = syscall.Kill(-g.process.Process.Pid, s) // nobody left is as good
}

// end ends the guard and leaves everybody else of the group alone. It is not asked: that
// could take as long as the group is stopped for.
func (g *guard) end() {
	if g.ended {
		return
	}
	g.ended = true
	_ = g.process.Process.Kill()
	_ = g.process.Wait()
	_ = g.pipe.Close()
}

// kill ends everybody in the group, the guard included, and reports whether they are gone: it does
// not wait any longer for who hangs in the kernel, or is another user's.
func (g *guard) kill() (gone bool) {
	g.signal(syscall.SIGKILL)
	g.ended = true
	_ = g.pipe.Close()
	_ = g.process.Wait()
	for !errors.Is(syscall.Kill(-g.process.Process.Pid, 0), syscall.ESRCH) {
		if time.Since(g.killed) >= goneWithin {
			return false
		}
		<-time.After(goneEvery)
	}
	return true
}
