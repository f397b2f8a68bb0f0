// Package stopsignal is what a program of ours makes of the signals that end it.
package stopsignal

import (
	"os"
	"syscall"
	"time"
)

// SameWithin is how long after a signal further ones are the same: a supervisor may signal a
// process and its whole group.
const SameWithin = 500 * time.Millisecond

// Name returns a signal as it is written where one is sent, such as "SIGTERM"; of one that ends
// no program of ours, what the system calls it.
func Name(of os.Signal) string {
	switch of {
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGHUP:
		return "SIGHUP"
	case syscall.SIGQUIT:
		return "SIGQUIT"
	}
	return of.String()
}
