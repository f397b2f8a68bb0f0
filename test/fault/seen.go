package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// seen is what users saw while something was done to the nodes: under which names they
// were refused, and how long nobody got an answer from a shard.
type seen struct {
	began  time.Time
	shards []quiet
	copies atomic.Int64 // late deliveries
	shared atomic.Int64 // answers that came over sessions

	mu     sync.Mutex
	errors map[string]int
	wrong  []string
}

// quiet is how long a shard has given no answer to anybody.
type quiet struct {
	last    atomic.Int64 // since began
	longest atomic.Int64
}

// wrongMax bounds how many errors that cannot be are kept.
const wrongMax = 20

func newSeen(shards int) *seen {
	return &seen{began: time.Now(), shards: make([]quiet, shards), errors: make(map[string]int)}
}

// saw notes the end of one delivery.
func (s *seen) saw(shard int, ruling verdict, name string) {
	if ruling == answered {
		s.shards[shard].answer(int64(time.Since(s.began)))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ruling == wrong {
		if len(s.wrong) < wrongMax {
			s.wrong = append(s.wrong, name)
		}
		return
	}
	s.errors[name]++
}

func (q *quiet) answer(now int64) {
	since := now - q.last.Swap(now)
	for {
		longest := q.longest.Load()
		if since <= longest || q.longest.CompareAndSwap(longest, since) {
			return
		}
	}
}

// restart begins to measure from now.
func (s *seen) restart() {
	now := int64(time.Since(s.began))
	for i := range s.shards {
		s.shards[i].last.Store(now)
		s.shards[i].longest.Store(0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.errors)
}

// sight is what was seen over some time.
type sight struct {
	errors  map[string]int
	refusal time.Duration // the longest that a shard gave no answer to anybody
}

// sofar returns what was seen since the restart.
func (s *seen) sofar() sight {
	now := int64(time.Since(s.began))
	longest := int64(0)
	for i := range s.shards {
		longest = max(longest, s.shards[i].longest.Load(), now-s.shards[i].last.Load())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return sight{errors: maps.Clone(s.errors), refusal: time.Duration(longest)}
}

// serves reports whether every shard has answered somebody since a moment.
func (s *seen) serves(since time.Time) bool {
	after := int64(since.Sub(s.began))
	for i := range s.shards {
		if s.shards[i].last.Load() <= after {
			return false
		}
	}
	return true
}

// impossible returns the errors that no user may see.
func (s *seen) impossible() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.wrong)
}

func (s sight) String() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.errors)) {
		names = append(names, fmt.Sprintf("%s %d", name, s.errors[name]))
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// add merges what was seen another time.
func (s *sight) add(other sight) {
	if s.errors == nil {
		s.errors = make(map[string]int)
	}
	for name, count := range other.errors {
		s.errors[name] += count
	}
	s.refusal = max(s.refusal, other.refusal)
}
