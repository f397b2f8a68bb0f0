package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemClock is CLOCK_BOOTTIME, which goes on while the machine is suspended.
func systemClock() clock {
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) != nil {
		return monotonic() // a sandbox that forbids it
	}
	return func() time.Duration {
		var at unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
			panic("client: the clock was there and is not any more: " + err.Error())
		}
		return time.Duration(at.Nano())
	}
}
