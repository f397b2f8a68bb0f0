package admit

import (
	"fmt"
	"unicode/utf8"

	"github.com/atmostonce/coordinator/client"
)

// How long the parts of an identity may be, in bytes, as the contract has it. The key's limit is
// package key's.
const (
	namespaceBytesMost = 64
	principalBytesMost = 128
	operationBytesMost = 255
)

// identity is what a question is about. A caller has a say in its operation, which may hold the
// path that it chose: one that is none is cut, and not refused.
func (s *Settings) identity(q Question) client.Identity {
	return client.Identity{Namespace: s.Namespace, Principal: q.Principal, Operation: Operation(q.Operation), Key: q.Key}
}

// checkPart returns what is wrong with a part of an identity, or nil. It does not show it.
func checkPart(name, value string, bytesMost int) error {
	switch {
	case len(value) > bytesMost:
		return fmt.Errorf("the %s has %d bytes, and may have %d", name, len(value), bytesMost)
	case !utf8.ValidString(value):
		return fmt.Errorf("the %s is not valid UTF-8", name)
	}
	return nil
}
