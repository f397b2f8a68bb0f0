//go:build !linux

package scale

import "testing"

// forget does nothing where there is no way to drop single files from the cache.
func forget(testing.TB, string) {}
