package metrics

import (
	"sync"
	"time"

	"github.com/atmostonce/coordinator/internal/shard"
)

// reading is what one shard has answered.
type reading struct {
	numbers shard.Numbers
	up      bool
}

// readings asks the shards, each in a goroutine of its own: one that hangs keeps no other
// from being shown. They belong to whoever collects.
type readings struct {
	numbers func(shard int) (shard.Numbers, bool)
	within  time.Duration

	pending []chan reading // by shard, of capacity 1; nil where nobody reads it
	work    sync.WaitGroup
}

func newReadings(shards int, numbers func(int) (shard.Numbers, bool), within time.Duration) *readings {
	return &readings{numbers: numbers, within: within, pending: make([]chan reading, shards)}
}

// all asks every shard, and returns what has been answered in time. One that has not answered an
// earlier question has had its time, and is not waited for.
func (r *readings) all() []reading {
	asked := make([]chan reading, len(r.pending)) // nil where it still hangs
	for i, earlier := range r.pending {
		if earlier != nil {
			select {
			case <-earlier: // an answer to an earlier question
			default:
				continue
			}
		}
		answer := make(chan reading, 1)
		asked[i], r.pending[i] = answer, answer
		r.work.Go(func() {
			numbers, up := r.numbers(i)
			answer <- reading{numbers, up}
		})
	}
	timer := time.NewTimer(r.within)
	defer timer.Stop()
	answers, late := make([]reading, len(asked)), false
	for i, answer := range asked {
		if answer != nil && !late {
			select {
			case answers[i] = <-answer:
				r.pending[i] = nil
				continue
			case <-timer.C:
				late = true
			}
		}
		select {
		case answers[i] = <-answer: // never, where it still hangs
			r.pending[i] = nil
		default:
		}
	}
	return answers
}
