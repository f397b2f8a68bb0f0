// Package outgoing is the caller's half of an idempotency key: an http.RoundTripper that
// gives each logical request one key and keeps it over its retries.
//
//	api := &http.Client{Transport: outgoing.New(http.DefaultTransport)}
//
// # Which requests
//
// Those that change something: every method but GET, HEAD, OPTIONS and TRACE. A request
// that has the header already keeps it, byte for byte. Otherwise the key is, in this order:
// that of the request which was answered with the 307 or 308 that this one follows; that
// of the context ([ContextWithKey]); what the function of [WithKeyFunc] says; a random
// UUID.
//
// # Retries
//
// A request is sent again when the connection failed, and when the answer is 429, 502,
// 503, 504, or a 409 with Retry-After, which is what a guarded server says while the first
// delivery is in flight. Every try carries the same key, so that a server that guards the
// endpoint, with package httpadmit or otherwise, carries it out once. Against a server
// that does not know the header retries are not safe: use WithTries(1), or do not use this.
// A body that cannot be read again (http.Request.GetBody) is sent once.
//
// With the defaults of both halves a request takes up to 15 s while the coordinator is away: four tries,
// each of which is refused after 3 s (httpadmit.WithReserveTimeout), with a second between them. The
// request's context, http.Client.Timeout and [WithTries] bound it.
//
// Retries that are made outside, by a library that calls http.Client.Do again, keep the
// key if they use the context of [ContextWithKey] or send the header themselves.
//
// # In a guarded handler
//
// A call downstream is keyed by a derived key, which every attempt derives alike:
//
//	ctx := outgoing.ContextWithKey(r.Context(), httpadmit.Reservation(r.Context()).Derive("charge"))
//
// # Invariants
//
//  1. No two tries of one RoundTrip carry different keys, and none carries two.
//  2. The caller's request is never changed.
//  3. The last try's answer, or error, is what the caller gets: nothing is made up.
//  4. A key that cannot be sent, an empty one in a context too, fails the request before
//     anything is sent: a random one in its place would let a retry through.
package outgoing

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	mathrand "math/rand/v2"

	"github.com/atmostonce/coordinator/middleware/internal/key"
)

// headerName is the header of draft-ietf-httpapi-idempotency-key-header.
const headerName = "Idempotency-Key"

// Defaults of the options.
const (
	triesDefault      = 4
	backoffDefault    = 100 * time.Millisecond
	retryAfterDefault = 10 * time.Second
	// drainMost is how much of an answer that is not given to the caller is read, so that
	// its connection can be used again.
	drainMost = 64 << 10
)

// Option is an option of [New].
type Option func(*Transport)

// WithTries is how often a request is sent at most; 1 or more. Default: 4.
func WithTries(n int) Option { return func(t *Transport) { t.tries = max(1, n) } }

// WithBackoff is the longest pause before the first retry; it doubles with each further
// one, and each pause is drawn at random from half of it up. Default: 100 ms.
func WithBackoff(d time.Duration) Option { return func(t *Transport) { t.backoff = max(0, d) } }

// WithRetryAfterMost is how long a Retry-After is waited for; an answer that asks for more
// is given to the caller as it is. Default: 10 s.
func WithRetryAfterMost(d time.Duration) Option {
	return func(t *Transport) { t.retryAfterMost = max(0, d) }
}

// WithKeyFunc makes the key of a request that has none, from what names the operation in
// the caller's own records. "" means a random one. It is called once for each RoundTrip.
func WithKeyFunc(key func(*http.Request) string) Option {
	return func(t *Transport) { t.key = key }
}

// Transport is an http.RoundTripper that keys requests. It may be used by several
// goroutines at once.
type Transport struct {
	base           http.RoundTripper
	tries          int
	backoff        time.Duration
	retryAfterMost time.Duration
	key            func(*http.Request) string
}

// New returns a Transport that sends with base; nil means http.DefaultTransport. It panics where an
// option is nil.
func New(base http.RoundTripper, options ...Option) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &Transport{base: base, tries: triesDefault, backoff: backoffDefault, retryAfterMost: retryAfterDefault}
	for i, option := range options {
		if option == nil {
			panic(fmt.Sprintf("outgoing: option %d of New is nil", i+1))
		}
		option(t)
	}
	return t
}

type contextKey struct{}

// ContextWithKey gives the requests made under the context this key, 1 to 255 characters of
// printable ASCII. Make one context for each logical request: two different ones under one key are a mismatch, which the server
// refuses.
func ContextWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// ContextWithNewKey is ContextWithKey with a random key: for retries that are made outside
// of the Transport.
func ContextWithNewKey(ctx context.Context) context.Context { return ContextWithKey(ctx, key.New()) }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return t.base.RoundTrip(r)
	}
	header, err := t.header(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	for number := 1; ; number++ {
		try := r.WithContext(r.Context()) // a shallow copy
		try.Header = header.Clone()
		if number > 1 && r.GetBody != nil {
			if try.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		answer, err := t.base.RoundTrip(try)
		if answer != nil && answer.Request == nil {
			answer.Request = try // a redirect finds its key there
		}
		pause, again := t.again(r, number, answer, err)
		if !again {
			return answer, err
		}
		if answer != nil {
			_, _ = io.CopyN(io.Discard, answer.Body, drainMost)
			_ = answer.Body.Close()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, r.Context().Err()
		}
	}
}

// CloseIdleConnections closes the connections of the base that nobody uses; it is what
// http.Client's own calls.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// header is the header of every try.
func (t *Transport) header(r *http.Request) (http.Header, error) {
	header := r.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	for name, lines := range header {
		// Names that were put into the map by hand go out as they are, and mean the same.
		if len(lines) > 0 && http.CanonicalHeaderKey(name) == headerName {
			return header, nil
		}
	}
	if before := r.Response; before != nil && before.Request != nil && before.Request.Method == r.Method &&
		(before.StatusCode == http.StatusTemporaryRedirect || before.StatusCode == http.StatusPermanentRedirect) {
		if lines := before.Request.Header[headerName]; len(lines) > 0 {
			header[headerName] = lines
			return header, nil
		}
	}
	chosen, given := r.Context().Value(contextKey{}).(string)
	if !given {
		if t.key != nil {
			chosen = t.key(r)
		}
		if chosen == "" {
			chosen = key.New()
		}
	}
	line, err := key.Quote(chosen)
	if err != nil {
		return nil, fmt.Errorf("outgoing: %w; nothing was sent", err)
	}
	header[headerName] = []string{line}
	return header, nil
}

// again says whether and when to send once more.
func (t *Transport) again(r *http.Request, number int, answer *http.Response, err error) (time.Duration, bool) {
	repeatable := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	if number >= t.tries || !repeatable || r.Context().Err() != nil {
		return 0, false
	}
	pause := t.backoff << (number - 1)
	pause = pause/2 + time.Duration(mathrand.Int64N(int64(pause/2)+1)) //nolint:gosec // jitter is not a secret
	if err == nil {
		asked, said := retryAfter(answer)
		switch answer.StatusCode {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		case http.StatusConflict:
			if !said {
				return 0, false
			}
		default:
			return 0, false
		}
		if asked > t.retryAfterMost {
			return 0, false
		}
		pause = max(pause, asked)
	}
	// An answer, whatever it is, is worth more than a deadline that has passed.
	if deadline, ok := r.Context().Deadline(); ok && time.Until(deadline) <= pause {
		return 0, false
	}
	return pause, true
}

// retryAfter reads the header Retry-After.
func retryAfter(answer *http.Response) (time.Duration, bool) {
	value := answer.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at)), true
	}
	return 0, false
}
