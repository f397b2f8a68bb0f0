package client

import "time"

// clock reads a clock that only runs forward, as the time since some fixed moment.
type clock func() time.Duration

// monotonic is the clock that Go's timers follow. Some systems stop it while they are
// suspended.
func monotonic() clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
