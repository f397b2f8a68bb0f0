package membership

import (
	"fmt"
	"slices"
	"strings"

	"github.com/atmostonce/coordinator/internal/peer"
)

// answer is what became of asking one listed peer.
type answer struct {
	peer    peer.Listed
	message peer.HelloMessage
	err     error
}

// verdict is what a node without a cluster does next: exactly one of its fields is
// set.
type verdict struct {
	join     *peer.HelloMessage // take the cluster and its members from this answer
	found    []peer.Member      // begin a cluster of these
	excluded string             // there is a cluster, and this node is not in it: why, for people
	waitFor  []string           // what is missing, for people
}

// judge decides by the answers of the listed peers, this node's own left out, in the
// order of the list. Nothing else enters into it.
func judge(self *peer.HelloMessage, answers []answer) verdict {
	excluded := ""
	for i := range answers {
		a := &answers[i]
		if a.err != nil || a.message.ClusterID == "" {
			continue
		}
		for _, m := range a.message.Members {
			if m.ID() == self.Self.ID() && a.message.Shards == self.Shards {
				return verdict{join: &a.message}
			}
		}
		if excluded == "" {
			excluded = exclusion(self, a)
		}
	}
	if excluded != "" {
		return verdict{excluded: excluded}
	}
	var waitFor []string
	members := make([]peer.Member, 0, len(self.Peers))
	for _, listed := range self.Peers {
		if listed.Name == self.Self.Name {
			members = append(members, self.Self)
			continue
		}
		i := slices.IndexFunc(answers, func(a answer) bool { return a.peer == listed })
		if i < 0 {
			waitFor = append(waitFor, fmt.Sprintf("%s at %s to be asked", listed.Name, listed.Address))
			continue
		}
		if missing := obstacle(self, &answers[i]); missing != "" {
			waitFor = append(waitFor, missing)
			continue
		}
		members = append(members, answers[i].message.Self)
	}
	if len(waitFor) > 0 {
		return verdict{waitFor: waitFor}
	}
	if first := self.Peers[0]; first.Name != self.Self.Name {
		return verdict{waitFor: []string{fmt.Sprintf("%s, the first of the peers, to begin the cluster", first.Name)}}
	}
	return verdict{found: members}
}

// obstacle says what about a peer that belongs to no cluster keeps one from being
// made, or "".
func obstacle(self *peer.HelloMessage, a *answer) string {
	who := fmt.Sprintf("%s at %s", a.peer.Name, a.peer.Address)
	switch m := &a.message; {
	case a.err != nil:
		return fmt.Sprintf("%s to answer (%v)", who, a.err)
	case m.Self.Name != a.peer.Name:
		return fmt.Sprintf("%s, where %s answers: the lists of peers and the node ids do not fit", who, m.Self.Name)
	case m.Shards != self.Shards:
		return fmt.Sprintf("%s to be started for %d shards as this node is; it is for %d", who, self.Shards, m.Shards)
	case !slices.Equal(m.Peers, self.Peers):
		return fmt.Sprintf("%s to have the same list of peers; it has %s, and this node %s", who, list(m.Peers), list(self.Peers))
	}
	return ""
}

// exclusion explains why a node is not in a cluster that a peer belongs to, and what
// can be done.
func exclusion(self *peer.HelloMessage, a *answer) string {
	m := &a.message
	cluster := fmt.Sprintf("cluster %s exists (%s at %s is in it)", m.ClusterID, a.peer.Name, a.peer.Address)
	for _, member := range m.Members {
		switch {
		case member.ID() == self.Self.ID():
			return fmt.Sprintf("%s and has %d shards, while this node was started for %d: start it on an empty data directory with --shards %d",
				cluster, m.Shards, self.Shards, m.Shards)
		case member.Name == self.Self.Name:
			return fmt.Sprintf("%s and knows this node as %s, which it is not: this is %s, with an empty data directory. "+
				"It neither votes nor stores anything. Start it on its old data directory; "+
				"if that is lost, add this node in its place with `coordctl members replace %s` while it runs",
				cluster, member.ID(), self.Self.ID(), self.Self.Name)
		}
	}
	return fmt.Sprintf("%s, %s is no member of it, and its members are fixed when it is made: "+
		"a node can only take the place of a lost one, under its name (docs/cluster.md). It neither votes nor stores anything",
		cluster, self.Self.ID())
}

func list(peers []peer.Listed) string {
	if len(peers) == 0 {
		return "none"
	}
	texts := make([]string, len(peers))
	for i, p := range peers {
		texts[i] = p.Name + "=" + p.Address
	}
	return strings.Join(texts, ",")
}
