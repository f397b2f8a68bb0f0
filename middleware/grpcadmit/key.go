package grpcadmit

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atmostonce/coordinator/middleware/internal/key"
)

// MetadataKey is the metadata that the key is in.
const MetadataKey = "idempotency-key"

// KeySource finds the key of a call. "" means that there is none; an error refuses the call
// as malformed, and its text is told to the caller. [WithKeys] takes several: the first that
// finds one decides.
//
// A key is 1 to 255 bytes of UTF-8; another one is refused.
type KeySource func(ctx context.Context, request proto.Message) (key string, err error)

// IdempotencyKey takes the key from the metadata idempotency-key. Its value is, as in HTTP, an
// RFC 9651 string in quotes or the same key bare: letters, digits and -._~:/+=@!#$%&*^| that
// do not begin with a colon. Both forms name the same key, of 1 to 255 bytes. One that is
// empty or there twice is refused.
func IdempotencyKey() KeySource {
	return func(ctx context.Context, _ proto.Message) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, MetadataKey)
		switch len(values) {
		case 0:
			return "", nil
		case 1:
			return key.Parse(values[0], "the metadata "+MetadataKey)
		}
		return "", fmt.Errorf("the metadata %s is there %d times", MetadataKey, len(values))
	}
}

// KeyFromField takes the key from a field of the request, a string, at the path: "request_id",
// for example, where an API follows AIP-155. A request without the field, and one where it is
// empty, has no key.
func KeyFromField(path ...protoreflect.Name) KeySource {
	if len(path) == 0 {
		return nil // no source: New says so
	}
	return func(_ context.Context, request proto.Message) (string, error) {
		message := request.ProtoReflect()
		for i, name := range path {
			field := message.Descriptor().Fields().ByName(name)
			switch {
			case field == nil || field.IsList() || field.IsMap():
				return "", nil
			case i < len(path)-1 && field.Message() != nil:
				message = message.Get(field).Message()
			case i == len(path)-1 && field.Kind() == protoreflect.StringKind:
				return message.Get(field).String(), nil
			default:
				return "", nil
			}
		}
		return "", nil
	}
}
