// Package grpcadmit guards gRPC methods: a unary call with an idempotency key is carried
// out at most once, and every retry gets the answer of the first.
//
//	coordinator, err := client.Dial([]string{"127.0.0.1:7420"})
//	if err != nil {
//		return err
//	}
//	guard := grpcadmit.New(coordinator, grpcadmit.WithPrincipal(accountOf), grpcadmit.WithKeyRequired())
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, guard))
//
// The key is in the metadata idempotency-key; package outgoing is the caller's half. What the
// interceptor says by itself is a status with a google.rpc.ErrorInfo of [Domain] and a
// stable reason ([Reason], docs/grpc.md), and with a RetryInfo where the same call later may
// fare better.
//
// # Options at a glance
//
// One is required: [WithPrincipal], or [WithAnonymous] where all callers may share their keys.
//
//   - Who asks for what: [WithNamespace], [WithOperation], [WithMethods].
//   - The key: [WithKeyRequired], [WithKeys]: other metadata, a field of the request.
//   - The same request or another: [WithFingerprint].
//   - How long: [WithReserveTimeout] (3 s) for the coordinator, [WithPendingTTL] (5 min) for the
//     handler, [WithHandlerTimeout] (none) and [WithSettleWait] (15 s) for the caller, [WithWait]
//     (0) for an answer in flight, [WithRetention] (24 h) for the stored one.
//   - What an answer means: [WithOnLapse] ([client.Reopen]; [client.Hold] where twice is worse than
//     not at all), [WithClassifier], [WithResponseLimit].
//   - The handler: [WithKeepAlive], [WithCallerCancel].
//   - Its answers: [WithStatusCode], [WithRetryAfter], [WithDocs].
//   - For people: [WithOwner], [WithLogger].
//
// # One call
//
//  1. Who makes it ([WithPrincipal]), what it does ([WithOperation]) and its key
//     ([WithKeys]) name a record. A call without a key passes untouched, unless
//     [WithKeyRequired]; a malformed key never does.
//  2. The request is hashed ([WithFingerprint]).
//  3. The coordinator is asked. Only if it grants a reservation the handler runs; a key
//     that is done is answered with the stored message or status, and with the trailer
//     idempotent-replayed: true. When no answer can be had for 3 s ([WithReserveTimeout]) the
//     call is refused: UNAVAILABLE, and nothing was carried out.
//  4. What the handler answers is decided upon ([WithClassifier]) and recorded: stored, or
//     released.
//  5. The answer goes to the caller.
//
// # Which calls
//
// Unary ones. Streams pass through: nothing in gRPC says which message of a stream is the
// request and which one its answer, and there is no interceptor for them here. A key that
// is sent with a stream means nothing.
//
// Not guarded by default ([WithMethods]) are methods that change nothing, those with the
// option idempotency_level = NO_SIDE_EFFECTS in their proto file, and the health service,
// whose callers know no keys.
//
// # When the coordinator does not answer
//
// A keyed call is refused, IDEMPOTENCY_UNAVAILABLE, and never waved through. One whose question
// arrived, and whose answer was lost, may hold its key all the same: the client asks for it
// again behind the scenes, with the same attempt, and releases it, for up to
// [client.WithSettleTimeout] (1 min). Until then a retry is told that the key is in flight. If
// the coordinator is away for longer, or this process ends first, the reservation lapses after
// [WithPendingTTL]: under [client.Reopen] the next retry runs, under [client.Hold] the key is in
// doubt, and may be settled as not applied.
//
// # Recorded before it is answered
//
// A caller that has an answer can rely on it: every retry gets the same one, and the handler
// does not run again. What that means when something fails:
//
//   - The process dies before it is recorded. The caller has no answer. The reservation
//     lapses; then [client.Reopen] runs the handler again, [client.Hold] says
//     IDEMPOTENCY_IN_DOUBT until someone settles it.
//   - Recording fails, or nobody says whether it succeeded, for [WithSettleWait]. The caller
//     gets IDEMPOTENCY_UNAVAILABLE with executed: true, not the answer: it might be one that
//     no retry gets. Recording goes on behind the scenes, and a failed commit is never turned
//     into a release.
//   - The handler took longer than its reservation, and somebody else was admitted or has
//     settled it: IDEMPOTENCY_LOST. The other's answer counts.
//   - The caller hangs up, or its deadline passes. The handler goes on, unless
//     [WithCallerCancel], and what comes of it is recorded.
//
// # What is stored
//
// The response as deterministic proto bytes with the name of its type, or the status with
// its details; fields that this build does not know are kept. A replay is a message of the
// same type. Metadata that the handler sets goes to its first caller only.
//
// A response over [WithResponseLimit], or over the coordinator's own limit, reaches its first
// caller whole. Later ones get RESPONSE_NOT_STORED, and the handler does not run again.
//
// # What a handler gets
//
// Its context has the values of the call's, and ends with the reservation, not with the
// caller or its deadline. [Reservation] finds the fence in it and derives keys for side
// effects; [MarkUncertain], [MarkNotApplied] and [MarkDone] say what no status can.
//
// A handler that panics releases its key under [client.Reopen], unless its context had ended:
// what was cut off may have happened. Under [client.Hold] it never does. The panic goes on. A
// handler that is still running is never released; see [WithHandlerTimeout].
//
// # Where to put it
//
// Inside authentication, which the principal comes from, and inside what recovers panics:
// outside of the guard a recovered panic is one, inside it is an INTERNAL. What changes or
// replaces messages and statuses belongs outside too, where it sees replays as well. What sets
// headers outside takes gRPC's own retries away from the callers: an answer that has headers
// is not tried again.
//
// # Invariants
//
//  1. The handler runs only after a grant. No failure of any kind lets a keyed call through.
//  2. No answer of a handler reaches its caller before what came of it is recorded, if that
//     is stored or released; what is uncertain is answered as it is.
//  3. Nothing is released while its handler runs, nor what is uncertain.
//  4. A commit is never followed by a release.
//
// An interceptor may be used by several goroutines at once. Nothing is left running but
// handlers beyond their time and recordings behind the scenes, which end with the client's
// bounds.
package grpcadmit
