package rpc

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Invariant 10: the bound of the node, the half that one connection may have, and what is
// given back.
func TestRoomForAnswers(t *testing.T) {
	const mib = 1 << 20
	node := newUnsent(8 * mib)
	one, other, third := &link{}, &link{}, &link{}
	var all []*held
	hold := func(l *link) *held {
		h := &held{node: node, link: l}
		all = append(all, h)
		return h
	}
	want := func(what string, h *held, bytes int, room bool) {
		t.Helper()
		if got := h.room(bytes); got != room {
			t.Errorf("%s: room %t, want %t; %d bytes are held", what, got, room, node.bytes.Load())
		}
	}

	first := hold(one)
	want("what is larger than the bound, alone", first, 20*mib, true)
	want("what is small", hold(one), unsentFree, true)
	want("the same connection", hold(one), mib, false)
	want("another one", hold(other), mib, false)
	if first.settle(2*mib) != true || node.bytes.Load() != 2*mib || one.bytes.Load() != 2*mib {
		t.Errorf("%d bytes are held once it is known how large it is", node.bytes.Load())
	}
	want("as much as before", first, 2*mib, true)
	want("the rest of the half", hold(one), 2*mib, true)
	want("more than the half", hold(one), unsentFree+1, false)
	want("the other half", hold(other), 4*mib, true)
	want("more than the whole", hold(third), unsentFree+1, false)

	for _, h := range all {
		h.end()
		h.end() // once is enough
		want("a call that is over", h, mib, false)
		if h.settle(mib) {
			t.Error("a call that is over holds something")
		}
	}
	if node.bytes.Load() != 0 || one.bytes.Load() != 0 || other.bytes.Load() != 0 || third.bytes.Load() != 0 {
		t.Errorf("%d bytes are held for nobody", node.bytes.Load())
	}
}

// Where there is no room, whoever takes every answer in time stays, and whoever leaves one for too
// long goes, also if something is taken all the time.
func TestWhoReadsStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const answer, each = 100 << 10, 5
		node := newUnsent(2 * each * answer)
		hold := func(l *link) *held {
			h := &held{node: node, link: l}
			if !h.room(answer) {
				return nil
			}
			h.done()
			h.queue() // gRPC has it, which is no later
			return h
		}
		var ended []string
		client := func(name string, every time.Duration) {
			l := new(link)
			gone := make(chan struct{})
			l.hangUp = func() { ended = append(ended, name); close(gone); l.broken() }
			var all []*held
			for range each {
				all = append(all, hold(l))
			}
			go func() {
				for {
					select {
					case <-gone:
						return
					case <-t.Context().Done():
						return
					case <-time.After(every):
					}
					heldPool{all[0]}.Put(nil)
					all = append(all[1:], hold(l))
				}
			}()
		}
		client("reads", answersOldMax/each-time.Second)
		client("trickles", answersOldMax/each+time.Second)
		time.Sleep(time.Millisecond) // what is taken is taken before others ask
		for second := range 120 {
			if other := hold(&link{}); other != nil {
				if second != 30 {
					t.Errorf("there was room after %d s", second)
				}
				other.end()
				break
			}
			time.Sleep(time.Second)
		}
		if !slices.Equal(ended, []string{"trickles"}) {
			t.Errorf("ended %q", ended)
		}
		time.Sleep(time.Minute)
		if held := node.bytes.Load(); held != each*answer || len(node.links) != 1 {
			t.Errorf("%d bytes are held, by %d connections", held, len(node.links))
		}
	})
}

// Listings say how much they may become before they begin.
func TestListingsNeedRoom(t *testing.T) {
	node := newUnsent(1 << 20)
	node.bytes.Store(1 << 20) // others'
	ctx := context.WithValue(t.Context(), heldKey{}, &held{node: node, link: &link{}})
	s := &adminService{server: &server{shards: manyShards{}, cluster: someCluster{}, unsent: node}}
	if _, err := s.ListRecords(ctx, &coordinatorv1.ListRecordsRequest{}); reason.Of(err).Reason != reason.Overloaded {
		t.Errorf("records: %v", err)
	}
	if _, err := s.ListShards(ctx, &coordinatorv1.ListShardsRequest{}); reason.Of(err).Reason != reason.Overloaded {
		t.Errorf("shards: %v", err)
	}
}

// manyShards are never asked for one.
type (
	noShards   = Shards
	manyShards struct{ noShards }
)

func (manyShards) Shards() int { return 1000 }

// someCluster is one that the node belongs to.
type someCluster struct{ Cluster }

func (someCluster) ID() string { return "c0ffee" }
