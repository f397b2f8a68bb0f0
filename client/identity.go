package client

import (
	"crypto/sha256"
	"encoding/binary"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
)

// Identity names a record. The four parts go over the wire as they are and are compared
// byte for byte: nothing is trimmed, folded or normalised. Each must be valid UTF-8;
// the coordinator says what is wrong with one ([ErrInvalidArgument]).
type Identity struct {
	// Namespace is the tenant, 1 to 64 bytes. Empty means "default".
	Namespace string
	// Principal is whom the guarded request runs as, such as the id of an API token or an
	// account, and never the secret itself; 0 to 128 bytes. Leave it empty only where
	// all callers may share keys.
	Principal string
	// Operation is the guarded endpoint with its real path, such as
	// "POST /v1/workers/w7/reboot"; 0 to 255 bytes.
	Operation string
	// Key is the caller's idempotency key, 1 to 255 bytes.
	Key string
}

// defaultNamespace is what an empty namespace stands for.
const defaultNamespace = "default"

// framed appends the four parts, each behind its length, so that no two identities
// have the same bytes. It is the encoding that the data format fixes.
func (id Identity) framed(to []byte) []byte {
	if id.Namespace == "" {
		id.Namespace = defaultNamespace
	}
	for _, part := range [...]string{id.Namespace, id.Principal, id.Operation, id.Key} {
		to = binary.AppendUvarint(to, uint64(len(part)))
		to = append(to, part...)
	}
	return to
}

// shard returns the number of the identity's shard, as every node computes it. The hash
// is a fixed part of the data format.
func (id Identity) shard(shards int) int {
	sum := sha256.Sum256(id.framed(nil))
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(shards))
}

// named are the attributes by which a log names the record.
func (id Identity) named() []any {
	return lease.Named(id.Namespace, id.Principal, id.Operation, id.Key)
}

func (id Identity) wire() *coordinatorv1.Identity {
	return &coordinatorv1.Identity{
		Namespace: id.Namespace, Principal: id.Principal, Operation: id.Operation, Key: id.Key,
	}
}

func identityOf(wire *coordinatorv1.Identity) Identity {
	return Identity{
		Namespace: wire.GetNamespace(), Principal: wire.GetPrincipal(),
		Operation: wire.GetOperation(), Key: wire.GetKey(),
	}
}
