package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/cluster"
)

// trial watches windows of one shard while a test disturbs it: on the bubble's own
// clock, and by what callers are told.
type trial struct {
	t *testing.T
	c *cluster.Cluster

	watching sync.WaitGroup

	mu      sync.Mutex
	numbers int // the last that was given to a key
	begun   int
	open    map[*watched]struct{}
	over    []*watched
	outages []outage
	term    uint64 // after the last disturbance
}

// watched is one window from its beginning until somebody else is admitted.
type watched struct {
	key            string
	length         time.Duration
	sent, received time.Time // what began it
	response       []byte    // of a committed one; nil for a pending one
	ownerUntil     time.Time // the latest moment at which the owner may take itself for one
	admitted       time.Time // not before the moment at which another was admitted
	story          []string  // what was asked and answered
}

// outage is a change of leader, or the attempt at one, as callers saw it.
type outage struct {
	what     string
	from, to time.Time     // the disturbance, and the first call that was served after it
	drift    time.Duration // what may be lost of the clock beyond that
}

func newTrial(t *testing.T, c *cluster.Cluster) *trial {
	tr := &trial{t: t, c: c, open: map[*watched]struct{}{}}
	tr.term = tr.currentTerm()
	return tr
}

func (tr *trial) currentTerm() (term uint64) {
	for _, name := range tr.c.Running() {
		if r := tr.c.Replica(name, 0); r != nil {
			term = max(term, r.Group().Term())
		}
	}
	return term
}

// node returns the i-th node of all, in turn.
func (tr *trial) node(i int) string { return tr.c.Names[i%len(tr.c.Names)] }

// disturb does something to the cluster and waits until a call is served again. A
// graceful change of leader loses nothing of the clock beyond that time.
func (tr *trial) disturb(what string, graceful bool, do func()) {
	tr.t.Helper()
	if term := tr.currentTerm(); term != tr.term {
		tr.t.Errorf("before %q leadership changed, from term %d to %d, and nobody had disturbed it", what, tr.term, term)
	}
	o := outage{what: what, from: time.Now()}
	drift := max(time.Second, tr.toEarliest(o.from)/100)
	do()
	tr.served()
	o.to = time.Now()
	before := tr.term
	if tr.term = tr.currentTerm(); !graceful && tr.term != before {
		o.drift = drift
	}
	tr.mu.Lock()
	tr.outages = append(tr.outages, o)
	tr.mu.Unlock()
}

// toEarliest returns the time to the earliest deadline that is known to be ahead.
func (tr *trial) toEarliest(now time.Time) time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	earliest := 24 * time.Hour
	for w := range tr.open {
		if left := w.received.Add(w.length).Sub(now); left > 0 {
			earliest = min(earliest, left)
		}
	}
	return earliest
}

// served waits until some node answers a look at a key that nobody uses, for which a
// leader has to be confirmed.
func (tr *trial) served() {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), 5*time.Minute)
	defer cancel()
	answered := make(chan struct{}, len(tr.c.Names))
	var probes sync.WaitGroup
	for _, name := range tr.c.Running() {
		probes.Go(func() {
			for ctx.Err() == nil {
				bounded, done := context.WithTimeout(ctx, 300*time.Millisecond)
				_, err := service(tr.c, name).Get(bounded, &coordinatorv1.GetRequest{Identity: identity("nobody's")})
				done()
				if reason.Of(err).Code == codes.NotFound {
					answered <- struct{}{}
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	select {
	case <-answered:
	case <-ctx.Done():
		tr.t.Error("nothing is served for five minutes")
	}
	cancel()
	probes.Wait()
}

// pending begins a reservation and watches its pending window.
func (tr *trial) pending(ttl time.Duration) { tr.watch(ttl, false) }

// committed begins a reservation, commits it and watches its retention.
func (tr *trial) committed(retention time.Duration) { tr.watch(retention, true) }

func (tr *trial) watch(length time.Duration, commit bool) {
	tr.mu.Lock()
	tr.begun++
	tr.numbers++
	number := tr.numbers
	tr.mu.Unlock()
	w := &watched{key: fmt.Sprintf("%d-%v", number, length), length: length}
	tr.watching.Go(func() {
		attempt := newAttempt()
		request := &coordinatorv1.ReserveRequest{
			Identity: identity(w.key), AttemptId: attempt, Owner: "first",
			PendingTtl: window(length),
		}
		if commit {
			request.PendingTtl, request.Retention = window(time.Hour), window(length)
		}
		w.sent = time.Now()
		granted, ok := tr.own(w, number, request)
		if !ok {
			return
		}
		if commit && !tr.commit(w, number, granted.GetToken()) {
			return
		}
		tr.mu.Lock()
		tr.open[w] = struct{}{}
		tr.mu.Unlock()
		if tr.readmitted(w, number, request, commit) {
			tr.mu.Lock()
			delete(tr.open, w)
			tr.over = append(tr.over, w)
			tr.mu.Unlock()
		}
	})
}

// own reserves until the attempt has its grant, and notes until when its owner may act.
func (tr *trial) own(w *watched, from int, request *coordinatorv1.ReserveRequest) (*coordinatorv1.Granted, bool) {
	for i := from; tr.t.Context().Err() == nil; i++ {
		sent := time.Now()
		answer, err := reserve(tr.t.Context(), tr.c, tr.node(i), request)
		granted := answer.GetGranted()
		tr.note(w, "the owner at "+tr.node(i), sent, answer, err)
		switch {
		case granted != nil:
			until := sent.Add((granted.GetWaited().AsDuration() + granted.GetRemaining().AsDuration()) / 1000 * 999)
			if w.received.IsZero() {
				w.received = time.Now()
			}
			if until.After(w.ownerUntil) {
				w.ownerUntil = until
			}
			return granted, true
		case err != nil && again(err):
			time.Sleep(10 * time.Millisecond)
		case w.received.IsZero() && time.Since(w.sent) < request.GetPendingTtl().AsDuration():
			tr.t.Errorf("%s: the first attempt got %v, %v", w.key, answer, err)
			return nil, false
		default: // it has lapsed meanwhile
			if w.received.IsZero() {
				tr.mu.Lock()
				tr.begun--
				tr.mu.Unlock()
			}
			return nil, false
		}
	}
	return nil, false
}

func (tr *trial) commit(w *watched, from int, token string) bool {
	w.response = []byte("the response of " + w.key)
	w.sent = time.Now()
	for i := from; tr.t.Context().Err() == nil; i++ {
		ctx, cancel := context.WithTimeout(tr.t.Context(), callTimeout)
		_, err := service(tr.c, tr.node(i)).Commit(ctx, &coordinatorv1.CommitRequest{
			Identity: identity(w.key), Token: token,
			Response: &coordinatorv1.Response{Code: 200, Body: w.response},
		})
		cancel()
		if err == nil {
			w.received, w.ownerUntil = time.Now(), time.Time{}
			return true
		}
		if !again(err) {
			tr.t.Errorf("commit %s: %v", w.key, err)
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// anotherTTL is what the second attempt reserves for: far behind every deadline that is
// watched.
const anotherTTL = 24 * time.Hour

// readmitted lets the owner ask again now and then, at every node in turn, and others
// ask until one of them is admitted: one at each node, since a node may be cut off; some
// wait, some poll.
func (tr *trial) readmitted(w *watched, from int, own *coordinatorv1.ReserveRequest, committed bool) bool {
	ctx, cancel := context.WithCancel(tr.t.Context())
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	for i, name := range tr.c.Names {
		asking.Go(func() {
			if at, ok := tr.askUntilAdmitted(ctx, w, name, (from+i)%2 == 0); ok {
				mu.Lock()
				defer mu.Unlock()
				if w.admitted.IsZero() || at.Before(w.admitted) {
					w.admitted = at
				}
				cancel()
			}
		})
	}
	if !committed {
		asking.Go(func() {
			for i := range 4 {
				select {
				case <-time.After(w.length / 5):
				case <-ctx.Done():
					return
				}
				if _, ok := tr.own(w, from+i, own); !ok {
					return
				}
			}
		})
	}
	asking.Wait()
	return !w.admitted.IsZero()
}

// askUntilAdmitted returns a moment at which the grant had been given at the latest.
func (tr *trial) askUntilAdmitted(ctx context.Context, w *watched, node string, wait bool) (time.Time, bool) {
	request := &coordinatorv1.ReserveRequest{
		Identity: identity(w.key), AttemptId: newAttempt(), Owner: "another", PendingTtl: window(anotherTTL),
	}
	if wait {
		request.Wait = window(time.Minute)
	}
	for ctx.Err() == nil {
		sent := time.Now()
		answer, err := reserve(ctx, tr.c, node, request)
		tr.note(w, "another at "+node, sent, answer, err)
		switch {
		case answer.GetGranted() != nil:
			return time.Now().Add(answer.GetGranted().GetRemaining().AsDuration() - anotherTTL), true
		case answer.GetPending() != nil && answer.GetPending().GetOwner() != "first":
			return time.Now().Add(-answer.GetPending().GetAge().AsDuration()), true // the other one was quicker
		case answer.GetPending() != nil:
			if w.response != nil {
				tr.t.Errorf("%s is pending after it was committed", w.key)
			}
			sleep(ctx, answer.GetPending().GetRetryAfter().AsDuration())
		case answer.GetCommitted() != nil:
			if !bytes.Equal(answer.GetCommitted().GetResponse().GetBody(), w.response) {
				tr.t.Errorf("%s: replayed %q", w.key, answer.GetCommitted().GetResponse().GetBody())
			}
			sleep(ctx, answer.GetCommitted().GetRemaining().AsDuration())
		case again(err):
			sleep(ctx, 10*time.Millisecond)
		case ctx.Err() == nil:
			tr.t.Errorf("%s: another attempt got %v, %v", w.key, answer, err)
			return time.Time{}, false
		}
	}
	return time.Time{}, false
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// clock is how moments are shown.
const clock = "15:04:05.000000"

func (tr *trial) note(w *watched, who string, sent time.Time, answer *coordinatorv1.ReserveResponse, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%s, from %s to %s: %v, %v", who, sent.Format(clock), time.Now().Format(clock), answer, err))
}

// explain shows what happened to a window, and around it.
func (tr *trial) explain(w *watched) {
	tr.t.Helper()
	for _, line := range w.story {
		tr.t.Log(line)
	}
	for _, o := range tr.outages {
		if o.to.After(w.sent.Add(-10*time.Second)) && o.from.Before(w.admitted) {
			tr.t.Logf("%s, from %s to %s, drift %v", o.what, o.from.Format(clock), o.to.Format(clock), o.drift)
		}
	}
}

// verify waits until every window is over and compares each with the promises.
func (tr *trial) verify() {
	tr.t.Helper()
	tr.watching.Wait()
	if len(tr.over) != tr.begun {
		tr.t.Errorf("%d of %d windows came to their end", len(tr.over), tr.begun)
	}
	// What a call takes that is told to ask again, beyond the outages.
	const slack = 250 * time.Millisecond
	var worst, allowedThen time.Duration
	for _, w := range tr.over {
		if early := w.sent.Add(w.length).Sub(w.admitted); early > 0 {
			tr.t.Errorf("%s: another was admitted %v early", w.key, early)
			tr.explain(w)
		}
		if early := w.ownerUntil.Sub(w.admitted); early > 0 {
			tr.t.Errorf("%s: another was admitted %v before the owner's own deadline", w.key, early)
			tr.explain(w)
		}
		late := w.admitted.Sub(w.received.Add(w.length))
		allowed := slack
		for _, o := range tr.outages {
			if o.to.After(w.sent) && o.from.Before(w.admitted) {
				// The shard's earliest deadline was no later than this one.
				allowed += o.to.Sub(o.from) + min(o.drift, max(time.Second, w.length/100))
			}
		}
		if late > allowed {
			tr.t.Errorf("%s: over %v late, no more than %v is allowed", w.key, late, allowed)
			tr.explain(w)
		}
		if late > worst {
			worst, allowedThen = late, allowed
		}
	}
	var without, longest time.Duration
	for _, o := range tr.outages {
		without += o.to.Sub(o.from)
		longest = max(longest, o.to.Sub(o.from))
	}
	tr.t.Logf("%d windows, %d disturbances, %v without a leader (%v at most); the latest end was %v late, allowed %v",
		len(tr.over), len(tr.outages), without, longest, worst, allowedThen)
}
