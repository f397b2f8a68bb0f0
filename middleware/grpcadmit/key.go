package grpcadmit

import (
	"context"
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// MetadataKey is the metadata that the key is in.
const MetadataKey = "idempotency-key"

// keyBytesMost is how long a key may be.
const keyBytesMost = 255

// KeySource finds the key of a call. "" means that there is none; an error refuses the call
// as malformed, and its text is told to the caller. [WithKeys] takes several: the first that
// finds one decides.
//
// A key is 1 to 255 characters of printable ASCII; another one is refused.
type KeySource func(ctx context.Context, request proto.Message) (key string, err error)

// IdempotencyKey takes the key from the metadata idempotency-key. Its value is, as in HTTP, an
// RFC 9651 string in quotes or the same key bare: letters, digits and -._~:/+=@!#$%&*^| that
// do not begin with a colon. Both forms name the same key. One that is empty or there twice
// is refused.
func IdempotencyKey() KeySource {
	return func(ctx context.Context, _ proto.Message) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, MetadataKey)
		switch len(values) {
		case 0:
			return "", nil
		case 1:
			return parseKey(values[0])
		}
		return "", fmt.Errorf("the metadata %s is there %d times", MetadataKey, len(values))
	}
}

// parseKey reads the value of the metadata idempotency-key.
func parseKey(value string) (string, error) {
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{value})
		if err != nil {
			return "", fmt.Errorf("the metadata %s is not a string as RFC 9651 has it", MetadataKey)
		}
		text, ok := item.Value.(string)
		if !ok {
			return "", fmt.Errorf("the metadata %s is not a string", MetadataKey)
		}
		key = text
	} else if strings.HasPrefix(value, ":") || strings.ContainsFunc(value, notBare) {
		return "", fmt.Errorf("the metadata %s is neither a quoted string nor a bare key", MetadataKey)
	}
	if key == "" {
		return "", fmt.Errorf("the key is empty")
	}
	return key, checkKey(key)
}

// notBare reports whether a bare key must not hold the character: what is not in this list
// means something in a structured field, or does not survive every proxy.
func notBare(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return false
	}
	return !strings.ContainsRune("-._~:/+=@!#$%&*^|", c)
}

// checkKey checks what holds for a key of every origin.
func checkKey(key string) error {
	if len(key) > keyBytesMost {
		return fmt.Errorf("the key has %d bytes, and may have %d", len(key), keyBytesMost)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return fmt.Errorf("the key is not printable ASCII")
		}
	}
	return nil
}

// KeyFromField takes the key from a field of the request, a string, at the path: "request_id",
// for example, where an API follows AIP-155. A request without the field, and one where it is
// empty, has no key.
func KeyFromField(path ...protoreflect.Name) KeySource {
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
