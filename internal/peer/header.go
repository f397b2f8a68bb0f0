package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/hashicorp/raft"
)

// Kind says what a connection carries.
type Kind uint8

const (
	// KindRaft carries the Raft messages of one shard.
	KindRaft Kind = 1
	// KindCall carries gRPC: calls that one node forwards to another.
	KindCall Kind = 2
	// KindHello carries one question and one answer. It needs no cluster id and no
	// target, because it is how both are learned.
	KindHello Kind = 3
)

// String names the kind for logs.
func (k Kind) String() string {
	switch k {
	case KindRaft:
		return "raft"
	case KindCall:
		return "call"
	case KindHello:
		return "hello"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Header opens every connection.
//
// On the wire: four bytes of magic, a version byte, the kind, the length of the rest
// as two bytes, and the rest: the shard as four bytes, the sender's starts as eight and
// its boot id as sixteen, then cluster, target and sender, each behind a byte with its
// length. Numbers are big-endian.
type Header struct {
	Kind  Kind
	Shard int // which shard, from 0; 0 unless Raft
	// Cluster is the id of the sender's cluster. Only a Hello may leave it empty, or come
	// from another one.
	Cluster string
	// Target is the server that the connection is meant for. Only a Hello may leave it
	// empty.
	Target raft.ServerID
	// Sender is the server that dials, and Life its process.
	Sender raft.ServerID
	Life   Life
}

const (
	headerMagic      = "\xadACP"
	headerVersion    = 2
	headerFixedBytes = len(headerMagic) + 4
	headerRestMin    = 4 + lifeBytes
	headerRestMax    = headerRestMin + 1 + clusterIDBytesMax + 2*(1+serverIDBytesMax)
	// HeaderBytesMax is how many bytes a header has at most.
	HeaderBytesMax = headerFixedBytes + headerRestMax
)

// tlsHandshake is how a client begins TLS: the type of the record and its major version (RFC 8446,
// section 5.1).
const tlsHandshake = "\x16\x03"

var (
	errNotAPeer = errors.New("peer: not a coordinator's peer connection")
	errTLS      = fmt.Errorf("%w: it begins TLS, which this node's peer port does not speak", errNotAPeer)
	errVersion  = errors.New("peer: another version of the peer protocol")
)

// check reports what is wrong with a header.
func (h *Header) check() error {
	switch h.Kind {
	case KindRaft, KindCall, KindHello:
	default:
		return fmt.Errorf("peer: unknown kind of connection %d", uint8(h.Kind))
	}
	if h.Shard < 0 || h.Shard > math.MaxInt32 || h.Kind != KindRaft && h.Shard != 0 {
		return fmt.Errorf("peer: shard %d of a connection of kind %s", h.Shard, h.Kind)
	}
	if h.Cluster != "" || h.Kind != KindHello {
		if err := CheckClusterID(h.Cluster); err != nil {
			return fmt.Errorf("peer: %w", err)
		}
	}
	if h.Target != "" || h.Kind != KindHello {
		if _, _, err := SplitServerID(h.Target); err != nil {
			return fmt.Errorf("peer: target: %w", err)
		}
	}
	if _, _, err := SplitServerID(h.Sender); err != nil {
		return fmt.Errorf("peer: sender: %w", err)
	}
	return h.Life.check()
}

// Encode returns the header as it is sent, or says what is wrong with it.
func (h *Header) Encode() ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	b := make([]byte, 0, HeaderBytesMax)
	b = append(b, headerMagic...)
	b = append(b, headerVersion, byte(h.Kind), 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Shard))
	b = h.Life.append(b)
	for _, text := range []string{h.Cluster, string(h.Target), string(h.Sender)} {
		b = append(b, byte(len(text)))
		b = append(b, text...)
	}
	binary.BigEndian.PutUint16(b[headerFixedBytes-2:], uint16(len(b)-headerFixedBytes))
	return b, nil
}

// ReadHeader reads a header. It reads not a byte beyond it, and at most
// [HeaderBytesMax] of what is none.
func ReadHeader(r io.Reader) (Header, error) {
	var fixed [headerFixedBytes]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return Header{}, err
	}
	if string(fixed[:len(tlsHandshake)]) == tlsHandshake {
		return Header{}, errTLS
	}
	if string(fixed[:len(headerMagic)]) != headerMagic {
		return Header{}, errNotAPeer
	}
	if version := fixed[len(headerMagic)]; version != headerVersion {
		return Header{}, fmt.Errorf("%w: %d, not %d", errVersion, version, headerVersion)
	}
	length := int(binary.BigEndian.Uint16(fixed[headerFixedBytes-2:]))
	if length < headerRestMin || length > headerRestMax {
		return Header{}, fmt.Errorf("peer: header of %d bytes", length)
	}
	rest := make([]byte, length)
	if _, err := io.ReadFull(r, rest); err != nil {
		return Header{}, err
	}
	shard := binary.BigEndian.Uint32(rest)
	if shard > math.MaxInt32 {
		return Header{}, fmt.Errorf("peer: shard %d", shard)
	}
	life := readLife(rest[4:headerRestMin])
	rest = rest[headerRestMin:]
	var texts [3]string
	for i := range texts {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return Header{}, errors.New("peer: header ends in the middle")
		}
		end := 1 + int(rest[0])
		texts[i], rest = string(rest[1:end]), rest[end:]
	}
	if len(rest) != 0 {
		return Header{}, fmt.Errorf("peer: %d bytes behind the header's last field", len(rest))
	}
	h := Header{
		Kind:    Kind(fixed[len(headerMagic)+1]),
		Shard:   int(shard),
		Cluster: texts[0],
		Target:  raft.ServerID(texts[1]),
		Sender:  raft.ServerID(texts[2]),
		Life:    life,
	}
	if err := h.check(); err != nil {
		return Header{}, err
	}
	return h, nil
}
