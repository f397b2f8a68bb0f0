package model

import (
	"math"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// kind is what happened.
type kind uint8

const (
	granted kind = iota
	extended
	committed
	released
	settledApplied
	settledNotApplied
	purged
)

// event is one change of one identity.
type event struct {
	kind kind
	at   admission.Instant

	// first and second are the numbers that the change took from the counter; second
	// is 0 but for granted and extended.
	first, second uint64

	reserve   admission.Reserve  // granted
	deadline  admission.Time     // granted, extended
	response  admission.Response // committed, settledApplied
	retention time.Duration      // committed, settledApplied, settledNotApplied, released
	reason    string             // released, settledNotApplied
	late      bool               // committed, released
	from      uint64             // settled…: the revision that was looked at
}

// settles reports whether the event ends the attempt for good.
func (k kind) settles() bool { return k >= committed }

// ended is an attempt and when it ended.
type ended struct {
	id   admission.AttemptID
	at   admission.Time
	life int // which life of the record it belonged to
}

// standing is what history comes to at one moment.
type standing struct {
	state    admission.State
	revision uint64

	grant    event          // the latest; meaningful unless state is none
	last     event          // the event that made the state, the grant or an Extend included
	deadline admission.Time // pending
	over     admission.Time // when the record is gone

	attempt     uint32
	previous    admission.Previous
	createdWall int64

	ended []ended // oldest first, of all lives, the present holder included if it ended
	life  int
}

// standingAt works history out from its beginning.
func standingAt(history []event, now admission.Time) standing {
	var s standing
	for i, e := range history {
		if e.kind != granted {
			continue
		}
		before := until(history[:i], e.at.Now, s)
		next := standing{life: before.life, ended: before.ended}
		switch before.state {
		case admission.StateNone:
			next.life++
			next.attempt = 1
			next.createdWall = e.at.WallNanos
		case admission.StateReleased:
			next.attempt = before.attempt + 1
			next.createdWall = before.createdWall
			next.previous = admission.Previous{End: admission.EndedReleased, Reason: before.last.reason, Fence: before.grant.first}
		case admission.StateLapsed:
			next.attempt = before.attempt + 1
			next.createdWall = before.createdWall
			next.previous = admission.Previous{End: admission.EndedLapsed, Fence: before.grant.first}
		default:
			panic("model: a grant in state " + before.state.String())
		}
		next.grant = e
		s = next
	}
	return until(history, now, s)
}

// until completes s, which is right up to the latest grant of history, with what
// came after that grant and with what the time has done.
func until(history []event, now admission.Time, s standing) standing {
	latest := -1
	for i, e := range history {
		if e.kind == granted {
			latest = i
		}
	}
	if latest < 0 {
		return standing{}
	}
	s.last = history[latest]
	s.deadline = s.grant.deadline
	for _, e := range history[latest+1:] {
		s.last = e
		if e.kind == extended {
			s.deadline = e.deadline
		}
	}

	end := s.deadline // of the attempt, should it have ended
	s.revision = s.last.first
	switch s.last.kind {
	case granted, extended:
		s.state, s.over = admission.StatePending, admission.Never
		if now >= s.deadline {
			s.revision = s.last.second
			s.state = admission.StateInDoubt
			if s.grant.reserve.OnLapse == admission.Reopen {
				s.state = admission.StateLapsed
				s.over = plus(s.deadline, s.grant.reserve.Retention)
			}
		}
	case committed, settledApplied:
		s.state = admission.StateCommitted
		s.over = plus(s.last.at.Now, s.last.retention)
	case released, settledNotApplied:
		s.state = admission.StateReleased
		s.over = plus(s.last.at.Now, max(s.last.retention, 10*time.Minute))
	case purged:
		s.over = s.last.at.Now
	}
	if s.last.kind.settles() {
		end = s.last.at.Now
	}
	if s.state != admission.StatePending {
		s.ended = append(append([]ended(nil), s.ended...), ended{s.grant.reserve.Attempt, end, s.life})
	}
	if now >= s.over && s.over != admission.Never {
		s.state, s.revision = admission.StateNone, 0
	}
	return s
}

// memory says whether an attempt is still known to have ended.
type memory uint8

const (
	unknown    memory = iota // it never ended here
	forgivable               // it ended, and need not be known any more
	remembered               // it ended, and must be known
)

// recall says what must be known of an attempt at a moment.
func recall(history []event, id admission.AttemptID, now admission.Time) memory {
	s := standingAt(history, now)
	best, youngest := unknown, len(s.ended)
	for i, e := range s.ended {
		if e.id != id {
			continue
		}
		best = max(best, forgivable)
		younger := len(s.ended) - 1 - i
		youngest = min(youngest, younger)
		lately := now < plus(e.at, 10*time.Minute) && younger < 64
		kept := s.state != admission.StateNone && e.life == s.life && younger < 8
		if lately || kept {
			best = remembered
		}
	}
	if best == remembered || best == unknown || youngest >= 64 {
		return best
	}
	// A purged record's attempt ids stay used: what was known at the purge stays known
	// as if it had ended there.
	for i := len(history) - 1; i >= 0; i-- {
		if e := history[i]; e.kind == purged {
			if now < plus(e.at.Now, 10*time.Minute) && recall(history[:i], id, e.at.Now) == remembered {
				return remembered
			}
			break
		}
	}
	return best
}

// plus adds without running over the end of time.
func plus(t admission.Time, d time.Duration) admission.Time {
	if d > 0 && int64(t) > math.MaxInt64-int64(d) {
		return admission.Never
	}
	return t + admission.Time(d)
}
