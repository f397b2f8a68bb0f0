package peer

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hashicorp/raft"
)

const (
	// NodeNameBytesMax is how long a node's name may be.
	NodeNameBytesMax = 64
	// IncarnationBytes is how many random bytes an incarnation is made of.
	IncarnationBytes = 16

	serverIDBytesMax  = NodeNameBytesMax + 1 + 2*IncarnationBytes
	clusterIDBytesMax = 64
)

// ServerID returns the identity of a node as its peers check it: its name, a slash
// and its incarnation in hexadecimal.
func ServerID(name, incarnation string) raft.ServerID {
	return raft.ServerID(name + "/" + incarnation)
}

// SplitServerID is the inverse of [ServerID]. It reports an error for what
// ServerID would not return for a valid name and incarnation.
func SplitServerID(id raft.ServerID) (name, incarnation string, err error) {
	name, incarnation, ok := strings.Cut(string(id), "/")
	if !ok {
		return "", "", fmt.Errorf("server id %q is not name/incarnation", string(id))
	}
	if err := CheckNodeName(name); err != nil {
		return "", "", fmt.Errorf("server id %q: %w", string(id), err)
	}
	if err := CheckIncarnation(incarnation); err != nil {
		return "", "", fmt.Errorf("server id %q: %w", string(id), err)
	}
	return name, incarnation, nil
}

// NodeName returns the name in a server id: what stands before the slash.
func NodeName(id raft.ServerID) string {
	name, _, _ := strings.Cut(string(id), "/")
	return name
}

// CheckNodeName reports whether a node may be called so: 1 to 64 of the ASCII letters,
// digits, '.', '_' and '-'.
func CheckNodeName(name string) error {
	if len(name) == 0 || len(name) > NodeNameBytesMax {
		return fmt.Errorf("node name %q is %d bytes long; it must have 1 to %d", clip(name), len(name), NodeNameBytesMax)
	}
	for _, c := range []byte(name) {
		if !plain(c) {
			return fmt.Errorf("node name %q holds more than letters, digits, '.', '_' and '-'", clip(name))
		}
	}
	return nil
}

// CheckIncarnation reports whether the text is an incarnation: 32 lower-case
// hexadecimal digits.
func CheckIncarnation(incarnation string) error {
	raw, err := hex.DecodeString(incarnation)
	if err != nil || len(raw) != IncarnationBytes || hex.EncodeToString(raw) != incarnation {
		return fmt.Errorf("incarnation %q is not %d hexadecimal digits", clip(incarnation), 2*IncarnationBytes)
	}
	return nil
}

// CheckClusterID reports whether the text can be the id of a cluster.
func CheckClusterID(id string) error {
	if len(id) == 0 || len(id) > clusterIDBytesMax {
		return fmt.Errorf("cluster id is %d bytes long; it must have 1 to %d", len(id), clusterIDBytesMax)
	}
	for _, c := range []byte(id) {
		if !plain(c) {
			return fmt.Errorf("cluster id %q holds more than letters, digits, '.', '_' and '-'", id)
		}
	}
	return nil
}

func plain(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '.' || c == '_' || c == '-'
}

// clip shortens what a stranger sent to what a log line can bear.
func clip(text string) string {
	const most = 64
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// Address returns what a Raft configuration holds as the address of a server: whom to
// expect, and where. See the package comment.
func Address(id raft.ServerID, hostPort string) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + hostPort)
}

// SplitAddress is the inverse of [Address]. A plain "host:port" has an empty id.
func SplitAddress(address raft.ServerAddress) (id raft.ServerID, hostPort string) {
	before, after, ok := strings.Cut(string(address), "@")
	if !ok {
		return "", string(address)
	}
	return raft.ServerID(before), after
}

// HostPort returns the part of an address that is dialed, for people to read.
func HostPort(address raft.ServerAddress) string {
	_, hostPort := SplitAddress(address)
	return hostPort
}
