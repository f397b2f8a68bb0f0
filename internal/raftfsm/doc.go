// Package raftfsm runs one replica of a shard's Raft group, and answers for one thing:
// that what is proposed on the leader is applied to every replica's store in the same
// order, or not at all. What is decided is package admission's, what is proposed when
// is package actor's.
//
// # What is where
//
// An [Entry] is what the log holds: a version byte and a message of
// coordinator.raftlog.v1. The state machine applies it to the store (fsm.go,
// batch.go). The log is package raftlog's, watched here, and fatal where it fails
// (logstore.go). The snapshot is the state file itself (snapshot.go). Replicas compare
// their states by the log (check.go). The transport is Raft's own over a given stream
// layer (transport.go). On the way in, what no peer sends is refused (inbound.go); on the
// way out, what is acknowledged is remembered (outbound.go, acknowledged.go), and entries are
// sent before Raft sends them (ahead.go, line.go, spare.go). In a shard's directory:
//
//	state.db     the store: state, applied position, Raft configuration
//	log/         the WAL, its metadata, and where it ends
//	snapshots/   state files that are being received
//
// # Goroutines
//
//	of a group         announce      drains raft's NotifyCh, keeps the newest value
//	                   kicks         asks raft for a round of heartbeats
//	                   trim          cuts the log by bytes, woken by a new segment
//	                   watchLeader   tells of another leader
//	                   watchdog.run  ticks every second
//	                   patrol        asks for the state's lock every second
//	                   forward       from the network transport to raft's main loop
//	                   sendAhead     while leading: what is sent ahead until it is
//	                                 answered, at most one for each follower
//	of raft            main loop     elections; on the leader the log, on a follower all
//	                   FSM           the state machine: every update of the store
//	                   snapshots     Persist, then cuts the log
//	                   two for each follower while leading: entries, heartbeats
//	of its transport   accept loop, one for each incoming connection
//	                   one for a state that is refused, until it has come to its end
//	of the WAL         rotation, which the append that seals a segment waits for
//	of the store       flusher
//
// [Group.Close] ends all of them, in this order: waits for changes under way; copies of the
// state end; raft is told to shut down; the transport and its connections close, which ends what was sent
// ahead and the calls that raft waits for; raft's goroutines end; the log closes; the
// state is flushed and closes. The futures of proposals that have not resolved by then
// may never: raft gives them no way to hear of a shutdown. Whoever closes a group stops
// proposing and waits for its futures first; that takes no longer than the loss of
// leadership.
//
// # Invariants
//
// The tests name most of them.
//
//  1. No entry is left out: one that cannot be read or applied stops the state
//     machine for good, and with it snapshots, so that the log keeps the entry.
//  2. The state is a function of the log. What is read for answers only (stored
//     responses) changes nothing.
//  3. The state's position is a true pair of an index and the term of that entry.
//     Raft shows it in elections and checks once the log before it is gone.
//  4. The log is cut only where the state is durable, with the configuration that
//     holds there.
//  5. The snapshot that is listed is the durable state. What is being received is
//     not listed, and is the state once it has been checked and renamed.
//  6. Nothing that was acknowledged is taken back by a snapshot that comes late.
//  7. Log and state fit together when raft starts: what a crash may leave behind is
//     repaired, anything else is refused, naming the directory, another shard's log
//     among it (logowner.go).
//  8. A replica's term never goes back.
//  9. Bytes are bounded: those of the log, of an entry's answers, of what is written
//     behind. Only for a follower that lacks entries, and answers, a leader keeps a log that
//     is longer, by the size of the state (behind.go).
//  10. An index and a term name one entry: a replica that holds another than its leader
//     stops (package raftlog).
//  11. What was synced to the log is there when it is opened again, or it is not opened
//     (package raftlog).
//  12. Replicas that have applied the same entries have the same state: one that has
//     not stops (check.go).
//
// # Which indexes the state hears of
//
// Raft keeps its own entries (the no-op that begins a term, barriers) to itself: the
// state's position is that of the latest command or configuration, and a no-op behind
// it is counted as not applied. That is safe in both directions. A replay begins at
// the state's durable position, and finds no-ops to skip. A snapshot may end in a
// barrier behind the position: Persist moves the position there first, since raft has
// told the state of everything in between that there was to tell, and the log may be
// cut up to there.
//
// Configuration entries come through [raft.BatchingFSM], with their term;
// raft.ConfigurationStore would leave it out, and break invariant 3.
//
// # Time: a deadline is never early
//
// The clock L of the state machine is moved by entries alone. Let a leader of term T
// take its base b, on its own monotonic clock, after its LeaderStart has been applied,
// and let N be what L was when the term was noted. An entry of it carries (T, e) where
// e is the time since b. It counts if the log's term, the entry's term and the noted
// term are all T; then L becomes max(L, N + e).
//
// Within a term L moves no faster than real time. The log's term is T, so a leader of
// T appended it, and there is one such leader, so all entries that count in T carry
// times since the same b. (Raft may append in term T' what was decided in T, on the
// same node: the terms differ, and it is refused.) When e was taken, at least e had
// elapsed since b, and b is later than the moment when N was noted by whoever applied
// it first. So L is at most N plus the real time since N was noted.
//
// Across terms the intervals do not overlap: the next noted value N' is what L is at
// the next term's start in the log, and entries of T behind it are stale. Real time
// from there on counts from N', which is at most as far as L had come. The time
// between terms does not count at all: that is the lateness of which the contract
// speaks. A second LeaderStart in a term must change nothing: were N to become L then,
// while b stays, the time up to it would count twice.
//
// A granted attempt's deadline is L + ttl at its entry. L reaches it no earlier than
// ttl later in real time. No wall clock is in this argument.
//
// # Confirmed: an answer without a log entry
//
// [Group.Confirmed](T, since) says that this replica A leads T now, and that a
// majority Q of the voters, A included, has answered with success an AppendEntries of
// term T that A sent after since. Claim: every entry whose proposal anybody was
// answered for before since is in A's applied state, if A had applied an entry of its
// own in T by since.
//
// A follower F in Q checked its term when it handled the message: it was not above T,
// or the answer were no success. It handled it after it was sent, so at since F's term
// was not above T either, because terms do not go back (invariant 8). A's own term is
// T now, so it was not above T at since. A vote for a term is given by a replica in
// that term. So at since no replica of Q had voted in a term above T. A leader of a
// later term needs the votes of a majority, which has a replica in common with Q (with
// the latest configuration of A that of any leader elected by then: configurations
// change by one server at a time, and only after an entry of the own term). So it
// had not been elected at since, and had neither committed nor answered anything.
//
// What was answered before since was therefore committed in T, by A, which answers
// after it has applied; or in an earlier term, and then it is in A's log before A's own
// first entry, which A has applied.
//
// A heartbeat counts like any other AppendEntries: the argument needs the follower's
// term, nothing of its log. It does for [Follower.MatchIndex], where heartbeats say
// nothing. What was sent at the very moment since is not counted, since order within a
// moment cannot be told. Raft's VerifyLeader counts answers to what was sent before it
// was asked, so it is used to send a round, not for its verdict.
//
// Invariant 8 is not quite raft's: it answers heartbeats beside its main loop, and one
// of a new term there could set the term back to its own after the main loop had gone
// further. Here only a heartbeat of the follower's present term goes that way, and the term
// is not raised while it does (terms.go): all that could change the term goes through the
// main loop. Nor does any pass who has been told to take over: it would make a follower of
// the candidate before that has asked for a vote.
//
// # Sent ahead: a follower writes while the leader does
//
// The leader's log tells the transport of entries that are about to be written, and they
// go to one follower at once: the quickest voter of those that have acknowledged, in this
// term, the entry before them, and to which nothing is on its way. When raft asks for the
// same it is given that answer, for which it waits if need be. Nothing counts earlier or
// more than it did:
//
//   - The leader's copy counts when it is synced, and a follower's when raft has asked for
//     it. Raft's replicating routines do not know of an entry before the leader's write
//     has returned. So an entry that the leader is still writing is not committed.
//   - A follower answers when its copy is synced, whoever asked. The commit index that it
//     is told of lies before the entries.
//   - An answer stands for that to another request only where both are of one term, and
//     have as many entries between the same two places: a leader writes one entry an
//     index. Whatever else raft asks for, it asks itself.
//   - [Group.Confirmed] counts an answer from the moment when the request was sent. Raft
//     counts a contact from the moment when it hears of it, so it is given no answer to
//     what was sent more than a Lease ago. By that much the leader may go on for longer
//     without a majority; nothing is answered because of it.
//
// New is that a follower may have an entry that the leader has not: its MatchIndex may be
// beyond the leader's last index. Where the leader's write fails, or its process ends, the
// next leader has the entry or has not, and its fate is Unknown to whoever proposed it. It
// stays the only one of its index and term, since who fails to write leads that term no
// more.
//
// The leader and the follower that was sent to are a majority of three, so the other one is
// not needed. Raft's own request to it is held back until 10 ms have passed since it was
// last sent entries, as long as what was last sent ahead to another voter, in the same term
// and up to where the request ends or further, has been answered with success or may yet
// be. Where entries come thick it gets several with one message and one sync. Nothing that
// counts depends on it:
//
//   - A request is late, none is left out, and no answer is made up: what is committed is
//     what raft has counted.
//   - Where the other one fails, refuses or hangs, the request goes at once, or after 10 ms.
//     What is held back was put together before, so the follower is up to 20 ms behind, and
//     an entry that only it can still make a majority for is that much later.
//   - An acknowledged entry may be with only two of three for that long, which is what a
//     majority is: the third is not elected without the vote of one that has it, and does
//     not get it.
//   - Heartbeats and requests without entries never wait, nor does a follower of a group of
//     more than three voters, the first request after a pause, or one of as many entries as
//     a message takes, whose follower has to catch up. Close ends the wait.
//   - When a request was sent, for [Group.Confirmed], is a moment after the wait.
//
// # What may fail, and who hears of it
//
// [Open] returns an error that names the file or directory. A proposal's future
// resolves with an error that [Classify] sorts, or with a [Result]. After that, what
// concerns the whole replica is told to [GroupConfig.Fatal], once: an entry that cannot
// be read, a write to the log or the state that failed, a call to the disk that has
// not returned for ten ticks of the watchdog. Raft goes on leading over a hung disk,
// and can do nothing with a failed one; the process must end, so that another node
// leads and this one reads back what it has.
//
// The watchdog times every call of the log and every commit of the state. The state is
// read where it is mapped, by every update and by whoever looks at it: that are too many
// calls to time, and none that would return an error. All of them hold the state's lock
// while they read, so once a tick somebody asks for it who has to wait behind each, and is
// timed. An update that waits for room among what is gathered has let go of it: it waits for
// commits, which are timed. Not timed is what takes the longer the larger the state is: to
// open it, to copy it, to receive one and to check it.
package raftfsm
