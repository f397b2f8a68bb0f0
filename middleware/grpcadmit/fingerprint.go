package grpcadmit

import (
	"crypto/sha256"
	"encoding/binary"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atmostonce/coordinator/middleware/internal/admit"
)

// Fingerprint is what tells requests under the same key apart, 0 to 64 bytes: two requests
// are the same if it is. An error refuses the call as misconfigured.
type Fingerprint func(method string, request proto.Message) ([]byte, error)

// WholeRequest is the SHA-256 over the method, the request's type and its deterministic proto
// bytes, each behind its length. Maps are sorted; fields that this build does not know are
// part of it, in the order in which they came.
//
// Proto bytes are deterministic for one build and not canonical: a build that has learned of
// a field, or whose protobuf module orders its bytes in another way, may hash the same
// request differently. A retry that spans such an update is then refused as a mismatch, never
// carried out twice.
func WholeRequest() Fingerprint {
	return func(method string, request proto.Message) ([]byte, error) {
		content, err := deterministic().Marshal(request)
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		for _, part := range []string{method, string(proto.MessageName(request)), string(content)} {
			hash.Write(binary.AppendUvarint(nil, uint64(len(part))))
			hash.Write([]byte(part))
		}
		return hash.Sum(nil), nil
	}
}

// WithoutFields is [WholeRequest] without fields of the request at the top level: a time of
// sending, for example, that a retry changes. Requests that have no field of such a name are
// taken as they are.
func WithoutFields(names ...protoreflect.Name) Fingerprint {
	whole := WholeRequest()
	return func(method string, request proto.Message) ([]byte, error) {
		without := proto.Clone(request)
		message := without.ProtoReflect()
		for _, name := range names {
			if field := message.Descriptor().Fields().ByName(name); field != nil {
				message.Clear(field)
			}
		}
		return whole(method, without)
	}
}

// deterministic writes proto bytes as they are hashed and stored.
func deterministic() proto.MarshalOptions { return proto.MarshalOptions{Deterministic: true} }

// operation is the full method of a call.
func operation(method string, _ proto.Message) string { return admit.Operation(method) }
