package linearizability

import (
	"math"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// forever is later than anything that is in a history.
const forever time.Duration = math.MaxInt64

// what is what an operation does.
type what uint8

const (
	reserve what = iota
	commit
	release
	extend
	resolve
	purge
	get
	// finish stands after everything that was answered. From there on, what was not
	// answered may as well never happen.
	finish
)

var whatNames = [...]string{"reserve", "commit", "release", "extend", "resolve", "purge", "get", "finish"}

// attempt is a caller's attempt within one identity.
type attempt int

const (
	// nobody is no attempt.
	nobody attempt = -1
	// anonymous is an attempt that nothing but its call tells of. It is equal to none.
	anonymous attempt = -2
)

// operation is what porcupine puts in order. It takes effect at one moment from call to
// answered, both included.
type operation struct {
	what           what
	call, answered time.Duration

	// hidden: nobody was told what came of it. It may take effect at any time from call
	// on, or never.
	hidden bool
	// fresh: its answer said that it made the change. repeat: that an earlier delivery had.
	fresh, repeat bool
	// unseen: it is the delivery that an answer says was carried out before.
	unseen bool
	// told reports that late was part of the answer.
	told, late bool

	// ended: its attempt was told that it had ended, or acted as an owner.
	ended bool

	attempt attempt
	answer  int // its place among the answers, if it is not hidden
	// pool and turn: the anonymous attempts of a pool differ in nothing but when they were
	// sent, so it is enough to try them in that order.
	pool, turn int

	event *history.Event
	terms terms // reserve, extend
}

// terms are what a Reserve asks for.
type terms struct {
	ttl, retention     time.Duration // 0: not recorded
	hold               bool
	fingerprint, owner string
	loose              bool // ttl and retention are the least that it may have been
}

func termsOf(e *history.Event) terms {
	return terms{ttl: e.TTL, retention: e.Retention, hold: e.Hold, fingerprint: e.Fingerprint, owner: e.Owner}
}

// An interval is as wide as clocks may disagree, by which the contract has owners stop at
// 99.9 % of what they were told.
const clocksDiffer = 1000

// least returns how much of an interval has passed at least on the observer's clock
// when it is over on another.
func least(interval time.Duration) time.Duration { return interval - interval/clocksDiffer }

// most returns how much has passed at most.
func most(interval time.Duration) time.Duration { return interval + interval/clocksDiffer }

// plus adds without leaving the range.
func plus(t, d time.Duration) time.Duration {
	if t > forever-d {
		return forever
	}
	return t + d
}
