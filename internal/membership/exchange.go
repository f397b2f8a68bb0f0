package membership

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/peer"
)

// Exchange tells the other members where this node is and learns where they are, until
// ctx ends. It is called once the node belongs to a cluster. Before each round it takes
// who the members are from servers, which returns what the Raft configurations of
// the shards hold, see [Membership.Observe], and after it notes them in node.json.
func (m *Membership) Exchange(ctx context.Context, ask Asker, servers func() map[raft.ServerID]raft.ServerAddress) {
	for ctx.Err() == nil {
		m.Observe(servers())
		m.ExchangeOnce(ctx, ask)
		m.note()
		select {
		case <-ctx.Done():
		case <-time.After(m.cfg.ExchangeEvery):
		}
	}
}

// Contact is what came of asking a member.
type Contact struct {
	Reached     bool // it answered
	Joining     bool // it answered, and has yet to hear that it is a member
	StorageFull bool // it is short of disk space
	// Instead is another incarnation of it that answered in its place; zero: none did.
	Instead peer.Member
	// Succeeded says that Instead is a member, by the word of others that were reached: this
	// node's own shards have yet to hear that it takes the place.
	Succeeded bool
}

// ExchangeOnce asks every other member once, at the same time, and returns what came of
// those that answered.
func (m *Membership) ExchangeOnce(ctx context.Context, ask Asker) map[raft.ServerID]Contact {
	say := m.Message()
	answers := m.askMembers(ctx, ask, &say)
	contacts := make(map[raft.ServerID]Contact)
	for _, a := range answers {
		contacts[a.asked] = a.contact(say.ClusterID)
	}

	// What those say of the members that are members themselves.
	met, goneFor := 0, 0
	counted := make(map[raft.ServerID]bool)
	for _, a := range answers {
		if !contacts[a.asked].Reached {
			continue
		}
		met++
		if !a.counts(say.Self.ID()) {
			goneFor++
		}
		for _, member := range a.said.Members {
			if member.ID() != a.asked { // nobody's own word counts
				counted[member.ID()] = true
			}
		}
	}
	for id, contact := range contacts {
		contact.Succeeded = contact.Instead.Name != "" && counted[contact.Instead.ID()]
		contacts[id] = contact
	}
	m.noteRemoval(goneFor, met)
	return contacts
}

// memberAnswer is what was answered where a member is to be found.
type memberAnswer struct {
	asked raft.ServerID
	said  peer.HelloMessage
}

// askMembers asks every other member at once, and returns the answers that came. Where each is, is
// noted as soon as it has answered.
func (m *Membership) askMembers(ctx context.Context, ask Asker, say *peer.HelloMessage) []memberAnswer {
	var (
		asking  sync.WaitGroup
		mu      sync.Mutex
		answers []memberAnswer
	)
	for _, member := range say.Members {
		if member.ID() == say.Self.ID() || member.PeerAddress == "" {
			continue
		}
		asking.Go(func() {
			said, err := ask.Hello(ctx, member.PeerAddress, *say)
			if err != nil {
				return
			}
			answer := memberAnswer{asked: member.ID(), said: said}
			if answer.contact(say.ClusterID).Reached {
				m.heard(said.Self)
			}
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, answer)
		})
	}
	asking.Wait()
	return answers
}

// contact says who has answered for the member that was asked.
func (a *memberAnswer) contact(cluster string) Contact {
	self := a.said.Self
	switch {
	case self.ID() == a.asked && a.said.ClusterID == cluster:
		return Contact{Reached: true, StorageFull: a.said.StorageFull}
	case self.ID() == a.asked:
		return Contact{Joining: a.said.ClusterID == ""}
	case self.Name == peer.NodeName(a.asked):
		return Contact{Instead: self}
	}
	return Contact{} // somebody else, who has come to live there
}

// counts reports whether a server is a member by the word of who has answered.
func (a *memberAnswer) counts(id raft.ServerID) bool {
	return slices.ContainsFunc(a.said.Members, func(member peer.Member) bool { return member.ID() == id })
}

// noteRemoval notes whether the members that answered go on without this node. One that has just been
// taken in may reach none that has heard of it yet: they do with their next round, which may take
// as long again for one that does not answer. So it is believed after three.
func (m *Membership) noteRemoval(goneFor, met int) {
	if met == 0 {
		return
	}
	m.mu.Lock()
	before := m.removed
	switch {
	case goneFor < met:
		m.goneSince, m.removed = time.Time{}, false
	case m.goneSince.IsZero():
		m.goneSince = time.Now()
	default:
		m.removed = time.Since(m.goneSince) >= 3*m.cfg.ExchangeEvery
	}
	removed := m.removed
	m.mu.Unlock()
	if removed && !before {
		m.cfg.Logger.Error("the cluster goes on without this node: it was replaced. Stop it; to use the machine again, start with an empty data directory",
			"node", string(m.directory.self.ID()))
	}
}
