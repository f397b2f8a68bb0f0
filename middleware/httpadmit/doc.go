// Package httpadmit guards HTTP endpoints: a request with an idempotency key is carried
// out at most once, and every retry gets the answer of the first.
//
//	coordinator, err := client.Dial([]string{"127.0.0.1:7420"})
//	if err != nil {
//		return err
//	}
//	guard := httpadmit.New(coordinator, httpadmit.WithPrincipal(accountOf), httpadmit.WithKeyRequired())
//	http.Handle("POST /v1/orders", guard(placeOrder))
//
// It speaks draft-ietf-httpapi-idempotency-key-header: the key is in the header
// Idempotency-Key, and what the middleware says by itself is application/problem+json with a
// stable "code" ([Code], docs/http.md).
//
// # Options at a glance
//
// One is required: [WithPrincipal], or [WithAnonymous] where all callers may share their keys.
//
//   - Who asks for what: [WithNamespace], [WithOperation], [WithMethods].
//   - The key: [WithKeyRequired], [WithKeys]: another header, the body, chosen fields of a webhook.
//   - The same request or another: [WithFingerprint], [WithBodyLimit].
//   - How long: [WithReserveTimeout] (3 s) for the coordinator, [WithPendingTTL] (5 min) for the
//     handler, [WithHandlerTimeout] (none) and [WithSettleWait] (15 s) for the caller, [WithWait]
//     (0) for an answer in flight, [WithRetention] (24 h) for the stored one.
//   - What an answer means: [WithOnLapse] ([client.Reopen]; [client.Hold] where twice is worse than
//     not at all), [WithClassifier], [WithResponseLimit], [WithNeverStored].
//   - The handler: [WithKeepAlive], [WithCallerCancel].
//   - Its answers: [WithStatus], [WithRetryAfter], [WithDocs], [WithChallenge].
//   - For people: [WithOwner], [WithLogger].
//
// # One request
//
//  1. Who makes it ([WithPrincipal]), what it does ([WithOperation]) and its key
//     ([WithKeys]) name a record. A request without a key passes untouched, unless
//     [WithKeyRequired]; a malformed key never does.
//  2. The body is read, at most [WithBodyLimit], and hashed with the rest of the request
//     ([WithFingerprint]). The handler reads it again.
//  3. The coordinator is asked. Only if it grants a reservation the handler runs; a key
//     that is done is answered with the stored response and Idempotent-Replayed: true.
//     When no answer can be had for 3 s ([WithReserveTimeout]) the request is refused: 503, and
//     nothing was carried out.
//  4. The handler's response is kept back.
//  5. What it means is decided ([WithClassifier]) and recorded: stored, or released.
//  6. The response goes to the caller.
//
// # When the coordinator does not answer
//
// A keyed request is refused, IDEMPOTENCY_UNAVAILABLE, and never waved through. One whose
// question arrived, and whose answer was lost, may hold its key all the same: the client asks
// for it again behind the scenes, with the same attempt, and releases it, for up to
// [client.WithSettleTimeout] (1 min). Until then a retry is told that the key is in flight. If
// the coordinator is away for longer, or this process ends first, the reservation lapses after
// [WithPendingTTL]: under [client.Reopen] the next retry runs, under [client.Hold] the key is in
// doubt, and may be settled as not applied.
//
// # Recorded before it is answered
//
// A caller that has a complete answer can rely on it: every retry gets the same one, and
// the handler does not run again. The price is that a response begins to go out when its
// handler has returned and a majority of the coordinator's nodes has it on disk. What that
// order means when something fails:
//
//   - The process dies before it is recorded. The caller has no answer. The reservation
//     lapses; then [client.Reopen] runs the handler again, [client.Hold] says
//     IDEMPOTENCY_IN_DOUBT until someone settles it.
//   - Recording fails, or nobody says whether it succeeded, for [WithSettleWait]. The caller
//     gets a 503 IDEMPOTENCY_UNAVAILABLE with "executed": true, not the response: it might
//     be one that no retry gets. Recording goes on behind the scenes, and a failed commit
//     is never turned into a release. A retry is answered with the response if it was
//     recorded, with IDEMPOTENCY_IN_FLIGHT while that is open, and after the lapse as above.
//   - The handler took longer than its reservation, and somebody else was admitted or has
//     settled it: IDEMPOTENCY_LOST. The other's answer counts.
//   - The caller hangs up. The handler goes on, unless [WithCallerCancel], and what comes
//     of it is recorded.
//   - The process dies after it is recorded, and before the caller has it all: a retry
//     gets it.
//
// # A response over the limit
//
// [WithResponseLimit] bounds what is kept back. A larger response goes out while it is
// written, but its last byte only after it is recorded that the request was carried out; if
// that fails the connection is cut, so that nobody takes what came for a whole answer.
// Its body is not stored: later callers get 410 RESPONSE_NOT_STORED, with the status of
// the first answer, and the handler does not run again.
//
// The first caller gets the same 410 where it could not tell a cut from the end: where the
// answer ends with the connection, since it has no Content-Length and the request is HTTP/1.0,
// as a proxy's may be, or the handler asked for Transfer-Encoding: identity. Nothing of it goes
// out then, and if what came of it is not stored the connection is closed without an answer. A
// Content-Length, or a higher limit, lets it through.
//
// What is not stored either, and reaches its first caller, is a response that the coordinator
// cannot take: over its own limit, with more than 128 header lines, or with bytes in a header
// that are not UTF-8; and one that is shorter than its Content-Length.
//
// # What a handler gets
//
// Its ResponseWriter behaves as net/http's does: implicit 200, 1xx answers that go out at
// once, Content-Length, trailers, io.ReaderFrom, http.ResponseController. Three things
// differ. Flush does nothing while the response is kept back; beyond the limit it flushes
// what has gone out. Hijack is refused with [ErrHijack]. And there is no Unwrap. Requests
// that are not guarded get the writer that the middleware got.
//
// Its context has the values of the request's, and ends with the reservation, not with the
// caller. [Reservation] finds the fence in it and derives keys for side effects;
// [MarkUncertain] and [MarkNotApplied] say what no status can.
//
// A handler that panics releases its key under [client.Reopen], unless its context had ended:
// what was cut off may have happened. Under [client.Hold] it never does. The panic goes on. A
// handler that is still running is never released: use [WithHandlerTimeout] rather than
// http.TimeoutHandler inside the guard, whose 503 is recognised, and uncertain.
//
// # Where to put it
//
// Inside authentication, which the principal comes from. Compression outside stores the plain
// response, compression inside stores the compressed one, and replays it to whoever asks.
// Headers that were set outside and that the handler leaves alone are not stored; they are set
// anew on a replay. The ends of lines in a value are stored as spaces, as net/http sends them, and
// a value with another control character is not stored.
//
// # Invariants
//
//  1. The handler runs only after a grant. No failure of any kind lets a keyed request
//     through.
//  2. No complete answer of a handler reaches its caller before what came of it is
//     recorded, if that is stored or released; what is uncertain is answered as it is.
//  3. Nothing is released while its handler runs, nor what is uncertain under Hold.
//  4. A commit is never followed by a release.
//  5. Headers of [NeverStored] and of the connection never leave this process but to the
//     caller.
//
// A middleware and all its handlers may be used by several goroutines at once. Nothing is
// left running but handlers beyond their time and recordings behind the scenes, which end
// with the client's bounds.
package httpadmit
