package main

import "testing"

func TestGarbageComesToAFixedAmount(t *testing.T) {
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, gcPercentMax},
		{1 << 20, gcPercentMax},
		{16 << 20, 400},
		{64 << 20, 100},
		{320 << 20, 20},
		{64 << 30, gcPercentMin},
	} {
		if got := gcPercent(test.live); got != test.want {
			t.Errorf("%d bytes in use: %d, want %d", test.live, got, test.want)
		}
	}
}
