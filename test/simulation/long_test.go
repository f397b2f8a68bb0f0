package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// longPlan is a reservation that outlasts many faults, and its hour.
type longPlan struct {
	At     time.Duration
	Key    string
	TTL    time.Duration // of the reservation, or of what it is committed for
	Commit bool
	Seed   uint64
}

// isLong reports whether a key is one of those.
func isLong(key string) bool { return strings.Contains(key, "-long-") }

// reserveLong reserves a key and asks for it all the while, until somebody else has it.
func (w *world) reserveLong(p longPlan, number int) {
	random := rand.New(rand.NewPCG(p.Seed, 0))
	plan := callerPlan{Key: p.Key, TTL: p.TTL, Retention: keepsLong}
	if p.Commit {
		plan.TTL, plan.Retention = 10*time.Minute, p.TTL
	}
	c := &caller{w: w, plan: plan, random: random, who: fmt.Sprintf("long caller %d", number)}
	_, g := c.reserve(0)
	if g == nil {
		return
	}
	if p.Commit {
		c.commit(g)
	}
	for w.ctx.Err() == nil {
		if t, g := c.reserve(between(random, 0, time.Minute)); g != nil || t.unknown {
			return
		}
		if !sleep(w.ctx, between(random, time.Second, 4*time.Minute)) {
			return
		}
	}
}
