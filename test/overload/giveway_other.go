//go:build !linux

package overload

// giveWay has no means here: callers take their share of the processors from the nodes.
func giveWay() error { return nil }
