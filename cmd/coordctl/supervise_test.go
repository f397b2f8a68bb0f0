//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// unowned is a run whose ownership has ended, and a command that nobody gets the signals of.
func unowned(t *testing.T) (*runner, *client.Reservation, *exec.Cmd) {
	t.Helper()
	r, reservation, _ := reserved(t, &stub{}, time.Minute)
	if err := reservation.Release(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("true")
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	return r, reservation, command
}

// A command that SIGKILL does not end, because it hangs in the kernel or is another user's, is
// not waited for without a bound.
func TestACommandThatCannotBeKilledIsLeft(t *testing.T) {
	leakless(t)
	r, reservation, command := unowned(t)
	synctest.Test(t, func(t *testing.T) {
		r.signals = newSignals()
		s := &supervision{reservation: reservation, guard: &guard{ended: true}, command: command, grace: time.Minute}
		began := time.Now()
		if ended := s.until(make(chan struct{}), r); ended || s.stopped == nil {
			t.Errorf("ended: %t, stopped: %v", ended, s.stopped)
		}
		if took := time.Since(began); took != s.grace+goneWithin {
			t.Errorf("it took %v", took)
		}
	})
}

// A group of which somebody is there after SIGKILL is told.
func TestAGroupThatIsNotGone(t *testing.T) {
	for _, remains := range []bool{false, true} {
		leader := exec.Command("sleep", "60")
		leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := leader.Start(); err != nil {
			t.Fatal(err)
		}
		theirs, ours, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = theirs.Close()
		g := &guard{process: leader, pipe: ours}
		if remains {
			// One that nobody has waited for is still there.
			member := exec.Command("sleep", "60")
			member.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: leader.Process.Pid}
			if err := member.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = member.Wait() }() // it was killed
			g.killed = time.Now().Add(-goneWithin)
		}
		if gone := g.kill(); gone == remains {
			t.Errorf("gone: %t", gone)
		}
	}
}

// What could not be stopped is told, and is never recorded.
func TestWhatIsLeftBehindIsTold(t *testing.T) {
	leakless(t)
	commits := 0
	r, reservation, said := reserved(t, &stub{commit: func() error { commits++; return nil }}, time.Minute)
	e := ending{stopped: errors.New("the key was purged"), remains: "process group 7"}
	code := r.report(r.settle(reservation, e, newCapture()))
	const want = "ownership was lost (the key was purged) and process group 7 goes on 5s after SIGKILL: what it does is unknown, and nothing is recorded; "
	if code != 7 || commits != 0 || !strings.Contains(said.String(), want) {
		t.Errorf("exit code %d, %d commits, %q", code, commits, said)
	}
}

// Who is told of it may stand still: the command is stopped all the same, and in time.
func TestAStopWaitsForNobodyWhoIsTold(t *testing.T) {
	leakless(t)
	r, reservation, command := unowned(t)
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		r.signals, r.stderr, r.flags.verbose = newSignals(), &stuck{asked: make(chan struct{}, 1), never: never}, true
		s := &supervision{reservation: reservation, guard: &guard{ended: true}, command: command, grace: time.Minute}
		began := time.Now()
		if ended := s.until(make(chan struct{}), r); ended {
			t.Error("it has ended")
		}
		if took := time.Since(began); took != s.grace+goneWithin {
			t.Errorf("it took %v", took)
		}
		r.settleNotes()
		close(never)
	})
}

// A signal that comes once the key is reserved, while the guard is being started, is one before the
// start: the command is not started to get it.
func TestASignalWhileTheGuardIsStarted(t *testing.T) {
	leakless(t)
	released := 0
	r, reservation, said := reserved(t, &stub{release: func(context.Context) error { released++; return nil }}, time.Minute)
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	defer ours.Close()
	r.signals.come <- syscall.SIGUSR1
	r.signals.come <- syscall.SIGTERM
	s := &supervision{reservation: reservation, guard: &guard{pipe: ours}, command: exec.Command("true")}
	_, err = s.start(r)
	code := r.report(r.settle(reservation, ending{unstarted: err}, newCapture()))
	if want := "coordctl: received SIGTERM; the command was not started\n"; code != 143 || said.String() != want || released != 1 || s.command.Process != nil {
		t.Errorf("exit code %d, %q, released %d times, started: %t", code, said, released, s.command.Process != nil)
	}
}
