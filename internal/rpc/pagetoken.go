package rpc

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
)

// position is where a listing goes on: in a shard, after a sequence.
type position struct {
	shard int
	after uint64
}

// A page token is URL-safe base64 of
//
//	version (1) · shard (4) · sequence (8) · filter (8) · CRC-32 of all that (4)
//
// big-endian. The filter is a hash of what is listed: a token goes on with the
// listing that it came from and with no other. The checksum is there for tokens
// that were cut or mistyped; a forged one shows nothing that its owner could not
// list anyway.
const (
	pageTokenVersion = 1
	pageTokenBytes   = 1 + 4 + 8 + 8 + 4
)

var pageTokenText = base64.RawURLEncoding.Strict()

func (p position) token(filter [8]byte) string {
	raw := make([]byte, 0, pageTokenBytes)
	raw = append(raw, pageTokenVersion)
	raw = binary.BigEndian.AppendUint32(raw, uint32(p.shard))
	raw = binary.BigEndian.AppendUint64(raw, p.after)
	raw = append(raw, filter[:]...)
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return pageTokenText.EncodeToString(raw)
}

// parsePageToken is the inverse of token, for a cluster with that many shards. It
// accepts one text for one position.
func parsePageToken(text string, filter [8]byte, shards int) (position, error) {
	const field = "page_token"
	if len(text) != pageTokenText.EncodedLen(pageTokenBytes) {
		return position{}, invalid(field, "is not a page token: %d bytes long instead of %d",
			len(text), pageTokenText.EncodedLen(pageTokenBytes))
	}
	raw, err := pageTokenText.DecodeString(text)
	if err != nil || len(raw) != pageTokenBytes || raw[0] != pageTokenVersion ||
		crc32.ChecksumIEEE(raw[:pageTokenBytes-4]) != binary.BigEndian.Uint32(raw[pageTokenBytes-4:]) {
		return position{}, invalid(field, "is not a page token")
	}
	if [8]byte(raw[13:21]) != filter {
		return position{}, invalid(field, "belongs to a listing with other filters")
	}
	number := binary.BigEndian.Uint32(raw[1:5])
	if uint64(number) >= uint64(shards) {
		return position{}, invalid(field, "belongs to a cluster with more shards")
	}
	return position{shard: int(number), after: binary.BigEndian.Uint64(raw[5:13])}, nil
}

// hash names the filter in a page token.
func (f filter) hash() [8]byte {
	framed := appendText(nil, f.namespace)
	framed = append(framed, byte(f.state))
	if f.operation != nil {
		framed = appendText(append(framed, 1), *f.operation)
	}
	sum := sha256.Sum256(framed)
	return [8]byte(sum[:8])
}
