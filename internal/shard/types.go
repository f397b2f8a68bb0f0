package shard

import (
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Leader says who leads a shard, as far as this node knows.
type Leader struct {
	NodeID        string // name of the node; "" where no leader is known
	ServerID      string // name and incarnation, as the peer port checks it
	PeerAddress   string
	ClientAddress string // where clients reach it; "" where this node has not learnt it yet
	Self          bool   // it is this node
}

// Known reports whether there is a leader.
func (l Leader) Known() bool { return l.NodeID != "" }

// Status is what a node can tell of one shard.
type Status struct {
	Shard    int
	Leader   Leader
	Term     uint64
	Applied  uint64 // index of the last entry applied here
	Digest   uint64 // of the state here at Applied, see [store.Store.Digest]
	Commit   uint64
	Last     uint64 // index of the last entry in the log here
	Replicas []ReplicaStatus

	Records [admission.States]uint64 // by stored state; StateNone counts tombstones
	// NextAlarm is the time to the earliest alarm, negative when it is overdue;
	// meaningless unless HasAlarm.
	NextAlarm time.Duration
	HasAlarm  bool
	// Clock is the shard's logical clock.
	Clock admission.Time

	LogBytes     int64
	StateBytes   int64
	MailboxDepth int   // calls that wait to be decided
	MailboxBytes int64 // of their commands
	Waiters      int
}

// ReplicaStatus is one replica of a shard. Match, Behind and LastContact are known to
// the leader only.
type ReplicaStatus struct {
	NodeID      string
	ServerID    string
	Address     string
	Voter       bool
	Self        bool
	Match       uint64
	Behind      uint64
	LastContact time.Duration // since the last answer; negative where never
}
