// Package client asks a coordinator whether a piece of work may go ahead, and tells it
// what came of it.
//
//	c, err := client.Dial([]string{"127.0.0.1:7420"})
//	…
//	result, err := c.Do(ctx, client.Identity{Principal: account, Operation: "POST /v1/orders", Key: key},
//		func(ctx context.Context, r *client.Reservation) (client.Response, error) {
//			return place(ctx, order, r.Derive("order"))
//		})
//
// [Client.Do] is the whole of it for most callers: the function runs at most once for an
// identity, and everybody gets its response. [Client.Reserve], [Reservation.Commit] and
// [Reservation.Release] are its parts, for those who need them apart. What the words
// mean is in the project's docs/semantics.md.
//
// # Outcomes
//
// Reserve has four outcomes and a dozen failures, and only one of them admits. So there is
// a [*Reservation] if the caller is admitted, and an error in every other case: pending,
// committed and in doubt are errors too ([*PendingError], [*CommittedError],
// [*InDoubtError]). A caller that looks at the error, as every caller of everything in Go
// does, cannot act without being admitted; one that does not has a nil reservation and
// fails. With one value of four kinds, "not admitted" would be a case of a switch that
// somebody forgets. An outcome that this client does not know, from a newer coordinator,
// is an error like the others.
//
// Errors are told apart with errors.Is and the Err… values of this package. Those that
// come from a call are an [*Error], with the contract's reason, the delay after which to
// try again, and whether the coordinator may have carried the call out all the same.
//
// An option that is nil is a mistake of the program, and a panic that names its place: what it was
// to say is lost, and without it more may be admitted than was meant.
//
// # Retries
//
// A call goes to one node after the other until one gives an answer, within the bounds
// of its context and of [WithCallTimeout], for Reserve also of [WithReserveTimeout]; one try
// takes no longer than [WithTryTimeout].
// All tries of a call carry the same attempt id or token, so that it is the same call to
// the coordinator, however many of them arrive. Tried again is what says that nothing was
// done or that it is not known: NO_LEADER, SHUTTING_DOWN, OUTCOME_UNKNOWN, OVERLOADED, a
// node that cannot be reached or does not answer. In the first round the next node is
// asked at once; then there is a pause that doubles, with jitter, and the delay that a
// node asks for is kept. Everything else is an answer, and is returned; STORAGE_FULL and
// QUOTA_EXCEEDED too, since what they wait for takes longer than a call.
//
// The first answer to Reserve is not held back, whatever its wait: a node that hangs costs
// it no more than a try. Only who has been told "pending" waits, and a node that falls
// silent then is found out by a ping, within 15 s.
//
// An attempt id is drawn for every call of Reserve, and another one only after the
// attempt has ended (ATTEMPT_ENDED, or a grant that was over when it arrived) while the
// call still wants the key.
//
// A context that ends ends the call at once. If the coordinator may have carried it out the
// error says so ([ErrUnknown]); a reservation that was granted in that way is given back
// behind the scenes.
//
// # Ownership
//
// [Reservation.Context] ends when the ownership does, at the latest at the owner's own
// deadline: when the very try that was answered was sent, plus 99.9 % of what the
// coordinator then gave, on CLOCK_BOOTTIME on Linux and Go's monotonic clock elsewhere.
// The rates of clocks are assumed to agree within 500 ppm. Go's timers stand still while a
// machine is suspended. So the context reads the clock whenever its Err is asked for, and
// Done is closed within a second after the wake; elsewhere than on Linux a suspend is not
// noticed, and a fence check downstream is what protects.
//
// Commit and Release end it when they are sent. Nothing revives it, so an owner whose
// context has ended does not extend; it may still commit, which counts as long as nobody
// else was admitted.
//
// # Leaders
//
// Each answer tells the number of shards and who leads the one that was asked about. The
// client computes an identity's shard as the nodes do, by a hash that the data format
// fixes, and asks the leader that it was last told of. It may be wrong at no cost but a
// hop: every node takes every call. A node that gives no answer is passed over for two
// seconds. There is one connection to each node. The addresses that nodes tell are dialed
// with the credentials of the endpoints; [WithEndpointsOnly] dials none of them.
//
// A client is for one cluster: that of the node which answered first. Every call names it from
// then on, so that a node of another one, behind a wrong address or one that has passed on,
// does nothing; such a node counts as one that gives no answer, and the logger is told.
// After a cluster has been founded anew at the same addresses, dial again.
//
// While 16 or more calls are under way to one node they share a stream instead of having
// one each, which costs both ends less; see [WithSessions]. That begins once it is known which
// cluster they are for, since a stream says so for all of its calls. Calls that ask to be held back
// and those of more than 64 KiB do not. Where the stream breaks, what was under way is tried
// again like any call whose connection broke.
//
// # Goroutines
//
// A reservation has a timer and no goroutine. [Reservation.KeepAlive] has one, until it is
// stopped or the ownership ends; giving back a reservation that nobody heard of has one, for
// as long as [WithSettleTimeout] says: 64 call at a time, and 4,096 are there at most. Those
// beyond that are left to lapse, and the logger is told. A stream that calls share has two,
// until it is no longer worth it. [Client.Close] ends them all and waits.
//
// # Invariants
//
//  1. There is a Reservation only for a grant whose deadline had not passed when it came.
//  2. The context of a Reservation never outlives the owner's deadline by its Err, and
//     never revives.
//  3. All tries of a call carry one attempt id or token; no two calls share an attempt id.
//  4. Nothing is released but what is known not to have been acted on: by the caller's
//     word, or because nobody got the reservation. A Commit never turns into a Release.
//  5. The four parts of an identity go over the wire as they were passed.
package client
