// Package key is the syntax of idempotency keys: how one is read from what a caller sent, and
// how it is sent. HTTP's header Idempotency-Key and gRPC's metadata idempotency-key are the
// same text, so a key that one of them was given means the same to the other.
//
// Its value is a string of RFC 9651, in quotes, or the same key bare, as most callers send it.
// Both forms name the same key.
//
// # Invariants
//
//  1. What Parse takes, Quote and Encode write back as a text that Parse reads as the same key.
//  2. Nothing is trimmed from a key, folded or guessed: what is not well-formed is refused.
//  3. A refusal never shows the key.
//
// It keeps nothing, and links nothing of the coordinator: a caller uses it too.
package key

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dunglas/httpsfv"
)

// BytesMost is how long a key may be.
const BytesMost = 255

// errEmpty reports a key without a byte.
var errEmpty = errors.New("the key is empty")

// Check reports what is wrong with a key, of whatever origin: it has 1 to 255 bytes and is
// valid UTF-8.
func Check(key string) error {
	switch {
	case key == "":
		return errEmpty
	case len(key) > BytesMost:
		return fmt.Errorf("the key has %d bytes, and may have %d", len(key), BytesMost)
	case !utf8.ValidString(key):
		return errors.New("the key is not valid UTF-8")
	}
	return nil
}

// Parse reads the value of a header or of metadata, which the text of an error calls where. A
// key in it is 1 to 255 characters of printable ASCII.
func Parse(value, where string) (string, error) {
	// What is around a value does not belong to it.
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{value})
		if err != nil {
			return "", fmt.Errorf("%s is not a string as RFC 9651 has it", where)
		}
		text, ok := item.Value.(string)
		if !ok {
			return "", fmt.Errorf("%s is not a string", where)
		}
		key = text
	} else if value != "" && !bare(value) {
		return "", fmt.Errorf("%s is neither a quoted string nor a bare key", where)
	}
	return key, Check(key)
}

// bare reports whether a key may go without quotes: what is not in this list means something
// in a structured field, or does not survive every proxy. A colon at the start would begin a
// byte sequence.
func bare(key string) bool {
	return !strings.HasPrefix(key, ":") && !strings.ContainsFunc(key, func(c rune) bool {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			return false
		}
		return !strings.ContainsRune("-._~:/+=@!#$%&*^|", c)
	})
}

// Quote returns a key as it is sent, in quotes. It fails for what Parse would refuse.
func Quote(key string) (string, error) {
	if err := Check(key); err != nil {
		return "", err
	}
	quoted, err := httpsfv.Marshal(httpsfv.NewItem(key))
	if err != nil {
		return "", errors.New("the key is not printable ASCII")
	}
	return quoted, nil
}

// Encode is Quote without the quotes, where the key may go without.
func Encode(key string) (string, error) {
	quoted, err := Quote(key)
	if err == nil && bare(key) {
		return key, nil
	}
	return quoted, err
}

// New returns a random key: a UUID, version 4.
func New() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // this cannot fail: a system without randomness ends the program
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
