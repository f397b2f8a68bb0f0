package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// sharedClock is a clock that all processes of the machine read alike, that only runs
// forward and that counts suspends: CLOCK_BOOTTIME. ok is false where it is not to be had.
func sharedClock() (now time.Duration, ok bool) {
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) != nil {
		return 0, false // a sandbox that forbids it
	}
	return time.Duration(at.Nano()), true
}
