// Package actor is the one goroutine through which everything that concerns a shard
// passes: the single-threadedness of a Durable Object, on top of a Raft group.
//
// # A call's way
//
// [Actor.Submit] puts a call into the mailbox and waits. The actor's goroutine takes
// calls out in order and decides each against the applied state at live time. A call
// that would change nothing (a refused duplicate, a look) is answered from that
// state once leadership is confirmed, without a log entry and without a disk write.
// Every other call goes into the open entry, which follows the one before it; a call is
// answered when its entry has been applied (the output gate). A Reserve
// that found the key taken and may wait is parked until its record changes, and is
// then decided again.
//
// What becomes of a call, and why, is a value that pure functions return, when it is taken
// out of a queue and when its entry has ended (judge.go). The loop carries it out.
//
// # The open entry
//
// An entry costs a write and a sync on every replica, however much it holds, so calls
// share them (entry.go). The open entry is proposed
//
//   - at once, where nothing is in flight and it holds as many calls as may be expected:
//     those that were in it when the entry before it ended, and one for each call that
//     that one had held. A caller that is alone waits for nothing but a tick or a reclaim
//     that is in flight;
//   - where not all of these come back: when it has waited for them for twice as long as
//     the entry before it took, and for no longer than [Config.LingerMax];
//   - beside an entry that is in flight: when LingerMax has passed since its first call
//     came in, or when it is full of commands or of bytes.
//
// It is not proposed while there are [Config.ProposalsMax] in flight, nor during a handover.
// The calls in it are not promised anything: they are decided by the state that their
// entry finds, they are dropped if their callers have gone before it is closed, and
// whatever empties it has changed nothing. Calls that need no entry pass it, unless it is
// full and may not be proposed.
//
// # The loop
//
// Whatever wakes the goroutine (a call, the end of a proposal, an acknowledgement, a
// change of leadership, the timer) it then does everything that can be done at that
// moment, see [Actor.step]. Wakes are hints and may be lost or doubled; the step looks
// at the state alone. There is one timer, set to the earliest moment at which time
// itself makes something possible.
//
// # Time
//
// A leader's live time is the clock value that its LeaderStart entry noted plus its
// own monotonic time since it saw that entry applied. It cannot run ahead of what has
// really passed: the intervals that successive leaders count never overlap, and each
// counts from after the note. An entry carries the live time at which it was closed,
// taken after its last call had been received.
//
// # Why an answer without an entry is right
//
// The applied state holds everything that was acknowledged: what this leader
// acknowledged it had applied before, and what earlier leaders acknowledged lies
// before its LeaderStart entry, which is applied before it serves. So an answer from
// the applied state is right unless another leader has acknowledged something
// meanwhile. Answers are collected, the collection is closed, and they are given out
// once a majority has confirmed this term by answering something that was sent after
// the closing: until each of them did so, no other leader can have been elected by
// them. And where a deadline of the record lies between the log's clock and live
// time, the call goes through the log all the same: the next leader starts from the
// log's clock, and what one caller has seen lapse must not be pending to another.
//
// # Invariants
//
//  1. A call gets exactly one outcome; one whose caller has gone is dropped.
//  2. Nothing is proposed before this term's LeaderStart entry has been applied here.
//  3. ErrNoLeader, ErrOverloaded and ErrShuttingDown are returned only for a call that
//     was not applied and will not be. Whenever that is not certain the outcome is
//     ErrOutcomeUnknown.
//  4. At most [Config.ProposalsMax] entries are in flight, those whose callers have
//     stopped waiting included.
//  5. Of the waiters for one identity at most one is decided through the log at a
//     time, and they are decided in the order in which they came.
//  6. When leadership is lost every queue, the open entry among them, is emptied with
//     ErrNoLeader.
//  7. However many calls come, and whatever the bounds: records that are over are written
//     down as quickly as new ones come, once they are late.
//
// # Goroutines
//
// The loop, from [Start] until [Actor.Stop], and one for each entry in flight, which
// waits for Raft's answer and hands it to the loop. Raft may lose an answer when it is
// shut down; Stop therefore comes first, and waits for what is in flight.
package actor
