package peer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// HelloBytesMax is how long one side of a Hello may be: the one that names every member with
// the longest names and addresses is shorter.
const HelloBytesMax = 160 << 10

// MembersMax is how many nodes a cluster, and a list of peers, may have.
const MembersMax = 64

const (
	helloFormat = 1
	// incarnationsMax bounds the members of a Hello: a node that is being replaced is there
	// twice.
	incarnationsMax = 2 * MembersMax
	addressBytesMax = 320 // a DNS name of 255 bytes, a colon and a port, with room
)

// Member is one node of a cluster, or one that would be.
type Member struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	PeerAddress string `json:"peer_address"` // host:port that its peers dial
	// ClientAddress is the host:port that clients dial; empty while it is not known.
	ClientAddress string `json:"client_address,omitempty"`
}

// ID returns the server id of the member.
func (m Member) ID() raft.ServerID { return ServerID(m.Name, m.Incarnation) }

// Listed is one entry of a list of peers as an operator wrote it.
type Listed struct {
	Name    string `json:"name"`
	Address string `json:"address"` // host:port
}

// HelloMessage is what a node says of itself, both when it asks and when it answers.
type HelloMessage struct {
	Format int    `json:"format"`
	Self   Member `json:"self"`
	// ClusterID is empty while the node belongs to no cluster.
	ClusterID string `json:"cluster_id,omitempty"`
	Shards    int    `json:"shards"`
	// Peers is the node's configured list of peers, in its order.
	Peers []Listed `json:"peers,omitempty"`
	// Members are those of the cluster as far as the node knows, itself included;
	// empty while it belongs to none.
	Members []Member `json:"members,omitempty"`
	// StorageFull says that the node is short of disk space.
	StorageFull bool `json:"storage_full,omitempty"`
}

// check reports what is wrong with a message that came from outside.
func (m *HelloMessage) check() error {
	if m.Format != helloFormat {
		return fmt.Errorf("peer: hello of format %d, not %d", m.Format, helloFormat)
	}
	if err := m.Self.check(); err != nil {
		return err
	}
	if m.ClusterID != "" {
		if err := CheckClusterID(m.ClusterID); err != nil {
			return fmt.Errorf("peer: hello: %w", err)
		}
	}
	if m.Shards < 0 || m.Shards > 1<<20 {
		return fmt.Errorf("peer: hello with %d shards", m.Shards)
	}
	if len(m.Peers) > MembersMax || len(m.Members) > incarnationsMax {
		return fmt.Errorf("peer: hello with %d peers and %d members; at most %d and %d are possible",
			len(m.Peers), len(m.Members), MembersMax, incarnationsMax)
	}
	for _, listed := range m.Peers {
		if err := CheckNodeName(listed.Name); err != nil {
			return fmt.Errorf("peer: hello: %w", err)
		}
		if len(listed.Address) > addressBytesMax {
			return errors.New("peer: hello with an address that is too long")
		}
	}
	for _, member := range m.Members {
		if err := member.check(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Member) check() error {
	if _, _, err := SplitServerID(m.ID()); err != nil {
		return fmt.Errorf("peer: hello: %w", err)
	}
	if len(m.PeerAddress) > addressBytesMax || len(m.ClientAddress) > addressBytesMax {
		return errors.New("peer: hello with an address that is too long")
	}
	return nil
}

// writeHello sends a message: its length as four bytes, then JSON.
func writeHello(w io.Writer, m HelloMessage) error {
	m.Format = helloFormat
	if err := m.check(); err != nil {
		return err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("peer: encode hello: %w", err)
	}
	if len(text) > HelloBytesMax {
		return fmt.Errorf("peer: hello of %d bytes", len(text))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readHello is the inverse of writeHello.
func readHello(r io.Reader) (HelloMessage, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return HelloMessage{}, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > HelloBytesMax {
		return HelloMessage{}, fmt.Errorf("peer: hello of %d bytes", length)
	}
	// Its sender may be anybody: what is said to come takes no room before it does.
	text, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err != nil {
		return HelloMessage{}, err
	}
	if len(text) < int(length) {
		return HelloMessage{}, io.ErrUnexpectedEOF
	}
	var m HelloMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return HelloMessage{}, fmt.Errorf("peer: decode hello: %w", err)
	}
	if err := m.check(); err != nil {
		return HelloMessage{}, err
	}
	return m, nil
}
