// Package fault runs three real nodes under load, does to them and around them what
// happens to nodes, and checks everything that their callers were told.
//
// Its parts are apart, so that each can be looked at by itself:
//
//   - [links]: every byte between two nodes goes through a proxy that knows who sent it to
//     whom, and holds it back in one direction or in both, breaks it off or slows it down.
//   - [courier]: every delivery of a client's call goes through an interceptor that writes
//     down what was asked and answered, and delays it, sends it again much later, or loses
//     the answer.
//   - [load]: callers with identities of their own and ones that they fight for, with the
//     public client and without.
//   - [faults]: the table of what is done to the nodes; each entry mends what it broke.
//   - [suite]: rounds of load with one fault or a mixture, and after each the judgement:
//     test/linearizability on the history, the same records on the three nodes, nobody
//     ended who was not killed, no error that is not one of those that users may see.
//
// What it has seen is in docs/reliability.md.
//
// # How it is run
//
// In an ordinary run of the tests a few rounds, with a fresh seed, which is printed.
// COORDINATOR_FAULT=1 (make fault) runs all of it. COORDINATOR_FAULT_SEED repeats what is
// drawn; the nodes' own timing is not repeated.
//
// # Invariants
//
//  1. Nothing listens or is dialed but on 127.0.0.1; only processes that were started
//     here are signalled.
//  2. An event is one delivery: what was certainly not carried out (NO_LEADER, a node
//     that cannot be connected to) is no event, and what may have been is one without an
//     answer. So an answer that says "not applied" and was applied is a violation.
//  3. A history is that of one round, whose identities no other round uses.
//  4. What is outstanding is bounded: late deliveries, connections of the proxies, events
//     of a round.
package fault
