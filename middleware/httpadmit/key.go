package httpadmit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dunglas/httpsfv"
)

// HeaderName is the header of draft-ietf-httpapi-idempotency-key-header.
const HeaderName = "Idempotency-Key"

// keyBytesMost is how long a key may be.
const keyBytesMost = 255

// KeySource finds the key of a request. [WithKeys] takes several: the first that finds
// one decides, and one that finds a malformed key refuses the request.
type KeySource struct {
	find func(*request) (foundKey, error)
	err  error // of its making; New reports it
}

// foundKey is what a source has found. No value: no key.
type foundKey struct {
	value string
	// window is the dedupe window of an automatic key; 0: the record's retention.
	window time.Duration
	// fingerprint replaces the request's; nil: the request's own is taken.
	fingerprint []byte
}

// IdempotencyKey takes the key from the header Idempotency-Key. Its value is an RFC 9651
// string in quotes, or the same key bare, as most callers send it: letters, digits and
// -._~:/+=@!#$%&*^| that do not begin with a colon. Both forms name the same key, of 1
// to 255 bytes.
func IdempotencyKey() KeySource {
	return KeySource{find: func(q *request) (foundKey, error) {
		lines := q.http.Header[HeaderName]
		switch len(lines) {
		case 0:
			return foundKey{}, nil
		case 1:
		default:
			return foundKey{}, keyInvalid("the header %s is there %d times", HeaderName, len(lines))
		}
		key, err := parseKey(lines[0])
		return foundKey{value: key}, err
	}}
}

// parseKey reads the value of the header Idempotency-Key.
func parseKey(value string) (string, error) {
	// What is around a header's value does not belong to it, and net/http has removed it.
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{value})
		if err != nil {
			return "", keyInvalid("the header %s is not a string as RFC 9651 has it", HeaderName)
		}
		text, ok := item.Value.(string)
		if !ok {
			return "", keyInvalid("the header %s is not a string", HeaderName)
		}
		key = text
	} else if strings.HasPrefix(value, ":") || strings.ContainsFunc(value, notBare) {
		return "", keyInvalid("the header %s is neither a quoted string nor a bare key", HeaderName)
	}
	return key, checkKey(key)
}

// notBare reports whether a bare key must not hold the character: what is not in this
// list means something in a structured field, or does not survive every proxy.
func notBare(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return false
	}
	return !strings.ContainsRune("-._~:/+=@!#$%&*^|", c)
}

// checkKey checks what holds for a key of every origin.
func checkKey(key string) error {
	switch {
	case key == "":
		return keyInvalid("the key is empty")
	case len(key) > keyBytesMost:
		return keyInvalid("the key has %d bytes, and may have %d", len(key), keyBytesMost)
	case !utf8.ValidString(key):
		return keyInvalid("the key is not valid UTF-8")
	}
	return nil
}

func keyInvalid(format string, arguments ...any) *problem {
	return &problem{code: CodeKeyInvalid, detail: fmt.Sprintf(format, arguments...)}
}

// KeyFromHeader takes the key from another header, such as X-GitHub-Delivery, as it is:
// 1 to 255 bytes of UTF-8. A header that is empty or there twice is refused.
func KeyFromHeader(name string) KeySource {
	name = http.CanonicalHeaderKey(name)
	return KeySource{find: func(q *request) (foundKey, error) {
		lines, ok := q.http.Header[name]
		switch {
		case !ok:
			return foundKey{}, nil
		case len(lines) != 1:
			return foundKey{}, keyInvalid("the header %s is there %d times", name, len(lines))
		}
		return foundKey{value: lines[0]}, checkKey(lines[0])
	}}
}

// KeyFromJSON takes the key from a member of the JSON body: a string, 1 to 255 bytes, at
// the path, such as the "id" of a Stripe event. A body without the member, and one that
// is no JSON, have no key.
//
// The body is read for it, within the limit of bodies, whether there is a key or not.
//
// A sender that changes other members between deliveries needs a fingerprint that leaves
// them out: see [ChosenFields].
func KeyFromJSON(path ...string) KeySource {
	return KeySource{find: func(q *request) (foundKey, error) {
		value, ok, err := q.member(path)
		if err != nil || !ok {
			return foundKey{}, err
		}
		key, isString := value.(string)
		if !isString {
			return foundKey{}, keyInvalid("the body's %s is not a string", strings.Join(path, "."))
		}
		return foundKey{value: key}, checkKey(key)
	}}
}

// KeyFunc takes the key from a function of the request and its body. "" means that there
// is none. An error refuses the request as malformed, and its text is told to the caller.
// The body is read for it, within the limit of bodies; the function must not read the
// request's own Body.
func KeyFunc(find func(r *http.Request, body []byte) (string, error)) KeySource {
	if find == nil {
		return KeySource{err: errors.New("KeyFunc: there is no function")}
	}
	return KeySource{find: func(q *request) (foundKey, error) {
		body, err := q.body()
		if err != nil {
			return foundKey{}, err
		}
		key, err := find(q.http, body)
		switch {
		case err != nil:
			return foundKey{}, keyInvalid("%v", err)
		case key == "":
			return foundKey{}, nil
		}
		return foundKey{value: key}, checkKey(key)
	}}
}
