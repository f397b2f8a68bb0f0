package httpadmit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// request is one request on its way through the middleware. What costs something, the
// body above all, is read when it is first asked for, so that what is not guarded passes
// untouched.
type request struct {
	w     http.ResponseWriter
	http  *http.Request
	limit int64
	admit func() error // who may not have its body read is told so

	loaded  bool
	content []byte
	failed  error

	parsed    bool
	tree      any // of the body as JSON; nil where it is none
	ambiguous bool
}

// body returns the whole body. It is read once; the handler gets it again.
func (q *request) body() ([]byte, error) {
	if !q.loaded {
		q.loaded = true
		q.content, q.failed = q.load()
	}
	return q.content, q.failed
}

func (q *request) load() ([]byte, error) {
	if err := q.admit(); err != nil {
		return nil, err
	}
	if q.http.Body == nil || q.http.Body == http.NoBody {
		return nil, nil
	}
	if size := q.http.ContentLength; size > q.limit {
		q.w.Header().Set("Connection", "close") // nobody reads the rest
		return nil, tooLarge(fmt.Sprintf("the body has %d bytes, and the limit of this endpoint is %d", size, q.limit))
	}
	content, err := io.ReadAll(http.MaxBytesReader(q.w, q.http.Body, q.limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(fmt.Sprintf("the body has more bytes than the limit of this endpoint, which is %d", q.limit))
	case err != nil:
		return nil, &refusal.Refusal{Code: refusal.BodyUnreadable, Detail: "the body ended before it was complete"}
	}
	_ = q.http.Body.Close() // it was read to its end
	return content, nil
}

func tooLarge(detail string) error {
	return &refusal.Refusal{Code: refusal.BodyTooLarge, Detail: detail}
}

// restored is the request as the handler gets it: with the whole body unread.
func (q *request) restored() *http.Request {
	if !q.loaded || q.http.Body == nil || q.http.Body == http.NoBody {
		return q.http
	}
	r := *q.http // a shallow copy, as WithContext makes it
	r.Body = io.NopCloser(bytes.NewReader(q.content))
	return &r
}

// target is what was asked for, as the caller has sent it: the path before any
// http.StripPrefix, and the raw query.
func (q *request) target() *url.URL {
	if q.http.RequestURI != "" {
		if u, err := url.ParseRequestURI(q.http.RequestURI); err == nil {
			return u
		}
	}
	return q.http.URL
}

// What a path may have in it as it is (RFC 3986, sections 2.3 and 3.3).
const (
	unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
	delimiters = "!$&'()*+,;=:@/"
)

// path is the path of the target in the normal form of RFC 3986, section 6.2.2: what is
// unreserved is not escaped, a delimiter is as it was sent, and everything else is escaped, in
// capitals. So "%2F" is no slash, which would be the path of another resource, and yet a proxy
// that spells the path of a retry in its own way does not make another request of it.
func (q *request) path() string {
	target := q.target()
	sent := target.RawPath
	if plain, err := url.PathUnescape(sent); err != nil || plain != target.Path {
		sent = target.EscapedPath() // as it was sent too: else there would be a RawPath
	}
	var normal strings.Builder
	for i := 0; i < len(sent); i++ {
		c, escaped := sent[i], sent[i] == '%'
		if escaped {
			value, _ := strconv.ParseUint(sent[i+1:i+3], 16, 8) // the URL was parsed
			c, i = byte(value), i+2
		}
		if strings.IndexByte(unreserved, c) >= 0 || !escaped && strings.IndexByte(delimiters, c) >= 0 {
			normal.WriteByte(c)
		} else {
			fmt.Fprintf(&normal, "%%%02X", c)
		}
	}
	return normal.String()
}

// member returns the member of the JSON body at the path, numbers as json.Number.
func (q *request) member(path []string) (value any, ok bool, err error) {
	if !q.parsed {
		body, err := q.body()
		if err != nil {
			return nil, false, err
		}
		q.parsed = true
		q.tree, q.ambiguous = parseJSON(body)
	}
	if q.ambiguous {
		return nil, false, keyInvalid("the body is JSON that can be read in more than one way")
	}
	value = q.tree
	for _, name := range path {
		object, isObject := value.(map[string]any)
		if !isObject {
			return nil, false, nil
		}
		if value, ok = object[name]; !ok {
			return nil, false, nil
		}
	}
	return value, value != nil, nil
}

// parseJSON returns the one JSON value that the text is, nil where it is none. What has
// a member twice, or is not valid UTF-8 in one of the ways that there are, is ambiguous:
// the handler might read it in another way than we do.
func parseJSON(text []byte) (tree any, ambiguous bool) {
	if !json.Valid(text) {
		return nil, false
	}
	if _, err := canonicalJSON(text); err != nil {
		return nil, true
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := decoder.Decode(&tree)
	return tree, err != nil
}
