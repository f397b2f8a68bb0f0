package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/atmostonce/coordinator/internal/admission"
)

// head is the state beside the records. The sums say what all records together
// must come to.
type head struct {
	applied      Position
	clock        Clock
	counter      uint64
	lastSequence uint64
	installedAt  uint64

	configurationIndex uint64
	configuration      []byte // never written to

	sums sums
}

// sums describe all records of a state, so that one that went missing is missed.
type sums struct {
	records   uint64
	responses uint64 // that lie apart
	digest    uint64
}

const (
	formatVersion = 1
	headVersion   = 1
)

// encode returns the head as it is stored: a version byte, varints, the
// configuration behind its length, and a checksum.
func (h *head) encode() []byte {
	b := make([]byte, 0, 128+len(h.configuration))
	b = append(b, headVersion)
	for _, v := range [...]uint64{
		h.applied.Index, h.applied.Term,
		h.clock.Term, uint64(h.clock.Noted), uint64(h.clock.Now),
		h.counter, h.lastSequence, h.installedAt,
		h.sums.records, h.sums.responses, h.sums.digest,
		h.configurationIndex,
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendText(b, string(h.configuration))
	return appendChecksum(b)
}

func decodeHead(value []byte) (head, error) {
	d, err := verified("head", value)
	if err != nil {
		return head{}, err
	}
	if v := d.byte(); v != headVersion {
		return head{}, fmt.Errorf("%w: head of version %d", ErrVersion, v)
	}
	var h head
	h.applied = Position{Index: d.uvarint(), Term: d.uvarint()}
	h.clock = Clock{Term: d.uvarint(), Noted: d.time(), Now: d.time()}
	h.counter = d.uvarint()
	h.lastSequence = d.bounded(math.MaxUint64 - 1)
	h.installedAt = d.uvarint()
	h.sums = sums{records: d.uvarint(), responses: d.uvarint(), digest: d.uvarint()}
	h.configurationIndex = d.uvarint()
	if configuration := d.text(); len(configuration) > 0 {
		h.configuration = append([]byte(nil), configuration...)
	}
	if d.bad || len(d.rest) > 0 {
		return head{}, fmt.Errorf("%w: malformed head", ErrCorrupt)
	}
	return h, nil
}

func (id Identification) encode() []byte {
	b := appendText([]byte{headVersion}, id.ClusterID)
	b = binary.AppendUvarint(b, uint64(id.Shard))
	b = binary.AppendUvarint(b, uint64(id.Shards))
	return appendChecksum(b)
}

func decodeIdentification(value []byte) (Identification, error) {
	d, err := verified("identification", value)
	if err != nil {
		return Identification{}, err
	}
	if v := d.byte(); v != headVersion {
		return Identification{}, fmt.Errorf("%w: identification of version %d", ErrVersion, v)
	}
	id := Identification{ClusterID: string(d.text())}
	id.Shard = int(d.bounded(ShardsMax))
	id.Shards = int(d.bounded(ShardsMax))
	if d.bad || len(d.rest) > 0 {
		return Identification{}, fmt.Errorf("%w: malformed identification", ErrCorrupt)
	}
	return id, nil
}

// differs says in which way two identifications are not the same.
func (id Identification) differs(want Identification) error {
	switch {
	case id.ClusterID != want.ClusterID:
		return fmt.Errorf("%w: it is of cluster %q, not of %q", ErrIdentification, id.ClusterID, want.ClusterID)
	case id.Shards != want.Shards:
		return fmt.Errorf("%w: its cluster has %d shards, not %d", ErrIdentification, id.Shards, want.Shards)
	case id.Shard != want.Shard:
		return fmt.Errorf("%w: it is of shard %d, not of %d", ErrIdentification, id.Shard, want.Shard)
	}
	return nil
}

func appendChecksum(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, checksumTable))
}

// verified returns a decoder of what precedes the value's checksum, which is right.
func verified(name string, value []byte) (*decoder, error) {
	if len(value) < checksumBytes {
		return nil, fmt.Errorf("%w: no %s", ErrCorrupt, name)
	}
	content := value[:len(value)-checksumBytes]
	if crc32.Checksum(content, checksumTable) != valueChecksum(value) {
		return nil, fmt.Errorf("%w: wrong checksum of the %s", ErrCorrupt, name)
	}
	return &decoder{rest: content}, nil
}

// valid reports whether the clock's parts can be stored.
func (c Clock) valid() bool {
	return c.Noted >= 0 && c.Now >= c.Noted && c.Now < admission.Never
}
