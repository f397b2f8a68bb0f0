// Command tradegateway turns the alerts of chart services into orders, one order for each
// alert, however often the alert comes, whatever crashes.
//
//	POST /v1/alerts  {"exchange":"sim","symbol":"BTCUSDT","action":"buy","quantity":1.5,"mode":"live"}
//
// It is an example of package httpadmit where a second time is worse than not at all. Its
// README.md shows it by hand.
//
// # One alert
//
//  1. Who sends it, and what it orders, are found out first (request.go). What is no
//     alert never gets further.
//  2. The guard reserves its key: that of the header Idempotency-Key, the alert's own id,
//     or one that is made of what it orders and holds for a minute (gateway.go).
//  3. The order is submitted once (venue.go). It carries a client order id that is derived
//     from the reservation's identity and fence, so that whoever looks for it later knows
//     it, and nobody has to keep it.
//  4. What came of it is recorded, and then answered: filled is stored and replayed;
//     rejected is released, so that a retry runs; unknown is neither.
//  5. An order that nobody has told the outcome of is looked for at its exchange
//     (settle.go), or by an operator.
//
// # Why there is never a second fill
//
// An exchange does not have to know a client order id again, so the only protection is
// to submit once. Three rules make it one:
//
//   - Nobody submits without a reservation, and a reservation is used for one submission.
//   - A key is free again only when its order cannot be filled any more: the exchange has
//     said no; or nothing was sent; or the exchange's own clock has passed the moment until
//     which the order was valid, by the time that lookups lag behind, and the order is not
//     there.
//   - The order's validity ends before its reservation does. The exchange's clock is read
//     after the reservation was granted, and an order is valid for a fixed time from that
//     reading, and is submitted only while twice that time and the lag are left. So an order
//     in doubt, whose reservation has lapsed, has been invalid for at least that time and the
//     lag: if the exchange does not show it now, it never will. That is what lets a process
//     that knows nothing of the submission settle it, and it holds where the gateway stood
//     still between the reading and the submission.
//
// What it relies on: the exchange refuses an order whose validity is over; a lookup shows
// what was accepted before, with no more than the lag; its clock is not set back by more
// than the validity; and a reservation does not lapse early, which the coordinator promises.
//
// # Bounds
//
// Requests at a time, their size, and the time that each step may take are bounded; see
// the settings (main.go) and the constants. The gateway keeps nothing: there may be
// several of it.
package main
