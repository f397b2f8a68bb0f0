package node

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
)

// Who is on its way in is told by the shards that a node is in: a newcomer that is still being sent
// an old log takes nobody for one who was coming in at that time.
func TestWhoIsJoining(t *testing.T) {
	of := func(ids ...raft.ServerID) (c raft.Configuration) {
		for _, id := range ids {
			c.Servers = append(c.Servers, raft.Server{ID: id})
		}
		return c
	}
	now, old, none := of("n1", "n2", "n3"), of("n1", "n2-lost", "n3-lost"), of()
	for name, test := range map[string]struct {
		self           raft.ServerID
		configurations []raft.Configuration
		joining        string // of 3 shards, what is said of n3
	}{
		"all are in":                       {"n1", []raft.Configuration{now, now, now}, ""},
		"n3 is half in":                    {"n1", []raft.Configuration{now, of("n1", "n2"), of("n1", "n2")}, "2 of 3 shards"},
		"n2 is in, and reads nothing old":  {"n2", []raft.Configuration{now, now, now}, ""},
		"n2 is in one, and reads the rest": {"n2", []raft.Configuration{now, old, none}, ""},
		"n2 reads old logs":                {"n2", []raft.Configuration{old, of("n1", "n2-lost", "n3"), none}, ""},
	} {
		seats := seatsIn(test.configurations, test.self)
		told := trouble("n3", membership.Contact{Reached: true}, seats.shards-seats.of["n3"], seats.shards)
		if (told == "") != (test.joining == "") || !strings.Contains(told, test.joining) {
			t.Errorf("%s: n3 is said to be: %q", name, told)
		}
	}
}

// Of two incarnations of a node, as there are in the middle of a replacement, the one that answers
// says whether it is short of space.
func TestWhoIsShortOfSpace(t *testing.T) {
	for range 50 { // the order of a map is drawn
		short := shortOf(map[raft.ServerID]membership.Contact{
			"n2/lost": {Instead: peer.Member{Name: "n2"}},
			"n2/new":  {Reached: true, StorageFull: true},
			"n3/1":    {Reached: true},
		})
		if !short["n2"] || short["n3"] {
			t.Fatalf("short are %v", short)
		}
	}
}
