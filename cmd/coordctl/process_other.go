//go:build unix && !linux

package main

import (
	"syscall"
	"time"
)

// dieWithParent has nothing to ask for here: the guard alone does it.
func dieWithParent(*syscall.SysProcAttr) {}

// sharedClock is not to be had here without asking the system in a way of its own: the
// guard notices that coordctl is gone, and not that it stands still.
func sharedClock() (now time.Duration, ok bool) { return 0, false }
