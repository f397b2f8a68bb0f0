//go:build !linux

package client

// systemClock is Go's monotonic clock: here a suspended machine may take its
// reservations for younger than they are.
func systemClock() clock { return monotonic() }
