package membership

import (
	"errors"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/internal/peer"
)

const (
	one   = "11111111111111111111111111111111"
	two   = "22222222222222222222222222222222"
	three = "33333333333333333333333333333333"
	old   = "00000000000000000000000000000000"
)

func listed() []peer.Listed {
	return []peer.Listed{{Name: "n1", Address: "h1:1"}, {Name: "n2", Address: "h2:1"}, {Name: "n3", Address: "h3:1"}}
}

func hello(name, incarnation string) peer.HelloMessage {
	return peer.HelloMessage{
		Self:   peer.Member{Name: name, Incarnation: incarnation, PeerAddress: "h" + name[1:] + ":1"},
		Shards: 3,
		Peers:  listed(),
	}
}

func TestJudge(t *testing.T) {
	members := func(incarnations ...string) []peer.Member {
		var m []peer.Member
		for i, incarnation := range incarnations {
			m = append(m, hello(listed()[i].Name, incarnation).Self)
		}
		return m
	}
	for _, c := range []struct {
		name           string
		self           peer.HelloMessage
		change         func(a, b *answer) // the answers of the two others, in list order
		founds, joins  bool
		excluded, wait string
	}{
		{name: "everybody is there", self: hello("n1", one), founds: true},
		{name: "not the first", self: hello("n2", two), wait: "n1, the first of the peers, to begin the cluster"},
		{name: "one is late", self: hello("n1", one), change: func(_, b *answer) { b.err = errors.New("refused") },
			wait: "n3 at h3:1 to answer (refused)"},
		{name: "another count of shards", self: hello("n1", one), change: func(a, _ *answer) { a.message.Shards = 6 },
			wait: "n2 at h2:1 to be started for 3 shards as this node is; it is for 6"},
		{name: "another order of peers", self: hello("n1", one), change: func(a, _ *answer) {
			p := a.message.Peers
			p[0], p[1] = p[1], p[0]
		}, wait: "it has n2=h2:1,n1=h1:1,n3=h3:1, and this node n1=h1:1"},
		{name: "no peers there", self: hello("n1", one), change: func(a, _ *answer) { a.message.Peers = nil },
			wait: "it has none"},
		{name: "another node answers", self: hello("n1", one), change: func(a, _ *answer) { a.message.Self.Name = "n3" },
			wait: "n2 at h2:1, where n3 answers"},
		{name: "counted in", self: hello("n2", two), change: func(a, _ *answer) {
			a.message.ClusterID, a.message.Members = "c", members(one, two, three)
		}, joins: true},
		{name: "counted in, heard from the other late one", self: hello("n3", three), change: func(a, b *answer) {
			a.err = errors.New("refused")
			b.message.ClusterID, b.message.Members = "c", members(one, two, three)
		}, joins: true},
		{name: "wiped", self: hello("n2", two), change: func(a, _ *answer) {
			a.message.ClusterID, a.message.Members = "c", members(one, old, three)
		}, excluded: "cluster c exists (n1 at h1:1 is in it) and knows this node as n2/" + old},
		{name: "wiped, and the first", self: hello("n1", one), change: func(_, b *answer) {
			b.message.ClusterID, b.message.Members = "c", members(old, two, three)
		}, excluded: "coordctl members replace n1"},
		{name: "never a member", self: hello("n3", three), change: func(a, _ *answer) {
			a.message.ClusterID, a.message.Members = "c", members(one, two)
		}, excluded: "cluster c exists (n1 at h1:1 is in it), n3/" + three + " is no member of it, and its members are fixed when it is made"},
		{name: "a member with other shards", self: hello("n3", three), change: func(a, _ *answer) {
			a.message.ClusterID, a.message.Shards, a.message.Members = "c", 6, members(one, two, three)
		}, excluded: "--shards 6"},
		{name: "counted in by one, not known to another", self: hello("n2", two), change: func(a, b *answer) {
			a.message.ClusterID, a.message.Members = "c", members(one, old, three)
			b.message.ClusterID, b.message.Members = "c", members(one, two, three)
		}, joins: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			incarnations := map[string]string{"n1": one, "n2": two, "n3": three}
			var answers []answer
			for _, l := range listed() {
				if l.Name != c.self.Self.Name {
					answers = append(answers, answer{peer: l, message: hello(l.Name, incarnations[l.Name])})
				}
			}
			if c.change != nil {
				c.change(&answers[0], &answers[1])
			}
			v := judge(&c.self, answers)
			if (v.found != nil) != c.founds || (v.join != nil) != c.joins || (v.excluded != "") != (c.excluded != "") ||
				(v.waitFor != nil) != (c.wait != "") {
				t.Fatalf("got %+v", v)
			}
			if !strings.Contains(v.excluded, c.excluded) || !strings.Contains(strings.Join(v.waitFor, "; "), c.wait) {
				t.Errorf("got %+v", v)
			}
			if c.founds && len(v.found) != 3 {
				t.Errorf("founds with %v", v.found)
			}
		})
	}
}
