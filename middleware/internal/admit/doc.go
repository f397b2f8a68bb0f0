// Package admit is the life of one keyed request, whatever protocol it came in: the question to
// the coordinator, the handler under its reservation, and what is recorded before anybody is
// answered. httpadmit and grpcadmit read requests and write answers around it.
//
// # From the question to the answer
//
// [Settings.Ask] reserves, within [Settings].ReserveTimeout. [Attempt.Run] runs the handler,
// under a context that ends with the reservation; asks what its answer means; and commits or
// releases, or leaves the reservation to lapse. A refusal that it returns goes to the caller in
// place of the handler's answer.
//
// # When asking takes too long
//
// The caller is refused. Where the coordinator may have granted the reservation all the same,
// the client asks for it again behind the scenes, with the same attempt id, and releases it: for
// as long as client.WithSettleTimeout says, and whatever became of the caller. Until then
// retries are told that the key is in flight. If that fails, or this process ends first, the
// reservation lapses: under Reopen the key is free then, under Hold it is in doubt, and whoever
// settles it may say "not applied", since no handler ran. So no admitted attempt is left that
// nobody owns, but for a time that is bounded.
//
// # Invariants
//
//  1. A handler runs only after a grant, and once for it.
//  2. Nothing is released while its handler runs, nor what is uncertain under Hold, but by the
//     handler's own word.
//  3. A commit is never followed by a release.
//  4. What came of it is recorded whatever becomes of the caller; Run returns no later than
//     SettleWait after the handler has.
//
// # Goroutines
//
// With a handler timeout the handler has one of its own, until it returns; recording has one,
// for as long as the client tries. Nothing else is left running.
package admit
