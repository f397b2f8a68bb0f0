package admission

import (
	"encoding/base64"
	"encoding/binary"
)

// Token is the proof of ownership that a grant gives to its owner.
type Token struct {
	Fence   uint64
	Attempt AttemptID
}

const (
	tokenVersion = 1
	tokenBytes   = 1 + 8 + 16
)

// TokenTextBytes is the length of a token as a caller holds it.
const TokenTextBytes = (tokenBytes*8 + 5) / 6

// String returns the opaque text of the token: URL-safe base64 of a version byte,
// the fence and the attempt. It begins with a letter, so that no command line
// takes it for a flag.
func (t Token) String() string {
	var raw [tokenBytes]byte
	raw[0] = tokenVersion
	binary.BigEndian.PutUint64(raw[1:], t.Fence)
	copy(raw[9:], t.Attempt[:])
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// ParseToken is the inverse of [Token.String]. It accepts nothing else: one token
// has one text.
func ParseToken(field, text string) (Token, *Violation) {
	var raw [tokenBytes]byte
	if len(text) == 0 {
		return Token{}, violation(field, "must not be empty")
	}
	if len(text) != TokenTextBytes {
		return Token{}, violation(field, "is not a token: %d bytes long instead of %d", len(text), TokenTextBytes)
	}
	n, err := base64.RawURLEncoding.Strict().Decode(raw[:], []byte(text))
	if err != nil || n != tokenBytes || raw[0] != tokenVersion {
		return Token{}, violation(field, "is not a token")
	}
	token := Token{Fence: binary.BigEndian.Uint64(raw[1:])}
	copy(token.Attempt[:], raw[9:])
	return token, nil
}

// owns reports whether the token is the one of the record's latest grant.
func (t Token) owns(r *Record) bool {
	return t.Fence == r.Fence && t.Attempt == r.Holder
}
