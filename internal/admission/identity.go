package admission

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf8"
)

// Limits of the four parts of an [Identity], in bytes.
const (
	NamespaceBytesMax = 64
	PrincipalBytesMax = 128
	OperationBytesMax = 255
	KeyBytesMax       = 255
)

// DefaultNamespace is the namespace of a caller that names none.
const DefaultNamespace = "default"

// Identity names a record: four opaque strings, compared byte for byte.
type Identity struct {
	Namespace string // the tenant; 1 to 64 bytes
	Principal string // whom the guarded request runs as; 0 to 128 bytes
	Operation string // the guarded endpoint; 0 to 255 bytes
	Key       string // the caller's idempotency key; 1 to 255 bytes
}

// Validate returns what is wrong with the identity, or nil. The fields are named
// as the wire names them, beneath "identity".
func (id Identity) Validate() *Violation {
	parts := [...]struct {
		field    string
		value    string
		min, max int
	}{
		{"identity.namespace", id.Namespace, 1, NamespaceBytesMax},
		{"identity.principal", id.Principal, 0, PrincipalBytesMax},
		{"identity.operation", id.Operation, 0, OperationBytesMax},
		{"identity.key", id.Key, 1, KeyBytesMax},
	}
	for _, part := range parts {
		if v := checkText(part.field, part.value, part.min, part.max); v != nil {
			return v
		}
	}
	return nil
}

// AppendTo appends the identity's encoding to dst: each part behind its length as
// an unsigned varint, so that no two identities share an encoding.
func (id Identity) AppendTo(dst []byte) []byte {
	const lengths = 4 * 2 // bytes: no part has as many as 1<<14
	dst = slices.Grow(dst, len(id.Namespace)+len(id.Principal)+len(id.Operation)+len(id.Key)+lengths)
	for _, part := range [...]string{id.Namespace, id.Principal, id.Operation, id.Key} {
		dst = binary.AppendUvarint(dst, uint64(len(part)))
		dst = append(dst, part...)
	}
	return dst
}

// ErrIdentityEncoding reports bytes that no [Identity.AppendTo] has written.
var ErrIdentityEncoding = errors.New("admission: malformed identity encoding")

// DecodeIdentity is the inverse of [Identity.AppendTo]. It returns the identity and
// what follows it, and accepts only the canonical encoding of a valid identity.
func DecodeIdentity(src []byte) (Identity, []byte, error) {
	var id Identity
	for _, part := range [...]*string{&id.Namespace, &id.Principal, &id.Operation, &id.Key} {
		size, n := binary.Uvarint(src)
		if n <= 0 || (n > 1 && src[n-1] == 0) || size > uint64(len(src)-n) {
			return Identity{}, nil, ErrIdentityEncoding
		}
		*part = string(src[n : n+int(size)])
		src = src[n+int(size):]
	}
	if id.Validate() != nil {
		return Identity{}, nil, ErrIdentityEncoding
	}
	return id, src, nil
}

// Shard returns the number, from 0 to shards-1, of the shard that owns the
// identity. The hash is a fixed one (the first eight bytes of SHA-256, big-endian):
// it is a part of the data format and never changes.
func (id Identity) Shard(shards int) int {
	var buf [256]byte // most are shorter, and callers have small stacks
	sum := sha256.Sum256(id.AppendTo(buf[:0]))
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(shards))
}

func checkText(field, value string, minBytes, maxBytes int) *Violation {
	switch {
	case len(value) < minBytes:
		return violation(field, "must not be empty")
	case len(value) > maxBytes:
		return violation(field, "is %d bytes long, the limit is %d", len(value), maxBytes)
	case !utf8.ValidString(value):
		return violation(field, "is not valid UTF-8")
	}
	return nil
}
