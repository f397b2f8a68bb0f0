// Package lease is what every owner of a grant reckons alike, whichever program it is in: what it
// may ask for, what of a window is its own, and what is passed on where a grant is given back that nobody
// has acted on.
package lease

import (
	"strconv"
	"strings"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// Share is the part of a window that its owner may use, from when it was asked for: 99.9 %, since
// the clocks of owner and coordinator may run apart by 500 ppm each.
func Share(window time.Duration) time.Duration { return window - window/1000 - 1 }

// Why a grant is given back that nobody has acted on: the reasons of such releases.
const (
	WasOver = "the grant was over when it arrived"
	GoneBy  = "the caller was gone before it heard of the grant"
	// Of a run whose command was not started.
	Interrupted = "interrupted before the command was started"
	Unstarted   = "the command could not be started"
)

// passedOn is behind one of them where the attempt before had lapsed; its fence comes last.
const passedOn = "; the attempt before it lapsed, with fence "

// Unused is the reason of a release of a grant that nobody has acted on. The coordinator tells an
// owner of the one attempt before it. Where that is one which nobody heard of, the owner would not
// hear of a lapse before: so the fence of that is passed on, and [LapseBefore] finds it. 0: there
// was no lapse.
func Unused(why string, lapse uint64) string {
	if lapse == 0 {
		return why
	}
	return why + passedOn + strconv.FormatUint(lapse, 10)
}

// Told is what an owner is told of the attempt before it: of those that nobody has acted on nothing,
// where one before them has lapsed.
func Told(previous *coordinatorv1.Previous) *coordinatorv1.Previous {
	if lapse := LapseBefore(previous); lapse != 0 {
		return &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED, Fence: lapse}
	}
	return previous
}

// LapseBefore returns the fence of the lapse that an owner has to know of, of the attempt before it
// or of one before that; 0: there is none.
func LapseBefore(previous *coordinatorv1.Previous) uint64 {
	switch previous.GetEnd() {
	case coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED:
		return previous.GetFence()
	case coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED:
		why, text, _ := strings.Cut(previous.GetReason(), passedOn)
		switch why {
		case WasOver, GoneBy, Interrupted, Unstarted:
		default:
			return 0
		}
		fence, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0
		}
		return fence
	default:
		return 0
	}
}
