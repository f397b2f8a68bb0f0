package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// told gathers what processes are told about themselves.
type told struct {
	mu  sync.Mutex
	err map[string]error // by address
}

func (w *told) superseded(at string) func(*SupersededError) {
	return func(err *SupersededError) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = make(map[string]error)
		}
		w.err[at] = err
	}
}

func (w *told) of(at string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err[at]
}

// twin opens a port of n3, the one of several that listens there.
func (w *told) twin(t *testing.T, n *network, at string, starts uint64) *Port {
	t.Helper()
	p := open(t, n, "n3", incarnationB, at, func(c *Config) {
		c.Life = NewLife(starts)
		c.Superseded = w.superseded(at)
		c.Hello = func(context.Context, HelloMessage) (HelloMessage, error) {
			return HelloMessage{Self: Member{Name: "n3", Incarnation: incarnationB, PeerAddress: at}, ClusterID: "c1"}, nil
		}
	})
	p.JoinCluster("c1")
	accepting(p.CallListener())
	accepting(p.Layer(0))
	return p
}

func third(t *testing.T, n *network, log *strings.Builder) *Port {
	t.Helper()
	p := open(t, n, "n1", incarnationA, "a:1", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	p.JoinCluster("c1")
	accepting(p.CallListener())
	accepting(p.Layer(0))
	return p
}

// Invariant 5, for connections that a third node accepts.
func TestOlderProcessIsRefused(t *testing.T) {
	for _, c := range []struct {
		name                string
		first, second       uint64
		firstStays, accepts bool // the second is accepted
	}{
		{"a copy of a running directory", 5, 6, false, true},
		{"an older copy", 5, 3, true, false},
		{"two copies of a stopped directory", 5, 5, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, w, log := newNetwork(), &told{}, &strings.Builder{}
				a := third(t, n, log)
				first, second := w.twin(t, n, "c:1", c.first), w.twin(t, n, "d:1", c.second)
				old, err := first.CallDial(t.Context(), a.Self(), "a:1")
				if err != nil {
					t.Fatal(err)
				}
				_, err = second.layerOf(0).Dial(Address(a.Self(), "a:1"), time.Second)
				if c.accepts != (err == nil) {
					t.Fatalf("the second: %v", err)
				}
				synctest.Wait()
				_, err = old.Write([]byte("x"))
				if c.firstStays != (err == nil) {
					t.Errorf("the connection with the first: %v", err)
				}
				_, err = first.Hello(t.Context(), "a:1", HelloMessage{Self: Member{Name: "n3", Incarnation: incarnationB}, ClusterID: "c1"})
				if c.firstStays != (err == nil) {
					t.Errorf("hello of the first: %v", err)
				}
				loser := "d:1"
				if !c.firstStays {
					loser = "c:1"
					if r := refusal(t, err); r.Status != StatusSuperseded {
						t.Errorf("refused with %v", r)
					}
				}
				var superseded *SupersededError
				if !errors.As(w.of(loser), &superseded) || !strings.Contains(superseded.Error(), "n3/"+incarnationB) ||
					!strings.Contains(superseded.Error(), fmt.Sprintf("this is start %d", map[string]uint64{"c:1": c.first, "d:1": c.second}[loser])) {
					t.Errorf("the one at %s was told %v", loser, w.of(loser))
				}
				winner := map[string]string{"c:1": "d:1", "d:1": "c:1"}[loser]
				if err := w.of(winner); err != nil {
					t.Errorf("the one at %s was told %v", winner, err)
				}
				if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "two processes under one identity") {
					t.Errorf("logged %s", log)
				}
			})
		})
	}
}

// Invariant 5, for connections that a third node dials.
func TestOlderProcessIsNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w, log := newNetwork(), &told{}, &strings.Builder{}
		a := third(t, n, log)
		older, newer := w.twin(t, n, "c:1", 5), w.twin(t, n, "d:1", 6)
		layer := a.layerOf(0)
		pooled, err := layer.Dial(Address(older.Self(), "c:1"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := layer.Dial(Address(newer.Self(), "d:1"), time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := pooled.Write([]byte("x")); err == nil {
			t.Error("the connection with the older one is open")
		}
		for name, reach := range map[string]func() error{
			"raft": func() error { _, err := layer.Dial(Address(older.Self(), "c:1"), time.Second); return err },
			"call": func() error { _, err := a.CallDial(t.Context(), older.Self(), "c:1"); return err },
			"hello": func() error {
				_, err := a.Hello(t.Context(), "c:1", HelloMessage{Self: Member{Name: "n1", Incarnation: incarnationA}, ClusterID: "c1"})
				return err
			},
		} {
			if err := reach(); err == nil || !strings.Contains(err.Error(), "another process runs, or ran later") {
				t.Errorf("%s to the older one: %v", name, err)
			}
		}
		if _, err := a.CallDial(t.Context(), newer.Self(), "d:1"); err != nil {
			t.Error(err)
		}
		if err := errors.Join(w.of("c:1"), w.of("d:1")); err != nil {
			t.Errorf("an end without having dialed: %v", err)
		}
	})
}

// A process that meets a newer one of itself ends, and lets that one go on.
func TestProcessThatMeetsItsSuccessorEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w := newNetwork(), &told{}
		w.twin(t, n, "c:1", 5)
		newer := w.twin(t, n, "d:1", 6)
		say := HelloMessage{Self: Member{Name: "n3", Incarnation: incarnationB}, ClusterID: "c1"}
		_, err := newer.Hello(t.Context(), "c:1", say)
		if r := refusal(t, err); r.Status != StatusNotServed {
			t.Errorf("%v", r)
		}
		if w.of("c:1") == nil || w.of("d:1") != nil {
			t.Errorf("the older was told %v, the newer %v", w.of("c:1"), w.of("d:1"))
		}
		// The other way round the older one asks, and hears it from the answer.
		again := w.twin(t, n, "e:1", 5)
		if _, err := again.Hello(t.Context(), "d:1", say); err == nil || w.of("e:1") == nil {
			t.Errorf("got %v, and was told %v", err, w.of("e:1"))
		}
	})
}

// A connection whose process is superseded between its header and its adoption does not
// stay.
func TestAdoptionIsCheckedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, w, log := newNetwork(), &told{}, &strings.Builder{}
		a := third(t, n, log)
		older := process{ServerID("n3", incarnationB), NewLife(5)}
		if err := a.meet(older, ""); err != nil {
			t.Fatal(err)
		}
		newer := w.twin(t, n, "d:1", 6)
		if _, err := newer.CallDial(t.Context(), a.Self(), "a:1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		conn, err := n.dial(t.Context(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := a.calls.inlet.adopt(conn, older, true); err == nil {
			t.Error("adopted")
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.accepted != 1 || len(a.calls.inlet.tracked) != 1 {
			t.Errorf("%d accepted, %d tracked; one is open", a.accepted, len(a.calls.inlet.tracked))
		}
	})
}

func TestLivesAreBounded(t *testing.T) {
	l := newLives(process{ServerID("n1", incarnationA), NewLife(1)})
	kept := process{ServerID("n2", incarnationA), NewLife(5)}
	for i := range 10 * livesMax {
		l.meet(kept)
		l.meet(process{raft.ServerID(fmt.Sprint("stranger", i)), NewLife(1)})
	}
	if got := len(l.newest); got != livesMax {
		t.Errorf("%d are remembered", got)
	}
	if result, _ := l.meet(process{kept.server, NewLife(4)}); result != metStale {
		t.Error("strangers made it forget a member that is there")
	}
}

func (p *Port) layerOf(shard int) *Layer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.layers[shard]
}
