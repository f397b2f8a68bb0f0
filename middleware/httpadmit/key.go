package httpadmit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/atmostonce/coordinator/middleware/internal/key"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// HeaderName is the header of draft-ietf-httpapi-idempotency-key-header.
const HeaderName = "Idempotency-Key"

// KeySource finds the key of a request. [WithKeys] takes several: the first that finds
// one decides, and one that finds a malformed key refuses the request.
type KeySource struct {
	find func(*request) (foundKey, error)
	err  error // of its making; New reports it
	// bucket is how long a record must be kept, at least, so that the key is worth something.
	bucket time.Duration
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
		value, err := key.Parse(lines[0], "the header "+HeaderName)
		if err != nil {
			return foundKey{}, refusal.Invalid(err.Error())
		}
		return foundKey{value: value}, nil
	}}
}

func keyInvalid(format string, arguments ...any) *refusal.Refusal {
	return refusal.Invalid(fmt.Sprintf(format, arguments...))
}

// checked is a key that was found, if it is one.
func checked(value string) (foundKey, error) {
	if err := key.Check(value); err != nil {
		return foundKey{}, refusal.Invalid(err.Error())
	}
	return foundKey{value: value}, nil
}

// KeyFromHeader takes the key from another header, such as X-GitHub-Delivery, as it is:
// 1 to 255 bytes of UTF-8. A header that is empty or there twice is refused.
func KeyFromHeader(name string) KeySource {
	if !httpguts.ValidHeaderFieldName(name) {
		return KeySource{err: fmt.Errorf("KeyFromHeader: %q is no name of a header", name)}
	}
	name = http.CanonicalHeaderKey(name)
	return KeySource{find: func(q *request) (foundKey, error) {
		lines, ok := q.http.Header[name]
		switch {
		case !ok:
			return foundKey{}, nil
		case len(lines) != 1:
			return foundKey{}, keyInvalid("the header %s is there %d times", name, len(lines))
		}
		return checked(lines[0])
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
		text, isString := value.(string)
		if !isString {
			return foundKey{}, keyInvalid("the body's %s is not a string", strings.Join(path, "."))
		}
		return checked(text)
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
		value, err := find(q.http, body)
		switch {
		case err != nil:
			return foundKey{}, refusal.Invalid(err.Error())
		case value == "":
			return foundKey{}, nil
		}
		return checked(value)
	}}
}
