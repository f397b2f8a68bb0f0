package membership

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/peer"
)

// Directory knows the members of the cluster and where each is to be found. It is a
// shard.Directory. Its methods may be called from any goroutine.
//
// For a peer address it knows, from best to worst: what the member itself said in a
// Hello, what this node's list of peers says for its name, what the Raft configuration
// or node.json had.
type Directory struct {
	self   peer.Member
	selfID raft.ServerID
	listed map[string]string // name → host:port

	mu      sync.Mutex
	members map[raft.ServerID]*entry
}

type entry struct {
	member peer.Member
	heard  time.Time // when it last said where it is; zero: never
}

func newDirectory(self peer.Member, listed []peer.Listed) *Directory {
	d := &Directory{self: self, selfID: self.ID(), listed: make(map[string]string), members: make(map[raft.ServerID]*entry)}
	for _, l := range listed {
		d.listed[l.Name] = l.Address
	}
	d.members[d.selfID] = &entry{member: self}
	return d
}

// NodeID returns the name of the node behind a server id.
func (d *Directory) NodeID(id raft.ServerID) string { return peer.NodeName(id) }

// PeerAddress returns the host:port of a server's peer port. configured is what the
// Raft configuration has.
func (d *Directory) PeerAddress(id raft.ServerID, configured raft.ServerAddress) string {
	if hostPort, ok := d.Find(id); ok {
		return hostPort
	}
	return peer.HostPort(configured)
}

// Find returns the host:port of a member's peer port.
func (d *Directory) Find(id raft.ServerID) (hostPort string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.members[id]
	if e == nil {
		return "", false
	}
	hostPort = d.address(id, e)
	return hostPort, hostPort != ""
}

// address returns the best peer address of a member.
func (d *Directory) address(id raft.ServerID, e *entry) string {
	if e.heard.IsZero() && id != d.selfID {
		if listed := d.listed[e.member.Name]; listed != "" {
			return listed
		}
	}
	return e.member.PeerAddress
}

// ClientAddress returns the host:port where clients reach a member; "" while it is not
// known.
func (d *Directory) ClientAddress(id raft.ServerID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.members[id]; e != nil {
		return e.member.ClientAddress
	}
	return ""
}

// Members returns the members, this node included while it is one, ordered by name.
func (d *Directory) Members() []peer.Member {
	d.mu.Lock()
	defer d.mu.Unlock()
	members := make([]peer.Member, 0, len(d.members))
	for id, e := range d.members {
		member := e.member
		member.PeerAddress = d.address(id, e)
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b peer.Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return members
}

// set replaces the members, keeping what was heard of those that stay, and reports
// whether anybody came or went. Addresses given are used for newcomers only.
func (d *Directory) set(members []peer.Member) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[raft.ServerID]*entry, len(members))
	for _, m := range members {
		id := m.ID()
		switch known := d.members[id]; {
		case known != nil:
			next[id] = known
		case id == d.selfID:
			next[id] = &entry{member: d.self}
		default:
			next[id] = &entry{member: m}
			changed = true
		}
	}
	changed = changed || len(next) != len(d.members)
	d.members = next
	return changed
}

// hear notes what a member says of itself; it ignores strangers. It reports whether
// that was news.
func (d *Directory) hear(m peer.Member, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.members[m.ID()]
	if e == nil || m.ID() == d.selfID {
		return false
	}
	if m.PeerAddress == "" {
		m.PeerAddress = e.member.PeerAddress
	}
	news := e.heard.IsZero() || e.member != m
	e.member, e.heard = m, now
	return news
}
