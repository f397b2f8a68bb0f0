package lease

import (
	"math"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// An owner whose clock is 500 ppm slow is done before a coordinator whose clock is 500 ppm fast.
func TestAShareEndsBeforeItsWindow(t *testing.T) {
	for _, window := range []time.Duration{1, 999, time.Millisecond, time.Second, 24 * time.Hour, 400 * 24 * time.Hour, math.MaxInt64} {
		share := Share(window)
		if slow, fast := float64(share)*(1+500e-6), float64(window)*(1-500e-6); slow >= fast || share < window/1000*998-1 {
			t.Errorf("the share of %s is %s", window, share)
		}
	}
}

// However often a grant is given back, its next owner hears of the lapse before it.
func TestALapseIsPassedOn(t *testing.T) {
	end := func(end coordinatorv1.PreviousEnd, why string, fence uint64) *coordinatorv1.Previous {
		return &coordinatorv1.Previous{End: end, Reason: why, Fence: fence}
	}
	const (
		lapsed   = coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED
		released = coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED
	)
	for _, why := range []string{WasOver, GoneBy, Interrupted, Unstarted} {
		previous := end(lapsed, "", math.MaxUint64)
		for fence := range uint64(3) {
			if lapse := LapseBefore(previous); lapse != math.MaxUint64 {
				t.Errorf("%v: %d", previous, lapse)
			}
			previous = end(released, Unused(why, LapseBefore(previous)), fence)
		}
	}
	for _, none := range []*coordinatorv1.Previous{
		nil, {},
		end(released, "out of stock", 7),
		end(released, Unused(WasOver, 0), 7),
		end(released, "out of stock"+passedOn+"5", 7), // a caller's own words
		end(released, WasOver+passedOn, 7),
		end(released, WasOver+passedOn+"-5", 7),
		end(released, WasOver+passedOn+"5 or so", 7),
		end(released, WasOver+passedOn+"18446744073709551616", 7),
		end(99, Unused(WasOver, 5), 7), // of a newer coordinator
	} {
		if lapse := LapseBefore(none); lapse != 0 {
			t.Errorf("%v: %d", none, lapse)
		}
	}
}
