package httpadmit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// Fingerprint tells one request from another under the same key. Each kind is SHA-256
// over framed parts and a label of its own, so that kinds never meet: changing the kind
// makes retries of older requests a mismatch, not a replay.
type Fingerprint struct {
	sum func(*request) ([]byte, error)
	err error
}

// RawBody is the default: method, path (see [WithOperation]), raw query, content type and the
// body, byte for byte.
func RawBody() Fingerprint {
	return Fingerprint{sum: func(q *request) ([]byte, error) {
		body, err := q.body()
		if err != nil {
			return nil, err
		}
		return q.fingerprint("raw", body), nil
	}}
}

// CanonicalJSON is [RawBody] with a JSON body in the canonical form of RFC 8785: a client
// that orders members differently on a retry, or writes 1.0 for 1, sends the same
// request.
//
// A body is taken byte for byte where its canonical form would not say all of it: what is
// not JSON by its content type or not by its text, what has a member twice, and what
// has a number that a 64-bit float cannot hold, such as 9007199254740993, which RFC 8785
// makes equal to its neighbour.
func CanonicalJSON() Fingerprint {
	return Fingerprint{sum: func(q *request) ([]byte, error) {
		body, err := q.body()
		if err != nil {
			return nil, err
		}
		if isJSON(q.http.Header.Get("Content-Type")) && lossless(body) {
			if canonical, err := canonicalJSON(body); err == nil {
				return q.fingerprint("canonical", canonical), nil
			}
		}
		return q.fingerprint("raw", body), nil
	}}
}

// ChosenFields is the method, the path and the chosen fields, and nothing else: for
// senders that change the rest between two deliveries of the same thing. A field that is
// missing and not [Field.Optional] is a 400.
func ChosenFields(fields ...Field) Fingerprint {
	if err := checkFields("ChosenFields", fields); err != nil {
		return Fingerprint{err: err}
	}
	return Fingerprint{sum: func(q *request) ([]byte, error) {
		text := framed([]byte(fingerprintLabel), "fields", q.http.Method, q.path())
		text, err := appendFields(text, q, fields)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		return sum[:], nil
	}}
}

// fingerprintLabel keeps fingerprints apart from other hashes. Records outlive versions
// of this package, so the label and the framing never change.
const fingerprintLabel = "httpadmit fingerprint 1"

func (q *request) fingerprint(form string, body []byte) []byte {
	text := framed([]byte(fingerprintLabel), form, q.http.Method, q.path(), q.target().RawQuery,
		strings.Join(q.http.Header["Content-Type"], "\x00"), string(body))
	sum := sha256.Sum256(text)
	return sum[:]
}

// isJSON reports whether a content type is application/json or ends with +json.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// canonicalJSON returns the canonical form of RFC 8785.
func canonicalJSON(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not valid UTF-8")
	}
	return jcs.Transform(text)
}

// lossless reports whether every number of a JSON text survives a 64-bit float.
func lossless(text []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return false
		}
		number, ok := token.(json.Number)
		if !ok {
			continue
		}
		float, err := number.Float64()
		if err != nil {
			return false
		}
		canonical, err := jcs.NumberToJSON(float)
		if err != nil || decimal(canonical) != decimal(string(number)) {
			return false
		}
	}
}
