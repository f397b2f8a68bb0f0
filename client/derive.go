package client

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// deriveLabel keeps derived keys apart from every other hash of an identity. It is a
// part of what a derived key is and never changes.
const deriveLabel = "coordinator derived key 1"

// Derive returns the sub-key of a downstream side effect: 64 hexadecimal digits that
// depend on the four parts of the identity and on the name, and on nothing else. Every
// attempt, on every machine, derives the same one without keeping anything, so a side
// effect that is keyed by it converges:
//
//	volume, err := cloud.CreateVolume(ctx, id.Derive("volume"), …)
//
// The name is any string, one for each side effect. It is the SHA-256 of a fixed label
// and of the five parts, each behind its length; this never changes.
func (id Identity) Derive(name string) string {
	sum := id.derive(name)
	return hex.EncodeToString(sum[:])
}

// DeriveUUID is [Identity.Derive] for systems that want a UUID: the first 128 bits of
// the same hash as a UUID of version 8 (RFC 9562, section 5.8; the name-based form of its
// appendix B.2), in lower case. 122 bits of the hash are left.
func (id Identity) DeriveUUID(name string) string {
	sum := id.derive(name)
	sum[6] = sum[6]&0x0f | 0x80 // version 8
	sum[8] = sum[8]&0x3f | 0x80 // variant of the RFC
	var text [36]byte
	hex.Encode(text[:8], sum[:4])
	hex.Encode(text[9:13], sum[4:6])
	hex.Encode(text[14:18], sum[6:8])
	hex.Encode(text[19:23], sum[8:10])
	hex.Encode(text[24:], sum[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

func (id Identity) derive(name string) [sha256.Size]byte {
	framed := binary.AppendUvarint(nil, uint64(len(deriveLabel)))
	framed = append(framed, deriveLabel...)
	framed = id.framed(framed)
	framed = binary.AppendUvarint(framed, uint64(len(name)))
	framed = append(framed, name...)
	return sha256.Sum256(framed)
}
