package httpadmit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/atmostonce/coordinator/internal/lease"
)

// AutomaticKey makes a key for requests that bring none, such as webhooks of a chart
// service: two requests whose fields are the same are one, if the second comes within
// the window from the first one seen.
//
//	httpadmit.AutomaticKey(time.Minute,
//		httpadmit.JSONField("exchange"), httpadmit.JSONField("symbol"),
//		httpadmit.JSONField("action"), httpadmit.JSONField("quantity"),
//		httpadmit.JSONField("mode"))
//
// The window, 1 s to 30 days, starts when the first one is admitted, and nowhere else: no
// boundary of a minute lets a duplicate through. The record is kept until then, by the
// coordinator's clock, which never ends it early; it may end late by the time that the
// coordinator's answers take. While the first one is still being carried out its
// duplicates are in flight, however long that takes. One that is released, because nothing
// came of it, starts no window.
//
// Requests that must never meet, such as live and test, differ in a field: make it one of
// them. A field that is missing is a 400, unless it is [Field.Optional]. The fingerprint
// is that of the fields: what else differs, such as the time of sending, does not count.
//
// Under [client.Hold], one whose outcome is unknown blocks its key beyond the window,
// until it is settled.
func AutomaticKey(window time.Duration, fields ...Field) KeySource {
	if err := lease.CheckRetention(window); err != nil {
		return KeySource{err: fmt.Errorf("AutomaticKey: the window %w", err)}
	}
	if err := checkFields("AutomaticKey", fields); err != nil {
		return KeySource{err: err}
	}
	return KeySource{find: func(q *request) (foundKey, error) {
		sum, err := fieldsKey(q, fields, "window")
		if err != nil {
			return foundKey{}, err
		}
		return foundKey{value: "auto-" + hex.EncodeToString(sum[:]), window: window, fingerprint: sum[:]}, nil
	}}
}

// BucketKey is the simpler form of [AutomaticKey]: time is cut into buckets, of a minute
// for example, by this machine's wall clock, and two requests whose fields are the same
// are one if they come in the same bucket. Two that come right before and right after a
// boundary are not, and machines must agree about the time. The bucket is 1 s to
// 30 days; the record is kept for the retention of the guard, which must not be shorter.
func BucketKey(bucket time.Duration, fields ...Field) KeySource {
	if err := lease.CheckRetention(bucket); err != nil {
		return KeySource{err: fmt.Errorf("BucketKey: the bucket %w", err)} // no record outlasts it
	}
	if err := checkFields("BucketKey", fields); err != nil {
		return KeySource{err: err}
	}
	return KeySource{bucket: bucket, find: func(q *request) (foundKey, error) {
		number := time.Now().UnixNano() / int64(bucket)
		sum, err := fieldsKey(q, fields, "bucket", bucket.String(), strconv.FormatInt(number, 10))
		if err != nil {
			return foundKey{}, err
		}
		return foundKey{value: "auto-" + hex.EncodeToString(sum[:]), fingerprint: sum[:]}, nil
	}}
}

// fieldsKey hashes the fields of a request. The label is a part of what an automatic key
// is: it never changes.
func fieldsKey(q *request, fields []Field, form ...string) ([sha256.Size]byte, error) {
	text, err := appendFields(framed([]byte("httpadmit automatic key 1"), form...), q, fields)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return sha256.Sum256(text), nil
}
