package admit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Operation returns a name as an operation. One that is too long, or not valid UTF-8, is cut
// and carries its hash, so that no two names become one.
func Operation(name string) string {
	if len(name) <= operationBytesMost && utf8.ValidString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "…sha256:" + hex.EncodeToString(sum[:])
	return strings.ToValidUTF8(name[:min(len(name), operationBytesMost-len(hash))], "") + hash
}
