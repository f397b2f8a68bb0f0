package simulation

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/atmostonce/coordinator/test/cluster"
)

// How the shards are watched: at every look, who leads and has been confirmed by a
// majority since some moment before. It costs the cluster nothing.
const (
	lookEvery = 100 * time.Millisecond
	lookBack  = 400 * time.Millisecond // heartbeats are up to 120 ms apart, and links slow
)

// watcher knows when each shard was without a leader.
type watcher struct {
	mu     sync.Mutex
	shards []watchedShard
}

// watchedShard is what is known of one.
type watchedShard struct {
	seen    time.Duration // when a leader was there the last time
	outages []span
	terms   []time.Duration // when a leader of another term was there for the first time
	term    uint64
	applied map[string]uint64 // by node, the last entry that it has been seen to have applied
	sent    map[string]uint64 // by node, the entry of the last snapshot that it was sent
	sends   int
}

// span is a stretch of time.
type span struct{ from, to time.Duration }

func newWatcher(shards int) *watcher {
	w := &watcher{shards: make([]watchedShard, shards)}
	for i := range w.shards {
		w.shards[i].applied, w.shards[i].sent = map[string]uint64{}, map[string]uint64{}
	}
	return w
}

// watch looks until it is stopped.
func (w *world) watch(stop <-chan struct{}) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		now := w.now()
		for number := range w.shards {
			w.watcher.index(number, w.c)
			if term := serving(w.c, number); term != 0 {
				w.watcher.saw(number, term, now)
			}
		}
	}
}

// serving returns the term of the leader that serves a shard and that a majority has
// answered of late; 0 for none.
func serving(c *cluster.Cluster, number int) uint64 {
	since := time.Now().Add(-lookBack)
	for _, name := range c.Names {
		r := c.Replica(name, number)
		if r == nil || !r.Leads() {
			continue
		}
		// Its first entry is applied: the clock is its own.
		if term := r.Group().Term(); r.Group().Store().Stats().Clock.Term == term && r.Group().Confirmed(term, since) {
			return term
		}
	}
	return 0
}

func (w *watcher) saw(number int, term uint64, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.shards[number]
	if gone := now - s.seen; gone > lookEvery+lookBack {
		s.outages = append(s.outages, span{s.seen - lookBack, now})
	}
	s.seen = now
	if term > s.term {
		s.term, s.terms = term, append(s.terms, now)
	}
}

// index notes how far the shard's nodes are.
func (w *watcher) index(number int, c *cluster.Cluster) {
	for _, name := range c.Names {
		if r := c.Replica(name, number); r != nil {
			at, sent := r.Group().Store().Applied().Index, r.Group().Store().InstalledAt()
			w.mu.Lock()
			s := &w.shards[number]
			s.applied[name] = at
			if sent > s.sent[name] {
				s.sent[name] = sent
				s.sends++
			}
			w.mu.Unlock()
		}
	}
}

// applied returns the last entry of each shard that a node has applied, and that any has.
func (w *watcher) applied(name string) (own, any []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		own, any = append(own, s.applied[name]), append(any, slices.Max(slices.Collect(maps.Values(s.applied))))
	}
	return own, any
}

// snapshots returns how many snapshots have been sent to replicas.
func (w *watcher) snapshots() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		n += s.sends
	}
	return n
}

// elections returns how many leaders there have been, of all shards, each counted once
// a term.
func (w *watcher) elections() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		n += len(s.terms)
	}
	return n
}

// What is allowed beyond the documented bound: what watching cannot tell apart.
const (
	slack        = 300 * time.Millisecond
	slackAnEvent = lookEvery + lookBack
)

// allowed returns how late a window of that length may end that began and ended at those
// moments: the time without a leader, and for each change of leader the larger of one
// second and a hundredth of the time to the shard's earliest deadline, which was no later
// than this one.
func (w *watcher) allowed(number int, length, from, to time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.shards[number]
	sum := slack
	for _, o := range s.outages {
		if o.to > from && o.from < to {
			sum += o.to - o.from + slackAnEvent
		}
	}
	for _, at := range s.terms {
		if at+slackAnEvent > from && at-slackAnEvent < to {
			sum += max(time.Second, length/100) + slackAnEvent
		}
	}
	if s.seen < to { // there is none at this moment
		sum += to - s.seen + lookBack
	}
	return sum
}
