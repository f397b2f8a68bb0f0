//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// listen asks for the signals that are the command's.
func (s *signals) listen() {
	s.ask(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	keepPipe()
	// This program must not stand still while the command goes on.
	signal.Notify(nobody, syscall.SIGTSTP)
	signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
}

// nobody hears the signals that it is sent.
var nobody = make(chan os.Signal, 1)

// keepPipe has this program go on although nobody reads its output any more: writing says so, and
// that is enough.
func keepPipe() { signal.Notify(nobody, syscall.SIGPIPE) }

// ends reports whether a signal asks for an end.
func ends(s os.Signal) bool { return s != syscall.SIGUSR1 && s != syscall.SIGUSR2 }

// ignoreSignals has a guard outlive the signals of its group.
func ignoreSignals() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
}
