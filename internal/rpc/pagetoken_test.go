package rpc

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestPageTokensRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 1000).Draw(t, "shards")
		want := position{
			shard: rapid.IntRange(0, shards-1).Draw(t, "shard"),
			after: rapid.Uint64().Draw(t, "after"),
		}
		f := filter{namespace: rapid.StringN(0, 10, 64).Draw(t, "namespace"), state: admission.State(rapid.IntRange(0, 5).Draw(t, "state"))}
		if rapid.Bool().Draw(t, "by operation") {
			operation := rapid.StringN(0, 10, 64).Draw(t, "operation")
			f.operation = &operation
		}
		got, err := parsePageToken(want.token(f.hash()), f.hash(), shards)
		if err != nil || got != want {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	})
}

func TestPageTokensOfOtherListings(t *testing.T) {
	empty, x := "", "x"
	filters := []filter{{}, {namespace: "x"}, {operation: &x}, {operation: &empty}, {state: admission.StatePending}}
	for i, of := range filters {
		for j, as := range filters {
			_, err := parsePageToken(position{after: 7}.token(of.hash()), as.hash(), 1)
			if (err == nil) != (i == j) {
				t.Errorf("a token of filter %d for filter %d: %v", i, j, err)
			}
		}
	}
	if _, err := parsePageToken(position{shard: 3}.token([8]byte{}), [8]byte{}, 3); err == nil {
		t.Error("a token of a cluster with more shards was taken")
	}
}

func FuzzPageToken(f *testing.F) {
	f.Add("")
	f.Add(position{}.token([8]byte{}))
	f.Add(position{shard: 5, after: math.MaxUint64}.token([8]byte{1}))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePageToken(text, [8]byte{}, 6)
		if err != nil {
			return
		}
		if p.shard < 0 || p.shard >= 6 || p.token([8]byte{}) != text {
			t.Fatalf("%q is read as %v, which is written as %q", text, p, p.token([8]byte{}))
		}
	})
}
